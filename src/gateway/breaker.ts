/** Per-worker circuit breakers, local to this gateway: who failed lately is left alone, then probed by one request at a time. */

const FAILURES_TO_OPEN = 3;
const FIRST_OPEN_MS = 1_000;
const LONGEST_OPEN_MS = 30_000;
/** A probe that never reports back frees its slot after this long. */
const PROBE_LEASE_MS = 30_000;

export type BreakerState = "closed" | "open" | "half-open";

/**
 * How a try went. `started`: first data has come, which lets others in, but only a whole answer makes earlier failures forgotten.
 * `neutral` says nothing of the worker's health: busy, or the client left.
 */
export type TryResult = "started" | "success" | "failure" | "neutral";

interface Breaker {
  readonly incarnation: string;
  consecutiveFailures: number;
  openMs: number;
  openUntilMs: number;
  /** Time until which a probe holds the one slot; 0: nobody does. */
  probeUntilMs: number;
}

/** Times are milliseconds of the caller's monotonic clock. A new incarnation of a worker starts afresh. */
export class Breakers {
  private readonly breakers = new Map<string, Breaker>();

  state(worker: string, incarnation: string, nowMs: number): BreakerState {
    const breaker = this.find(worker, incarnation);
    if (breaker === null || breaker.openUntilMs === 0) return "closed";
    return nowMs < breaker.openUntilMs ? "open" : "half-open";
  }

  /** Why the worker may not be tried now; null: it may. */
  refusal(worker: string, incarnation: string, nowMs: number): string | null {
    if (this.breakers.size === 0) return null;
    const state = this.state(worker, incarnation, nowMs);
    if (state === "closed") return null;
    if (state === "open") return "breaker open";
    return this.breakers.get(worker)!.probeUntilMs > nowMs ? "breaker half-open, being probed" : null;
  }

  /** Takes the probe slot if the breaker is half-open. False: the worker may not be tried. */
  admit(worker: string, incarnation: string, nowMs: number): boolean {
    if (this.refusal(worker, incarnation, nowMs) !== null) return false;
    const breaker = this.find(worker, incarnation);
    if (breaker !== null && breaker.openUntilMs > 0) breaker.probeUntilMs = nowMs + PROBE_LEASE_MS;
    return true;
  }

  report(worker: string, incarnation: string, result: TryResult, nowMs: number): void {
    if (result === "failure") this.fail(worker, incarnation, nowMs);
    else if (result === "success") this.breakers.delete(worker);
    else {
      const breaker = this.find(worker, incarnation);
      if (breaker === null) return;
      breaker.probeUntilMs = 0;
      if (result === "started") breaker.openUntilMs = 0;
    }
  }

  private fail(worker: string, incarnation: string, nowMs: number): void {
    let breaker = this.find(worker, incarnation);
    if (breaker === null) {
      breaker = { incarnation, consecutiveFailures: 0, openMs: 0, openUntilMs: 0, probeUntilMs: 0 };
      this.breakers.set(worker, breaker);
    }
    breaker.consecutiveFailures++;
    breaker.probeUntilMs = 0;
    // Failures of requests that were under way when it opened do not prolong the pause.
    if (breaker.consecutiveFailures < FAILURES_TO_OPEN || nowMs < breaker.openUntilMs) return;
    breaker.openMs = Math.min(LONGEST_OPEN_MS, breaker.openMs === 0 ? FIRST_OPEN_MS : breaker.openMs * 2);
    breaker.openUntilMs = nowMs + breaker.openMs;
  }

  private find(worker: string, incarnation: string): Breaker | null {
    const breaker = this.breakers.get(worker);
    if (breaker === undefined) return null;
    if (breaker.incarnation === incarnation) return breaker;
    this.breakers.delete(worker);
    return null;
  }
}
