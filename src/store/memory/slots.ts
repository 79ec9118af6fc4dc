/** Small integers for (worker, rank, incarnation, tier): allotted, made inert in O(1), reused when nothing can name them. */

export class SlotTable {
  /** 1: entries that name this slot are void. Grows with the number of slots. */
  inert = new Uint8Array(64);
  /** +1 whenever slots become inert: an entry last looked at under an older generation must be looked at again. */
  generation = 0;
  private allotted = 0;
  /** Inert slots in the order of their release, with the tick from which they may be reused. */
  private waiting: { slot: number; freeAt: number }[] = [];
  /** How many of them are reused already: taking from an array's front would move all the others. */
  private taken = 0;

  /** Slots ever allotted; all are below this. */
  get size(): number {
    return this.allotted;
  }

  allot(now: number): number {
    const first = this.waiting[this.taken];
    if (first !== undefined && first.freeAt <= now) {
      this.taken += 1;
      if (this.taken * 2 > this.waiting.length) this.dropTaken();
      this.inert[first.slot] = 0;
      return first.slot;
    }
    if (this.allotted === this.inert.length) {
      const wider = new Uint8Array(this.allotted * 2);
      wider.set(this.inert);
      this.inert = wider;
    }
    return this.allotted++;
  }

  /** `freeAt`: a tick at which every lease of these slots has ended. Ticks of successive calls must not decrease. */
  retire(slots: Iterable<number>, freeAt: number): void {
    for (const slot of slots) {
      this.inert[slot] = 1;
      this.waiting.push({ slot, freeAt });
    }
    this.generation += 1;
  }

  private dropTaken(): void {
    this.waiting = this.waiting.slice(this.taken);
    this.taken = 0;
  }
}
