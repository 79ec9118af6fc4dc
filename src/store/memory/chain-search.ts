/** How deep each holder holds a chain: bisection for the places where the set of holders changes (design D1). */

import type { ChainDepths } from "./chain-depths.ts";
import type { HolderIndex } from "./holder-index.ts";
import { MEMO_ENDS, RunMemo } from "./run-memo.ts";

/** Words of an interval that was put off: where it begins, what is there, where it ends, how many holders are there. */
const FRAME = 6;

/** No search can be allowed more probes than this. */
export const MAX_PROBES = 1_024;

/**
 * Holders are prefix-closed, so two entries of one chain have the same holders if they have as many. A chain is thus a
 * sequence of runs with ever fewer holders, and only the runs' ends matter.
 *
 * A lookup leaves the ends that it found behind. As long as they stay right, a run costs two probes (its last key and
 * the next) instead of a logarithm, and these places are known beforehand, so that the memory they lie in is fetched at
 * once and not one after the other.
 */
export class ChainSearch {
  private readonly index: HolderIndex;
  private readonly memo = new RunMemo();
  private readonly stack = new Int32Array(FRAME * MAX_PROBES);
  private readonly recalled = new Int32Array(MEMO_ENDS);
  /** Ends of the runs found, deepest first. */
  private readonly ends = new Int32Array(MAX_PROBES);
  /** Takes loads that only warm the cache, which a compiler could leave out otherwise. */
  protected sink = 0;

  constructor(index: HolderIndex) {
    this.index = index;
  }

  get bytes(): number {
    return this.memo.bytes;
  }

  /**
   * `keys`: pairs of low and high words; `positions`: the indices of the chain that can be held at all, null: every one
   * of the `length`. The deepest holders are placed first; when `limit` probes (at most `MAX_PROBES`) are spent, those
   * not yet placed get the deepest position at which they were seen, a lower bound.
   */
  depths(
    keys: Int32Array,
    length: number,
    positions: Int32Array | null,
    limit: number,
    now: number,
    out: ChainDepths,
  ): void {
    const { index, stack, recalled } = this;
    out.begin(index.slots.size);
    if (length === 0 || index.entries === 0) return;
    let known = this.recall(keys, positions, 0, length);
    const root = positions === null ? 0 : positions[0] * 2;
    let lowCount = index.probe(keys[root], keys[root + 1], now);
    let probes = 1;
    if (lowCount === 0) {
      out.probes = probes;
      return;
    }
    let low = 0;
    let lowBlock = index.probedBlock;
    let lowCapacity = index.probedCapacity;
    let high = length;
    let highCount = 0;
    let next = 0;
    /** Where the run of `low` is thought to end; below `low`: not known. */
    let guess = known > 0 ? recalled[next++] : -1;
    let surprised = false;
    let top = 0;
    let runs = 0;
    for (;;) {
      while (high - low > 1 && probes < limit) {
        let middle: number;
        if (guess === low) middle = low + 1;
        else if (guess > low) middle = guess < high ? guess : high - 1;
        else {
          middle = pivot(low, high);
          surprised = true;
        }
        const word = (positions === null ? middle : positions[middle]) * 2;
        const count = index.probe(keys[word], keys[word + 1], now);
        probes += 1;
        if (count === highCount) {
          high = middle;
          if (guess > low) guess = -1;
          continue;
        }
        if (count !== lowCount) {
          stack[top] = low;
          stack[top + 1] = lowBlock;
          stack[top + 2] = lowCapacity;
          stack[top + 3] = lowCount;
          stack[top + 4] = middle;
          stack[top + 5] = count;
          top += FRAME;
          if (guess === low) {
            if (next === known) {
              known = this.recall(keys, positions, middle, high);
              next = 0;
            }
            guess = next < known ? recalled[next++] : -1;
          } else guess = -1;
        }
        low = middle;
        lowBlock = index.probedBlock;
        lowCapacity = index.probedCapacity;
        lowCount = count;
      }
      if (high - low > 1) out.truncated = true;
      if (runs === 0) this.warmBlocks(top, lowBlock, lowCapacity);
      this.ends[runs++] = low;
      out.add(index.slab.page(lowBlock), index.slab.offset(lowBlock), lowCapacity, lowCount, low);
      if (top === 0) break;
      top -= FRAME;
      low = stack[top];
      lowBlock = stack[top + 1];
      lowCapacity = stack[top + 2];
      lowCount = stack[top + 3];
      high = stack[top + 4];
      highCount = stack[top + 5];
      guess = -1;
    }
    out.probes = probes;
    if (surprised) this.note(keys, positions, length, runs);
  }

  /** Recalls the ends of the runs from `start` on and fetches what lies around them; how many are known. */
  private recall(keys: Int32Array, positions: Int32Array | null, start: number, high: number): number {
    const word = (positions === null ? start : positions[start]) * 2;
    let sink = this.index.touch(keys[word], keys[word + 1]);
    const known = this.memo.recall(keys[word], keys[word + 1], this.recalled);
    for (let i = 0; i < known; i++) {
      const end = this.recalled[i];
      if (end >= high) break;
      const beyond = end + 1 < high ? end + 1 : end;
      const last = (positions === null ? end : positions[end]) * 2;
      const first = (positions === null ? beyond : positions[beyond]) * 2;
      sink ^= this.index.touch(keys[last], keys[last + 1]) ^ this.index.touch(keys[first], keys[first + 1]);
    }
    this.sink = sink;
    return known;
  }

  /** Fetches the blocks of the deepest run and of the intervals on the stack. */
  private warmBlocks(top: number, block: number, capacity: number): void {
    let sink = this.touchBlock(block, capacity);
    for (let frame = 0; frame < top; frame += FRAME) {
      sink ^= this.touchBlock(this.stack[frame + 1], this.stack[frame + 2]);
    }
    this.sink = sink;
  }

  private touchBlock(block: number, capacity: number): number {
    const page = this.index.slab.page(block);
    const start = this.index.slab.offset(block);
    return page[start] ^ page[start + capacity];
  }

  /** Notes where the runs end: with the first key, and with each from which what is noted there leads no further. */
  private note(keys: Int32Array, positions: Int32Array | null, length: number, runs: number): void {
    const { ends, memo } = this;
    memo.fit(this.index.entries);
    ends.subarray(0, runs).reverse();
    // A run that reaches the prompt's end may well go on in a longer prompt.
    const real = ends[runs - 1] === length - 1 ? runs - 1 : runs;
    for (let run = 0; run < real; ) {
      const start = run === 0 ? 0 : ends[run - 1] + 1;
      const word = (positions === null ? start : positions[start]) * 2;
      run += memo.note(keys[word], keys[word + 1], ends, run, real);
    }
  }
}

/**
 * The position in (low, high) that is divisible by the highest power of two. Prompts of different lengths with a common
 * beginning are thus probed at the same places, which keeps those entries in the processor's caches.
 */
function pivot(low: number, high: number): number {
  const last = high - 1;
  const shift = 31 - Math.clz32(low ^ last);
  return (last >>> shift) << shift;
}
