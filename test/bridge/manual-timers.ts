/** One-shot timers for tests that own time. */

/** Timers that fire when time is moved. */
export class ManualTimers {
  nowMs = 0;
  readonly #due = new Map<number, { at: number; callback: () => void }>();
  #next = 1;

  setTimeout(callback: () => void, delayMs: number): unknown {
    this.#due.set(this.#next, { at: this.nowMs + delayMs, callback });
    return this.#next++;
  }

  clearTimeout(handle: unknown): void {
    this.#due.delete(handle as number);
  }

  advance(ms: number): void {
    const end = this.nowMs + ms;
    for (;;) {
      const [next] = [...this.#due].filter(([, { at }]) => at <= end).sort(([, a], [, b]) => a.at - b.at);
      if (next === undefined) break;
      this.#due.delete(next[0]);
      this.nowMs = next[1].at;
      next[1].callback();
    }
    this.nowMs = end;
  }
}
