/** One sequence on its way through the scheduler: its tokens, its hold on blocks, its times. */

import type { BlockHold } from "./block-manager.ts";

export type FinishReason = "stop" | "length" | "abort" | "error";

/** Where a sequence's next tokens come from; null ends it (the end token is drawn by the source itself). */
export interface TokenSource {
  /** The `k`-th output token, counted from 0. */
  next(k: number): number;
  /** The token that ends a sequence when `next` draws it. Null: none does. */
  readonly endToken: number | null;
}

/** KV of the prompt that another engine has prefilled (the decode leg of a split request). */
export interface RemotePrefill {
  readonly tokens: number;
  /** What the prefill side had cached; it becomes this side's `cached_tokens`. */
  readonly cachedTokens: number;
  /** The pull fails: the sequence ends with `error`. */
  readonly fails: boolean;
}

export interface SequenceRequest {
  readonly id: string;
  readonly prompt: readonly number[];
  readonly source: TokenSource;
  readonly maxTokens: number;
  /** Lower runs sooner, where the policy is `priority`. */
  readonly priority: number;
  readonly remotePrefill: RemotePrefill | null;
  /** Announce the reused blocks again. */
  readonly reportFull: boolean;
  /** Recompute and store even what is cached: makes real duplicate copies. */
  readonly ignoreCache: boolean;
  readonly arrivalMs: number;
  /**
   * A token was made; `finish` is set with the last one. Returning true ends the sequence here (stop string).
   * Called once more without a token (null) if the sequence ends by an error.
   */
  readonly onToken: (token: number | null, finish: FinishReason | null) => boolean;
}

export type SequenceState = "waiting" | "transferring" | "running" | "finished";

/** The scheduler owns every field; others read. */
export interface Sequence {
  readonly request: SequenceRequest;
  /** Prompt, then output. */
  readonly tokens: number[];
  readonly hold: BlockHold;
  state: SequenceState;
  /** Leading tokens whose KV is computed. */
  computed: number;
  /** Prompt tokens found in the cache when first admitted; null before. */
  cachedTokens: number | null;
  /** The pull of a remote prefill has begun; it is not begun again after a preemption. */
  pulled: boolean;
  preemptions: number;
  queuedMs: number;
  admittedMs: number | null;
  firstTokenMs: number | null;
  lastTokenMs: number | null;
  /** Physical blocks at the end, for a prefill leg's transfer parameters. */
  finalBlocks: readonly number[];
}

export function outputTokens(sequence: Sequence): number {
  return sequence.tokens.length - sequence.request.prompt.length;
}
