/** A rendered prompt → its chain of prefix keys, by the model's card: the gateway's side of both schemes. */

import { bytesChain } from "./bytes-scheme.ts";
import { createCanonicalizer } from "./canonical-text.ts";
import type { Hasher } from "./hasher.ts";
import { tokensChain } from "./token-scheme.ts";
import type { PromptTokenizer } from "./tokenizer.ts";
import type { ChainIdentity, ModelCard, PrefixChain } from "./types.ts";
import type { Vocabulary } from "./vocabulary.ts";

/** What the engine will read, as far as the gateway knows it. */
export type KeyablePrompt =
  | {
      readonly kind: "text";
      readonly text: string;
      /** False if the prompt goes on after `text` with something that has no text. */
      readonly complete: boolean;
      /** The engine lets the tokenizer add its prefix to this text. */
      readonly addSpecial: boolean;
    }
  | { readonly kind: "tokens"; readonly tokenIds: readonly number[] }
  | { readonly kind: "unkeyed" };

export interface PromptKeyer {
  /**
   * The prompt's chain; null if it cannot be keyed: nothing of it is known, or it comes in a form that this gateway cannot
   * turn into the scheme's units. Errors: `invalid_request` for ids that are not unsigned 32-bit integers.
   */
  keysOf(prompt: KeyablePrompt, identity: ChainIdentity): PrefixChain | null;
}

export interface PromptKeyerOptions {
  readonly hasher: Hasher;
  readonly card: ModelCard;
  /** Scheme `tokens`: without it only prompts given as token ids have keys. */
  readonly tokenizer?: PromptTokenizer | null;
  /** Scheme `bytes`: without it prompts given as token ids have no keys. */
  readonly vocabulary?: Vocabulary | null;
}

export function createPromptKeyer(options: PromptKeyerOptions): PromptKeyer {
  return options.card.scheme === "bytes" ? bytesPromptKeyer(options) : tokensPromptKeyer(options);
}

function bytesPromptKeyer({ hasher, card, vocabulary }: PromptKeyerOptions): PromptKeyer {
  const canonical = createCanonicalizer(card);
  return {
    keysOf(prompt, identity) {
      if (prompt.kind === "text") {
        return bytesChain(hasher, identity, canonical(prompt.text, prompt), card.unitSize, prompt.complete);
      }
      const bytes = prompt.kind === "tokens" ? vocabulary?.decode(prompt.tokenIds) : null;
      return bytes ? bytesChain(hasher, identity, bytes, card.unitSize, true) : null;
    },
  };
}

function tokensPromptKeyer({ hasher, card, tokenizer }: PromptKeyerOptions): PromptKeyer {
  return {
    keysOf(prompt, identity) {
      if (prompt.kind === "tokens")
        return tokensChain(hasher, identity, prompt.tokenIds, card.unitSize, true);
      if (prompt.kind === "unkeyed" || !tokenizer) return null;
      const ids = tokenizer.encode(prompt.text, prompt);
      return tokensChain(hasher, identity, ids, card.unitSize, prompt.complete);
    },
  };
}
