/** The one reused answer of a lookup: confirmed and predicted depths of the same slots side by side. */

import type { LookupResult } from "../types.ts";
import type { ChainDepths } from "./chain-depths.ts";

const INITIAL_ROWS = 64;

export class Lookup implements LookupResult {
  count = 0;
  slots = new Uint32Array(INITIAL_ROWS);
  confirmedDepth = new Uint32Array(INITIAL_ROWS);
  confirmedTokens = new Uint32Array(INITIAL_ROWS);
  predictedDepth = new Uint32Array(INITIAL_ROWS);
  predictedTokens = new Uint32Array(INITIAL_ROWS);
  probes = 0;
  truncated = false;
  /** Row of a slot; valid if that row names the slot. */
  private rowOf = new Int32Array(INITIAL_ROWS);

  /** Starts an answer that may name any slot below `slotCount`. */
  begin(slotCount: number): void {
    this.count = 0;
    this.probes = 0;
    this.truncated = false;
    if (slotCount <= this.rowOf.length) return;
    const rows = 1 << (32 - Math.clz32(slotCount - 1));
    this.rowOf = new Int32Array(rows);
    this.slots = new Uint32Array(rows);
    this.confirmedDepth = new Uint32Array(rows);
    this.confirmedTokens = new Uint32Array(rows);
    this.predictedDepth = new Uint32Array(rows);
    this.predictedTokens = new Uint32Array(rows);
  }

  addConfirmed(found: ChainDepths): void {
    this.account(found);
    for (let i = 0; i < found.count; i++) {
      const row = this.row(found.slots[i]);
      this.confirmedDepth[row] = found.positions[i] + 1;
      this.confirmedTokens[row] = found.tokens[i];
    }
  }

  /** `indices`: index in the chain of each position that was found. */
  addPredicted(found: ChainDepths, indices: Int32Array): void {
    this.account(found);
    for (let i = 0; i < found.count; i++) {
      const row = this.row(found.slots[i]);
      const depth = indices[found.positions[i]] + 1;
      if (depth <= this.predictedDepth[row]) continue;
      this.predictedDepth[row] = depth;
      this.predictedTokens[row] = found.tokens[i];
    }
  }

  private account(found: ChainDepths): void {
    this.probes += found.probes;
    if (found.truncated) this.truncated = true;
  }

  private row(slot: number): number {
    const known = this.rowOf[slot];
    if (known < this.count && this.slots[known] === slot) return known;
    const row = this.count++;
    this.rowOf[slot] = row;
    this.slots[row] = slot;
    this.confirmedDepth[row] = 0;
    this.confirmedTokens[row] = 0;
    this.predictedDepth[row] = 0;
    this.predictedTokens[row] = 0;
    return row;
  }
}
