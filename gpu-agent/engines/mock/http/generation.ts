/** Runs one request's sequences and tells what came out of them, choice by choice; faults of streams happen here. */

import { randomBytes } from "node:crypto";
import type { Engine, Submission } from "../engine.ts";
import type { RequestFaults } from "../misbehaviour.ts";
import type { FinishReason, RemotePrefill } from "../sequence.ts";
import { ChoiceOutput } from "./output.ts";
import type { Body, SamplingParams } from "./params.ts";

export interface GenerationRequest {
  /** Public id, with its prefix. */
  readonly id: string;
  readonly params: SamplingParams;
  /** Token ids; a request with several prompts has `n` choices for each. */
  readonly prompts: readonly (readonly number[])[];
  /** Text that the answer must be, or begin with. */
  readonly forced: { readonly tokens: readonly number[]; readonly ends: boolean };
  /** Used where the request sets no limit. */
  readonly defaultMaxTokens: number | null;
  readonly rank: number | null;
  readonly faults: RequestFaults;
  readonly arrivalMs: number;
}

export interface ChoiceDelta {
  readonly index: number;
  readonly text: string;
  readonly tokenIds: readonly number[];
  readonly finish: FinishReason | null;
  readonly stopReason: string | null;
}

export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cachedTokens: number;
  /** Full blocks of the prompt that this request had to make. */
  readonly createdCacheTokens: number;
}

export interface GenerationListener {
  /** A chunk's worth of one choice. */
  delta(delta: ChoiceDelta): void;
  /** All choices are done. */
  ended(): void;
  /** The engine gave up; nothing more comes. */
  failed(): void;
  /** A fault: break or silence the connection. */
  fault(kind: "cut" | "stall" | "error-finish"): void;
}

export class Generation {
  readonly request: GenerationRequest;
  readonly outputs: ChoiceOutput[] = [];
  readonly #engine: Engine;
  readonly #listener: GenerationListener;
  readonly #submissions: Submission[] = [];
  #open: number;
  #tokens = 0;
  #over = false;

  constructor(engine: Engine, request: GenerationRequest, listener: GenerationListener) {
    this.#engine = engine;
    this.request = request;
    this.#listener = listener;
    this.#open = request.prompts.length * request.params.n;
  }

  /** Hands the sequences to the engine. */
  start(): void {
    const { params, prompts } = this.request;
    for (const prompt of prompts) {
      const rank = this.request.rank ?? this.#engine.pickRank();
      this.#engine.scheduler(rank).metrics.paramN.observe(params.n);
      for (let sample = 0; sample < params.n; sample++) this.#submit(prompt, sample, rank);
    }
  }

