/** What one bisection found: the holders of a chain and the deepest position that each holds. Reused, never reallocated. */

/** Structure of arrays, one row per holder; the first `count` rows are valid until the next bisection. */
export class ChainDepths {
  count = 0;
  slots = new Int32Array(64);
  /** Index of the deepest position held. */
  positions = new Int32Array(64);
  /** Tokens of the slot's cell there. */
  tokens = new Int32Array(64);
  probes = 0;
  truncated = false;
  /** Per slot: the serial of the last bisection that placed it. */
  private seen = new Int32Array(64);
  private serial = 0;

  begin(slotCount: number): void {
    this.count = 0;
    this.probes = 0;
    this.truncated = false;
    this.serial = (this.serial + 1) | 0;
    if (slotCount > this.seen.length) this.reserve(slotCount);
  }

  /**
   * Places the holders of a block at `position`, save those that were placed deeper before. `start`: the block's offset
   * in its page; `capacity`: distance from a holder's slot to its tokens.
   */
  add(page: Int32Array, start: number, capacity: number, holders: number, position: number): void {
    for (let cell = start; cell < start + holders; cell++) {
      const slot = page[cell];
      if (this.seen[slot] === this.serial) continue;
      this.seen[slot] = this.serial;
      const row = this.count++;
      this.slots[row] = slot;
      this.positions[row] = position;
      this.tokens[row] = page[cell + capacity];
      // All who were placed deeper are among these holders, so nobody is left.
      if (row + 1 === holders) return;
    }
  }

  private reserve(slotCount: number): void {
    const length = 1 << (32 - Math.clz32(slotCount - 1));
    this.seen = new Int32Array(length);
    this.slots = new Int32Array(length);
    this.positions = new Int32Array(length);
    this.tokens = new Int32Array(length);
    this.serial = 1;
  }
}
