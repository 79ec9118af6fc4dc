/** A request's prompt as the engine will read it, and its keys, with what each model needs kept ready. */

import { createPromptKeyer, type PromptKeyer } from "../prefix/prompt-keyer.ts";
import { ChatRenderer, type Rendered } from "../prefix/render/index.ts";
import type { ModelCard, PrefixChain } from "../prefix/types.ts";
import type { Prompt } from "./candidates.ts";
import type { GatewayDeps } from "./deps.ts";
import type { TokenEstimator } from "./estimate.ts";
import type { ServedModel } from "./models.ts";
import type { ClientRequest } from "./request.ts";

export interface ReadPrompt {
  readonly prompt: Prompt;
  /** Why it has no keys; null if it has. */
  readonly unkeyed: string | null;
}

interface ModelTools {
  /** The card that these were made for, by reference and, since feeds make new objects of equal cards, by content. */
  card: ModelCard;
  readonly content: string;
  readonly renderer: ChatRenderer;
  readonly keyer: PromptKeyer;
}

export class PromptReader {
  private readonly deps: GatewayDeps;
  private readonly estimator: TokenEstimator;
  private readonly tools = new Map<string, ModelTools>();

  constructor(deps: GatewayDeps, estimator: TokenEstimator) {
    this.deps = deps;
    this.estimator = estimator;
  }

  /**
   * A prompt that this gateway cannot render is the engine's to judge and goes there without keys.
   * Errors: `template_error`, `invalid_request` for what the engine would surely refuse.
   */
  read(request: ClientRequest, served: ServedModel): ReadPrompt {
    const { card, renderer, keyer } = this.toolsFor(served.card);
    const rendered =
      request.endpoint === "chat"
        ? [renderer.renderChat(request.document)]
        : renderer.renderCompletion(request.document);
    // Of a batch only the first is keyed: engines run each by itself, and the first speaks for what they share.
    const first = rendered[0]!;
    const identity = { model: served.model, adapter: served.adapter, salt: request.cacheSalt };
    const chain = keyer.keysOf(first, identity);
    const bytesPerToken = this.estimator.bytesPerToken(served.model, card.bytesPerToken);
    return {
      prompt: {
        chain,
        exactTokens: rendered.length === 1 ? exactTokens(first, chain) : null,
        bytes: totalBytes(rendered, chain, bytesPerToken, request),
        bytesPerToken,
        salted: request.cacheSalt !== null,
      },
      unkeyed: chain === null ? unkeyedReason(first, card) : null,
    };
  }

  /** Cards change with a new deployment; the renderer of an old one goes with it. */
  private toolsFor(card: ModelCard): ModelTools {
    const known = this.tools.get(card.model);
    if (known?.card === card) return known;
    const content = JSON.stringify(card);
    if (known?.content === content) {
      known.card = card;
      return known;
    }
    const { clock, hasher, tokenizers, vocabularies } = this.deps;
    const tools = {
      card,
      content,
      renderer: new ChatRenderer(card, { now: () => clock.wall() }),
      keyer: createPromptKeyer({
        hasher,
        card,
        tokenizer: tokenizers?.(card) ?? null,
        vocabulary: vocabularies?.(card) ?? null,
      }),
    };
    this.tools.set(card.model, tools);
    return tools;
  }
}

function unkeyedReason(rendered: Rendered, card: ModelCard): string {
  if (rendered.kind === "unkeyed") return rendered.reason;
  return `this gateway cannot turn ${rendered.kind} into the units of scheme ${card.scheme}`;
}

function exactTokens(rendered: Rendered, chain: PrefixChain | null): number | null {
  if (rendered.kind === "tokens") return rendered.tokenIds.length;
  return chain?.scheme === "tokens" && chain.complete ? chain.unitCount : null;
}

function totalBytes(
  rendered: readonly Rendered[],
  chain: PrefixChain | null,
  bytesPerToken: number,
  request: ClientRequest,
): number {
  let bytes = 0;
  rendered.forEach((one, i) => {
    if (i === 0 && chain?.scheme === "bytes") bytes += chain.unitCount;
    else if (one.kind === "text") bytes += one.text.length;
    else if (one.kind === "tokens") bytes += one.tokenIds.length * bytesPerToken;
    else bytes += request.text.length;
  });
  return bytes;
}
