/** Who of several indexers works: the holder of a lease in the view, kept by renewing it (design §2, active and standby). */

import { type KedgeError, toKedgeError } from "../errors/index.ts";
import type { LeaderLease } from "../store/types.ts";
import { after, finallyDo, guarded } from "./maybe.ts";

/** `suspended`: led, but the lease could not be renewed for its whole life: another may lead by now. */
export type LeaderState = "standby" | "leading" | "suspended";

export interface LeadershipOptions {
  readonly lease: LeaderLease;
  /** Life of the lease; it is renewed three times in that time. */
  readonly ttlMs: number;
  readonly now: () => number;
  /** Granted or not, whoever keeps the lease is in reach. */
  readonly onAnswer: () => void;
  /** `before`: null at the first answer. */
  readonly onChange: (state: LeaderState, before: LeaderState | null) => void;
  readonly onError: (error: KedgeError) => void;
}

export class Leadership {
  readonly #options: LeadershipOptions;
  #state: LeaderState | null = null;
  #renewing = false;
  #askedAtMs = Number.NEGATIVE_INFINITY;
  /** When the last renewal that was granted had been asked for. */
  #heldSinceMs = Number.NEGATIVE_INFINITY;
  #ended = false;

  constructor(options: LeadershipOptions) {
    this.#options = options;
  }

  /** To be called about once a second. */
  tick(): void {
    const { lease, ttlMs, now, onError } = this.#options;
    const nowMs = now();
    if (this.#state === "leading" && nowMs - this.#heldSinceMs >= ttlMs) this.#become("suspended");
    // Ticks come a little early or late; a third of the life is not to become two ticks more.
    if (this.#renewing || this.#ended || nowMs - this.#askedAtMs < ttlMs / 3 - 100) return;
    this.#renewing = true;
    this.#askedAtMs = nowMs;
    const renewed = guarded(
      () =>
        after(lease.renew(), (held) => {
          if (this.#ended) return;
          this.#options.onAnswer();
          if (held) this.#heldSinceMs = nowMs;
          this.#become(held ? "leading" : "standby");
        }),
      (thrown) => onError(toKedgeError(thrown)),
    );
    finallyDo(renewed, () => {
      this.#renewing = false;
    });
  }

  /** Asks no more and gives the lease up. Errors are told and end nothing. */
  async release(): Promise<void> {
    this.#ended = true;
    const { lease, onError } = this.#options;
    if (this.#state === null || this.#state === "standby") return;
    this.#state = "standby";
    try {
      await lease.release();
    } catch (thrown) {
      onError(toKedgeError(thrown));
    }
  }

  #become(state: LeaderState): void {
    const before = this.#state;
    if (state === before) return;
    this.#state = state;
    this.#options.onChange(state, before);
  }
}
