/** Physical copies per block, group and tier: what is announced, what is removed, and what can never have been real. */

import { type Block, TIER_COUNT } from "./block.ts";

/**
 * Engines announce and remove each physical copy by itself, so copies are counted. But in the report mode `full` they
 * announce cached chains once more without a copy, and nothing tells that from a chain computed twice (a request that may not read the
 * cache). Such copies are *doubtful*. They are counted while the device has room for them: a phantom does harm only when blocks are evicted,
 * which happens in a full cache, where phantoms show as more copies than blocks; then all doubtful ones are dropped. If
 * the capacity is not known they are not counted at all.
 */
export class Copies {
  /** Times that copies were dropped because there were more than the device has blocks. */
  recounts = 0;
  readonly #capacity: number | null;
  readonly #onChange: (block: Block) => void;
  readonly #doubtful = new Map<Block, number[]>();
  #onDevice = 0;
  #limit: number;

  /** Blocks with doubtful copies. */
  get doubted(): number {
    return this.#doubtful.size;
  }

  /** `capacityBlocks` includes the null block, as engines count; `onChange`: the first copy came or the last one went. */
  constructor(capacityBlocks: number | null, onChange: (block: Block) => void) {
    this.#capacity = capacityBlocks === null ? null : capacityBlocks - 1;
    this.#limit = this.#capacity ?? Number.POSITIVE_INFINITY;
    this.#onChange = onChange;
  }

  /** `at`: group index · 3 + tier. */
  add(block: Block, at: number, doubtful: boolean): void {
    const copies = block.copies[at] ?? 0;
    if (doubtful && copies > 0) {
      if (this.#capacity === null || at % TIER_COUNT !== 0) return;
      const doubts = this.#doubtful.get(block) ?? [];
      doubts[at] = (doubts[at] ?? 0) + 1;
      this.#doubtful.set(block, doubts);
    }
    while (block.copies.length < at) block.copies.push(0);
    this.#set(block, at, copies + 1);
  }

  /** False if there is none. */
  remove(block: Block, at: number): boolean {
    const copies = block.copies[at] ?? 0;
    if (copies === 0) return false;
    this.#set(block, at, copies - 1);
    return true;
  }

  /** The block leaves with whatever copies it has. */
  drop(block: Block): void {
    for (let at = 0; at < block.copies.length; at += TIER_COUNT) this.#onDevice -= block.copies[at] ?? 0;
    this.#doubtful.delete(block);
  }

  /** Drops what cannot be real if there is more than the device holds: doubtful copies, then all but one of each block. */
  check(blocks: Iterable<Block>): void {
    if (this.#onDevice <= this.#limit) return;
    this.recounts++;
    for (const [block, doubts] of [...this.#doubtful]) {
      for (const [at, count = 0] of doubts.entries()) {
        this.#set(block, at, Math.max(0, (block.copies[at] ?? 0) - count));
      }
    }
    this.#doubtful.clear();
    if (this.#onDevice <= this.#limit) return;
    for (const block of blocks) {
      for (let at = 0; at < block.copies.length; at += TIER_COUNT) {
        if ((block.copies[at] ?? 0) > 1) this.#set(block, at, 1);
      }
    }
    // Should lost removals keep the count above capacity, the next walk waits until it has grown by an eighth.
    this.#limit = Math.max(this.#limit, Math.ceil(this.#onDevice * 1.125));
  }

  #set(block: Block, at: number, copies: number): void {
    const before = block.copies[at] ?? 0;
    block.copies[at] = copies;
    block.totalCopies += copies - before;
    if (at % TIER_COUNT === 0) this.#onDevice += copies - before;
    if (copies === 0) this.#forgetDoubts(block, at);
    if ((before === 0) !== (copies === 0)) this.#onChange(block);
  }

  /** A block without doubts is not kept: it may be gone for good. */
  #forgetDoubts(block: Block, at: number): void {
    const doubts = this.#doubtful.get(block);
    if (doubts === undefined) return;
    doubts[at] = 0;
    if (doubts.every((count = 0) => count === 0)) this.#doubtful.delete(block);
  }
}
