/** Time that one call of the store may take, all of its round trips included. */

import { KedgeError } from "../../errors/index.ts";

/** Timers of the host. */
export interface StoreClock {
  /** Milliseconds; only differences count. */
  now(): number;
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

export class Deadline {
  private readonly controller = new AbortController();
  private readonly clock: StoreClock;
  private readonly timer: unknown;
  private readonly waiting = new Set<(reason: KedgeError) => void>();
  private readonly limitMs: number;

  constructor(clock: StoreClock, limitMs: number) {
    this.clock = clock;
    this.limitMs = limitMs;
    this.timer = clock.setTimeout(() => this.expire(), limitMs);
  }

  /** Aborted when the time is over. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** `promise`, or `view_unavailable` once the time is over; what comes later is dropped. */
  race<T>(promise: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      if (this.signal.aborted) reject(this.error());
      this.waiting.add(reject);
      const settled = () => this.waiting.delete(reject);
      promise.then(
        (value) => {
          settled();
          resolve(value);
        },
        (reason) => {
          settled();
          reject(reason);
        },
      );
    });
  }

  end(): void {
    this.clock.clearTimeout(this.timer);
  }

  private expire(): void {
    const error = this.error();
    for (const reject of this.waiting) reject(error);
    this.waiting.clear();
    this.controller.abort(error);
  }

  private error(): KedgeError {
    return new KedgeError("view_unavailable", `The view did not answer within ${this.limitMs} ms.`);
  }
}
