/** Predicted holders: kept apart from confirmed ones, at the boundaries of a chain only, in a bounded space (design D3). */

import { boundaryAt, boundaryCount, MAX_BOUNDARIES } from "../../prefix/boundaries.ts";
import type { ChainDepths } from "./chain-depths.ts";
import { ChainSearch } from "./chain-search.ts";
import { HolderIndex } from "./holder-index.ts";
import type { Lookup } from "./lookup.ts";
import type { SlotTable } from "./slots.ts";

/** Index in the chain of each boundary's key. */
const POSITIONS = Int32Array.from({ length: MAX_BOUNDARIES }, (_, index) => boundaryAt(index) - 1);

/** Places of the tables to sweep per key written. */
const SWEEP_PER_KEY = 2;

/**
 * Two generations: writes go to the younger; when it has half of all that is allowed, the older is dropped whole. So the
 * oldest predictions make room, at no cost, and each generation is prefix-closed by itself.
 */
export class Predictions {
  private readonly slots: SlotTable;
  private readonly seed: number;
  private readonly generationHolders: number;
  private younger: HolderIndex;
  private older: HolderIndex;
  private youngerSearch: ChainSearch;
  private olderSearch: ChainSearch;

  constructor(slots: SlotTable, seed: number, maxHolders: number) {
    this.slots = slots;
    this.seed = seed;
    this.generationHolders = Math.max(1, Math.floor(maxHolders / 2));
    this.younger = new HolderIndex(slots, seed);
    this.older = new HolderIndex(slots, seed);
    this.youngerSearch = new ChainSearch(this.younger);
    this.olderSearch = new ChainSearch(this.older);
  }

  get holders(): number {
    return this.younger.holders + this.older.holders;
  }

  get bytes(): number {
    return this.younger.bytes + this.older.bytes + this.youngerSearch.bytes + this.olderSearch.bytes;
  }

  get empty(): boolean {
    return this.younger.entries === 0 && this.older.entries === 0;
  }

  /** Predicts that `slot` will hold the chain until tick `expiry`. `keys`: pairs of low and high words. */
  put(keys: Int32Array, slot: number, expiry: number, tokensPerKey: number, now: number): void {
    const boundaries = boundaryCount(keys.length / 2);
    // Before and not between the keys of a chain, which belong in one generation.
    if (this.younger.holders > 0 && this.younger.holders + boundaries > this.generationHolders) this.turn();
    this.younger.sweep(SWEEP_PER_KEY * boundaries, now);
    for (let index = 0; index < boundaries; index++) {
      const position = POSITIONS[index];
      const tokens = Math.round((position + 1) * tokensPerKey);
      const low = keys[2 * position];
      const high = keys[2 * position + 1];
      if (!this.younger.put(low, high, slot, expiry, tokens, now)) return;
    }
  }

  /** Adds to `lookup` what both generations know of the chain. */
  read(keys: Int32Array, probeLimit: number, now: number, scratch: ChainDepths, lookup: Lookup): void {
    const boundaries = boundaryCount(keys.length / 2);
    const spare = this.older.entries === 0 ? 0 : probeLimit >> 1;
    this.youngerSearch.depths(keys, boundaries, POSITIONS, probeLimit - spare, now, scratch);
    lookup.addPredicted(scratch, POSITIONS);
    if (spare === 0) return;
    this.olderSearch.depths(keys, boundaries, POSITIONS, probeLimit - scratch.probes, now, scratch);
    lookup.addPredicted(scratch, POSITIONS);
  }

  private turn(): void {
    this.older = this.younger;
    this.olderSearch = this.youngerSearch;
    this.younger = new HolderIndex(this.slots, this.seed);
    this.youngerSearch = new ChainSearch(this.younger);
  }
}
