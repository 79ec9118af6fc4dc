/** Extends chains block by block from token ids: the agent's side of a prefix scheme (design D2). */

import type { ChainIdentity, PrefixSchemeName } from "./types.ts";

/** Where a chain stands after some tokens. Plain data; callers treat it as opaque and immutable. */
export interface ChainState {
  readonly root: bigint;
  /** Last closed key; equals root while none is closed. */
  readonly key: bigint;
  /** Number of keys closed so far. */
  readonly depth: number;
  /** Tokens appended so far. */
  readonly tokens: number;
  /** Scheme `bytes`: bytes past the last closed chunk and the tokens that end in or span them. */
  readonly pending: unknown;
}

export interface Extension {
  readonly state: ChainState;
  /** Keys closed by this block, in order. May be empty (bytes scheme, short block). */
  readonly keys: readonly bigint[];
  /** Per key: tokens that lie wholly inside it, counted from the chain's start. */
  readonly tokens: readonly number[];
}

export interface ChainKeyer {
  readonly scheme: PrefixSchemeName;
  readonly unitSize: number;
  start(identity: ChainIdentity): ChainState;
  /**
   * Errors: `KedgeError` `invalid_request` for a token id outside the vocabulary; `engine_mismatch` (scheme `tokens`) for a
   * block that is not a whole number of units.
   */
  extend(state: ChainState, tokenIds: ArrayLike<number>): Extension;
}
