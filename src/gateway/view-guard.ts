/** Between a gateway and its view: deadlines, pauses while the view is out of reach, the fleet as last known (design D8). */

import { KedgeError } from "../errors/index.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { MaybePromise, ViewRead, ViewStore } from "../store/types.ts";
import type { Clock, GatewayDeps } from "./deps.ts";
import { KnownFleet } from "./known-fleet.ts";
import type { GatewayMetrics } from "./metrics.ts";
import { QuietLog } from "./quiet-log.ts";

/** After so many failures in a row nobody waits for the view any more but one request per pause. */
const FAILURES_TO_PAUSE = 3;
const PAUSE_MS = 1_000;
/** While no fleet at all is known there is nothing to fall back to, and the first answer of a view may take several round trips. */
const COLD_DEADLINE_MS = 500;
/** A timer that fires later than this was kept waiting by the process itself. */
const OVERSLEPT_MS = 5;
/** For settings, which nobody's prompt waits for. */
const ADMIN_DEADLINE_MS = 2_000;

/** What is left of the time that one request may wait for the view, in milliseconds. */
export interface ViewBudget {
  leftMs: number;
}

interface Flight {
  readonly rows: Promise<readonly FleetRow[]>;
  readonly startMs: number;
}

export class ViewGuard {
  readonly known: KnownFleet;
  private readonly store: ViewStore;
  private readonly clock: Clock;
  private readonly deadlineMs: number;
  private readonly metrics: GatewayMetrics;
  private readonly log: QuietLog;
  private failures = 0;
  private pausedUntilMs = Number.NEGATIVE_INFINITY;
  private answeredAtMs = Number.NEGATIVE_INFINITY;
  private flight: Flight | null = null;

  constructor({ config, store, clock, log, seedFleet }: GatewayDeps, metrics: GatewayMetrics) {
    this.store = store;
    this.clock = clock;
    this.deadlineMs = config.store.deadlineMs;
    this.metrics = metrics;
    this.log = new QuietLog(log, clock);
    this.known = new KnownFleet(() => clock.now(), seedFleet);
  }

  /** Shared by all that one request asks of the view. */
  budget(): ViewBudget {
    return { leftMs: this.deadlineMs };
  }

  /** Another request is asking for the fleet. */
  get flying(): boolean {
    return this.flight !== null && this.clock.now() - this.flight.startMs < this.deadlineMs;
  }

  /** False while requests do without the view. */
  get reachable(): boolean {
    return this.failures < FAILURES_TO_PAUSE;
  }

  /** A prompt's depths and the model's rows. Null: out of reach, in time; never rejects. */
  read(model: string, keys: BigUint64Array, budget: ViewBudget): MaybePromise<ViewRead | null> {
    const keep = (view: ViewRead): ViewRead => {
      const fleet = this.known.take(model, view);
      return fleet === view.fleet ? view : { ...view, fleet };
    };
    return this.ask(() => this.store.read(model, keys), budget, keep);
  }

  /** Rows of all models, from a copy of at most `maxAgeMs`. Null: out of reach, in time; never rejects. */
  fleet(maxAgeMs: number, budget: ViewBudget): MaybePromise<readonly FleetRow[] | null> {
    const keep = (rows: readonly FleetRow[]) => this.known.takeAll(this.store.epoch, rows);
    const limit = this.known.isEmpty ? { leftMs: Math.max(COLD_DEADLINE_MS, this.deadlineMs) } : budget;
    return this.ask(() => this.fly(maxAgeMs), limit, keep);
  }

  /** Reads or writes a setting. Errors: `view_unavailable`, in time. */
  setting<T>(action: () => MaybePromise<T>): MaybePromise<T> {
    const done = this.ask(
      () => boxed(action()),
      { leftMs: ADMIN_DEADLINE_MS },
      (box) => box,
    );
    return done instanceof Promise ? done.then(unboxed) : unboxed(done);
  }

  /** A write that nobody waits for; failures are only logged. `keepAlive` gets it if it is not done at once. */
  write(action: () => MaybePromise<void>, keepAlive: (work: Promise<unknown>) => void): void {
    // It would fail, and hold a connection until it does.
    if (!this.reachable) return;
    const warn = (error: unknown) =>
      this.log.warn("A write to the view failed.", { error: String(error), code: codeOf(error) });
    try {
      const done = action();
      if (done instanceof Promise) keepAlive(done.catch(warn));
    } catch (error) {
      warn(error);
    }
  }

