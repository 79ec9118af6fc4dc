/** Time for the mock: the wall clock, and a clock that tests turn by hand. */

export interface Clock {
  /** Milliseconds, monotonic. */
  nowMs(): number;
  /** Unix seconds, for what is said to clients. */
  unixSeconds(): number;
  /** Calls once at `dueMs` or as soon as possible after; the result cancels. */
  at(dueMs: number, call: () => void): () => void;
}

/** The wall clock. A due time that has passed runs in the next turn of the event loop, so I/O goes on between steps. */
export const wallClock: Clock = {
  nowMs: () => performance.now(),
  unixSeconds: () => Date.now() / 1000,
  at(dueMs, call) {
    const waitMs = dueMs - performance.now();
    // Node fires a timer up to a millisecond late and never early: rounding down keeps the error centred.
    if (waitMs < 1) {
      const immediate = setImmediate(call);
      return () => clearImmediate(immediate);
    }
    const timer = setTimeout(call, Math.floor(waitMs));
    return () => clearTimeout(timer);
  },
};

/** A clock that stands still until it is told to move. */
export class ManualClock implements Clock {
  #now = 0;
  readonly #queue: { readonly dueMs: number; readonly call: () => void }[] = [];

  nowMs(): number {
    return this.#now;
  }

  unixSeconds(): number {
    return 1_800_000_000 + this.#now / 1000;
  }

  at(dueMs: number, call: () => void): () => void {
    const entry = { dueMs, call };
    this.#queue.push(entry);
    return () => {
      const index = this.#queue.indexOf(entry);
      if (index >= 0) this.#queue.splice(index, 1);
    };
  }

  /** Runs everything that is due within `ms`, in order of time. */
  advance(ms: number): void {
    const end = this.#now + ms;
    for (;;) {
      const next = this.#earliest();
      if (next === null || next.dueMs > end) break;
      this.#run(next);
    }
    this.#now = end;
  }

  /** Runs until nothing is due any more. */
  drain(): void {
    for (let next = this.#earliest(); next !== null; next = this.#earliest()) this.#run(next);
  }

  #earliest(): { readonly dueMs: number; readonly call: () => void } | null {
    let best = this.#queue[0] ?? null;
    for (const entry of this.#queue) if (best !== null && entry.dueMs < best.dueMs) best = entry;
    return best;
  }

  #run(entry: { readonly dueMs: number; readonly call: () => void }): void {
    this.#queue.splice(this.#queue.indexOf(entry), 1);
    this.#now = Math.max(this.#now, entry.dueMs);
    entry.call();
  }
}