  /** The client is gone. */
  abort(): void {
    this.#over = true;
    for (const submission of this.#submissions) submission.abort();
  }

  /** Choices that are not done yet. */
  get remaining(): number {
    return this.#open;
  }

  get usage(): Usage {
    const { prompts, params } = this.request;
    const { blockSize } = this.#engine.config;
    const cachedTokens = this.#submissions.at(-1)?.sequence?.cachedTokens ?? 0;
    const last = prompts.at(-1)?.length ?? 0;
    const pulled = params.transfer?.do_remote_prefill === true;
    return {
      promptTokens: prompts.reduce((sum, prompt) => sum + prompt.length, 0),
      completionTokens: this.outputs.reduce((sum, output) => sum + output.tokenIds.length, 0),
      cachedTokens,
      createdCacheTokens: pulled ? 0 : Math.max(0, Math.floor(last / blockSize) * blockSize - cachedTokens),
    };
  }

  /** What a prefill leg answers for its decode leg (engines.md §2.2); null for any other request. */
  get transferParams(): object | null {
    const { id, params, prompts, faults } = this.request;
    const sequence = this.#submissions[0]?.sequence;
    const { kvTransfer } = this.#engine.config;
    const wanted = params.transfer?.do_remote_decode === true && !faults.missingTransferParams;
    if (!wanted || kvTransfer === null || sequence === null || sequence === undefined) return null;
    const internal = id.startsWith("cmpl-") ? `${id}-0` : id;
    return {
      do_remote_prefill: true,
      do_remote_decode: false,
      remote_block_ids: [sequence.finalBlocks],
      remote_engine_id: this.#engine.life.engineId,
      remote_request_id: `${internal}-${randomBytes(4).toString("hex")}`,
      remote_host: kvTransfer.side_channel_host,
      remote_port: kvTransfer.side_channel_port,
      tp_size: 1,
      dcp_size: 1,
      pp_size: 1,
      remote_num_tokens: prompts[0]!.length,
      remote_blocks_expiry_time: null,
      transfer_mode: "pull",
      remote_prefill_cached_tokens: sequence.cachedTokens,
    };
  }

  #submit(prompt: readonly number[], sample: number, rank: number): void {
    const { id, params, forced, defaultMaxTokens, arrivalMs, faults } = this.request;
    const index = this.outputs.length;
    const output = new ChoiceOutput(this.#engine.tokenizer, {
      strings: params.stop,
      include: params.includeStop,
      minTokens: params.minTokens,
    });
    this.outputs.push(output);
    const room = this.#engine.config.maxModelLen - prompt.length;
    const source = this.#engine.text.source({
      prompt,
      seed: params.seed,
      index: params.deterministic ? 0 : sample,
      adapter: params.adapter,
      minTokens: params.minTokens,
      ignoreEos: params.ignoreEos,
      forced: forced.tokens,
      endsAfterForced: forced.ends,
      allowed: params.allowed,
    });
    const submission = this.#engine.submit(
      rank,
      {
        id: `${id}-${index}`,
        prompt,
        source,
        maxTokens: Math.min(room, params.maxTokens ?? defaultMaxTokens ?? room),
        priority: params.priority,
        remotePrefill: remotePrefill(params.transfer, faults),
        reportFull: params.reportFull,
        ignoreCache: this.#engine.misbehaviour.take("duplicateStores"),
        arrivalMs,
        onToken: (token, finish) => this.#onToken(index, token, finish),
      },
      {
        lora: params.adapter === null ? null : (this.#engine.adapters.get(params.adapter) ?? null),
        salt: params.salt,
        sessionId: params.sessionId,
      },
    );
    this.#submissions.push(submission);
  }

  #onToken(index: number, token: number | null, finish: FinishReason | null): boolean {
    if (this.#over) return true;
    if (token === null) {
      this.#fail();
      return true;
    }
    if (this.#meetsFault()) return true;
    this.#tokens++;
    const output = this.outputs[index]!;
    const stopped = output.push(token, finish);
    const interval = output.tokenIds.length === 1 ? 1 : this.request.params.streamInterval;
    if (output.finish !== null || output.tokensSinceDelta >= interval) {
      this.#listener.delta({
        index,
        ...output.takeDelta(),
        finish: output.finish,
        stopReason: output.stopReason,
      });
    }
    if (output.finish !== null && --this.#open === 0) {
      this.#over = true;
      // The last sequence leaves the scheduler when this returns; what is said of it must not depend on that.
      this.#listener.ended();
    }
    return stopped;
  }

  #fail(): void {
    this.abort();
    this.#listener.failed();
  }

  /** The fault that hits before the next token, if one does. */
  #meetsFault(): boolean {
    const { cutAfterTokens, stallAfterTokens, error200, error200AfterTokens } = this.request.faults;
    if (cutAfterTokens !== null && this.#tokens >= cutAfterTokens) this.#listener.fault("cut");
    else if (stallAfterTokens !== null && this.#tokens >= stallAfterTokens) {
      this.#listener.fault("stall");
      return false;
    } else if (error200 !== "off" && this.#tokens >= error200AfterTokens) {
      this.abort();
      if (error200 === "in-band") this.#listener.failed();
      else this.#listener.fault("error-finish");
      return true;
    } else return false;
    this.abort();
    return true;
  }
}

function remotePrefill(transfer: Body | null, faults: RequestFaults): RemotePrefill | null {
  if (transfer?.do_remote_prefill !== true) return null;
  const tokens = Number(transfer.remote_num_tokens);
  const cached = Number(transfer.remote_prefill_cached_tokens);
  return {
    tokens: Number.isFinite(tokens) ? tokens : 0,
    cachedTokens: Number.isFinite(cached) ? cached : 0,
    fails: faults.transferFails,
  };
}
