/** What a replay asks of an index: blocks stored and removed per rank and tier, and how deep each rank holds a prompt. */

import type { Tier } from "../../fleet/types.ts";

export interface Place {
  readonly worker: string;
  readonly rank: number;
}

/** One block as an engine announces it. */
export interface StoredBlock {
  /** The engine's own id of it. */
  readonly hash: bigint;
  readonly tokenIds: readonly number[];
}

/** Blocks of a prompt: on the device from the root on, then what host memory and disk add behind that. */
export interface Depths {
  readonly device: number;
  readonly host: number;
  readonly disk: number;
}

export const NO_DEPTHS: Depths = { device: 0, host: 0, disk: 0 };

export interface BlockIndex {
  store(place: Place, tier: Tier, parent: bigint | null, blocks: readonly StoredBlock[]): void;
  remove(place: Place, tier: Tier, hashes: readonly bigint[]): void;
  /** All blocks of the rank, in all tiers. */
  clear(place: Place): void;
  /** Per `worker:rank`; absent: holds nothing of it. */
  lookup(tokenIds: readonly number[]): ReadonlyMap<string, Depths>;
  /** Blocks that the rank holds on the device, reachable from the root or not. */
  blockCount(place: Place): number;
}

export const placeName = ({ worker, rank }: Place): string => `${worker}:${rank}`;
