/** One engine's KV events after decoding, before the mirror: one shape for every engine and wire form. */

import type { Tier } from "../../src/fleet/types.ts";

/** Engine block hash as 64 bits: bytes → last 8 big-endian, negative → two's complement. Opaque (engines.md §1.5). */
export type EngineHash = bigint;

export interface BlockStored {
  readonly type: "stored";
  readonly hashes: readonly EngineHash[];
  readonly parent: EngineHash | null;
  readonly tokenIds: readonly number[];
  readonly blockSize: number;
  readonly loraName: string | null;
  readonly tier: Tier;
  /** Raw extra keys per block as sent (salt, adapter, multimodal hashes); null where absent. */
  readonly extraKeys: readonly (readonly unknown[] | null)[] | null;
  readonly group: number;
  /** `full_attention`, `sliding_window`, `mamba`, …; null where the engine does not say (then full attention). */
  readonly specKind: string | null;
  readonly slidingWindow: number | null;
}

export interface BlockRemoved {
  readonly type: "removed";
  readonly hashes: readonly EngineHash[];
  readonly tier: Tier;
  readonly group: number;
}

export interface AllBlocksCleared {
  readonly type: "cleared";
}

export type EngineEvent = BlockStored | BlockRemoved | AllBlocksCleared;

/** One wire batch: what could be read of it, and what could not. */
export interface EngineBatch {
  /** Seconds, engine's clock; never compared across hosts. */
  readonly timestampSeconds: number | null;
  readonly events: readonly EngineEvent[];
  readonly rank: number | null;
  /** Events left out, with the reason; the rest of the batch stands. */
  readonly skipped: readonly { readonly reason: string; readonly tag: string | null }[];
}