  /** Several requests that ask at once share one answer; each has its own deadline. */
  private fly(maxAgeMs: number): MaybePromise<readonly FleetRow[]> {
    const startMs = this.clock.now();
    // An edge host may drop a flight together with the request that began it: an old one is waited for no more.
    if (this.flight !== null && this.flying) return this.flight.rows;
    const rows = this.store.fleet(maxAgeMs);
    if (!(rows instanceof Promise)) return rows;
    const flight: Flight = { rows, startMs };
    this.flight = flight;
    const land = () => {
      if (this.flight === flight) this.flight = null;
    };
    rows.then(land, land);
    return rows;
  }

  private ask<T>(
    question: () => MaybePromise<T>,
    budget: ViewBudget,
    keep: (answer: T) => T,
  ): MaybePromise<T | null> {
    if (budget.leftMs <= 0 || this.isPaused()) {
      this.metrics.viewSkipped.inc();
      return null;
    }
    try {
      const answer = question();
      if (answer instanceof Promise) return this.await(answer, budget, keep);
      this.succeed();
      return keep(answer);
    } catch (error) {
      this.fail(error);
      return null;
    }
  }

  private await<T>(answer: Promise<T>, budget: ViewBudget, keep: (answer: T) => T): Promise<T | null> {
    const { clock, metrics } = this;
    const startMs = clock.now();
    return new Promise((resolve) => {
      let waiting = true;
      const settle = (result: T | null): void => {
        waiting = false;
        clock.clearTimeout(timer);
        const waitedMs = clock.now() - startMs;
        budget.leftMs -= waitedMs;
        metrics.viewRead.observe(waitedMs / 1_000);
        resolve(result);
      };
      const giveUp = (): void => {
        // An edge host may deliver the answer while another request is at work, whose timers are not this one's to clear.
        if (!waiting) return;
        this.fail(tooLate());
        // Nothing more is asked for this request, however coarse the clock.
        budget.leftMs = 0;
        settle(null);
      };
      const dueMs = startMs + budget.leftMs;
      let timer = clock.setTimeout(() => {
        // A process that was busy past the deadline may have the answer before it, unread.
        if (waiting && clock.now() - dueMs > OVERSLEPT_MS) timer = clock.setTimeout(giveUp, 0);
        else giveUp();
      }, budget.leftMs);
      answer
        .then((value) => {
          if (waiting) {
            this.succeed();
            settle(keep(value));
            // Too late for its request, and still the newest that is known of the fleet.
          } else if (startMs > this.answeredAtMs) keep(value);
        })
        .catch((error) => {
          if (!waiting) return;
          this.fail(error);
          settle(null);
        });
    });
  }

  /** True: do without. At the end of a pause one request finds out for all, and the pause goes on for the others. */
  private isPaused(): boolean {
    if (this.reachable) return false;
    const nowMs = this.clock.now();
    if (nowMs < this.pausedUntilMs) return true;
    this.pausedUntilMs = nowMs + PAUSE_MS;
    return false;
  }

  private succeed(): void {
    this.answeredAtMs = this.clock.now();
    if (!this.reachable) this.log.warn("The view answers again.", {});
    this.failures = 0;
    this.metrics.viewUnavailable.set(0);
  }

  /** The log tells of single failures, seldom, and of the change; while it lasts the metrics count. */
  private fail(error: unknown): void {
    const wasReachable = this.reachable;
    this.failures++;
    this.pausedUntilMs = this.clock.now() + PAUSE_MS;
    if (!this.reachable) this.metrics.viewUnavailable.set(1);
    const code = codeOf(error);
    this.metrics.viewErrors.labels(code).inc();
    if (!wasReachable) return;
    const message = this.reachable
      ? "The view did not answer a request, which is routed by the last known fleet."
      : "The view is out of reach; requests are routed by the last known fleet.";
    this.log.warn(message, { code, error: error instanceof Error ? error.message : String(error) });
  }
}

export function viewUnavailable(): KedgeError {
  return new KedgeError(
    "view_unavailable",
    "The fleet's state is out of reach and no worker is known; retry later.",
    { retryAfterSeconds: 1 },
  );
}

const tooLate = () => new KedgeError("deadline_exceeded", "The view did not answer in time.");

const codeOf = (error: unknown): string => (error instanceof KedgeError ? error.code : "internal_error");

interface Box<T> {
  readonly value: T;
}

function boxed<T>(value: MaybePromise<T>): MaybePromise<Box<T>> {
  return value instanceof Promise ? value.then((one) => ({ value: one })) : { value };
}

function unboxed<T>(box: Box<T> | null): T {
  if (box === null) {
    throw new KedgeError("view_unavailable", "The view is out of reach; retry later.", {
      retryAfterSeconds: 1,
    });
  }
  return box.value;
}
