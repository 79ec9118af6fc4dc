/** Load reports of all workers folded into one write: newest load per rank, the admitted request ids of all of them (design D6). */

import { DEFAULT_LIVENESS } from "../fleet/rules.ts";
import type { LoadReport } from "../fleet/types.ts";
import type { MaybePromise, ReportOutcome, ViewStore } from "../store/types.ts";
import { idOf } from "./feeds.ts";
import type { IndexerFigures } from "./figures.ts";
import { after, finallyDo, guarded, type Timers } from "./maybe.ts";

export interface LoadFolderOptions {
  readonly store: Pick<ViewStore, "report">;
  readonly now: () => number;
  /** Null: reports are written as they come. */
  readonly timers: Timers | null;
  /** Time between two writes. */
  readonly foldMs: number;
  /** The own heartbeat must have come round without a gap for so long before ranks may be judged by their silence. */
  readonly graceMs: number;
  readonly figures: IndexerFigures;
  readonly onWritten: (reports: readonly LoadReport[], outcomes: readonly ReportOutcome[]) => void;
  readonly onFailed: (thrown: unknown) => void;
}

interface Pending {
  report: LoadReport;
  readonly admitted: string[];
  /** Reports joined in this one. */
  count: number;
}

/** Ids kept per rank while the view cannot be written; a reservation's own expiry is the backstop for the others. */
const MAX_ADMITTED = 4_096;
/** Of all ranks together: a write that has become too large for the view would never succeed. */
const MAX_ADMITTED_OF_ALL = 16_384;
/** Ranks kept likewise. */
const MAX_RANKS = 16_384;

export class LoadFolder {
  readonly #options: LoadFolderOptions;
  #pending = new Map<string, Pending>();
  /** Ids in all of these. */
  #admitted = 0;
  #heartbeat = false;
  #writing = false;
  #timer: unknown = null;
  #running = false;
  #beatAtMs = Number.NEGATIVE_INFINITY;
  #beatingSinceMs = Number.NEGATIVE_INFINITY;
  #whenIdle: (() => void)[] = [];

  constructor(options: LoadFolderOptions) {
    this.#options = options;
  }

  start(): void {
    if (this.#running) return;
    this.#running = true;
    this.#beatAtMs = Number.NEGATIVE_INFINITY;
    this.#arm();
  }

  /** Writes what is there once more. Resolves when that was tried. */
  async stop(): Promise<void> {
    this.#running = false;
    if (this.#timer !== null) this.#options.timers?.clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#writing) await new Promise<void>((resolve) => this.#whenIdle.push(resolve));
    await this.#write();
    if (this.#running) return;
    this.#pending.clear();
    this.#admitted = 0;
  }

  offer(report: LoadReport): void {
    this.#join(report, report.admitted, 1);
    if (this.#options.timers === null) this.#write();
  }

  /**
   * The indexer's own heartbeat came round. After an outage of the bus agents come back one by one, and after one of the indexer
   * everybody seems to have been silent: until the bus has carried for a while, silence proves nothing.
   */
  beat(): void {
    const nowMs = this.#options.now();
    if (nowMs - this.#beatAtMs > DEFAULT_LIVENESS.heartbeatFreshMs) this.#beatingSinceMs = nowMs;
    this.#beatAtMs = nowMs;
    if (nowMs - this.#beatingSinceMs < this.#options.graceMs) return;
    this.#heartbeat = true;
    if (this.#options.timers === null) this.#write();
  }

  #join(report: LoadReport, admitted: readonly string[], count: number): void {
    const id = idOf(report);
    const before = this.#pending.get(id);
    if (before === undefined && this.#pending.size >= MAX_RANKS) return;
    const pending = before ?? { report, admitted: [], count: 0 };
    if (before === undefined) this.#pending.set(id, pending);
    pending.count += count;
    this.#admit(pending.admitted, admitted);
    if (report.sequence > pending.report.sequence) pending.report = report;
  }

  /** The oldest go first. */
  #admit(kept: string[], more: readonly string[]): void {
    for (const id of more) kept.push(id);
    this.#admitted += more.length;
    const excess = Math.max(kept.length - MAX_ADMITTED, this.#admitted - MAX_ADMITTED_OF_ALL);
    if (excess <= 0) return;
    const lost = kept.splice(0, excess).length;
    this.#admitted -= lost;
    this.#options.figures.admissionsLost += lost;
  }

  #arm(): void {
    const { timers, foldMs } = this.#options;
    if (timers === null || !this.#running) return;
    this.#timer = timers.setTimeout(() => {
      this.#arm();
      this.#write();
    }, foldMs);
  }

  /** One write at a time; what comes meanwhile goes into the next. */
  #write(): MaybePromise<void> {
    if (this.#writing || (this.#pending.size === 0 && !this.#heartbeat)) return;
    const { store, figures, timers } = this.#options;
    const taken = this.#pending;
    const heartbeat = this.#heartbeat;
    const reports = [...taken.values()].map(({ report, admitted }) => ({ ...report, admitted }));
    this.#pending = new Map();
    this.#admitted = 0;
    this.#heartbeat = false;
    this.#writing = true;
    figures.reportCalls += 1;
    let failed = false;
    const written = guarded(
      () =>
        after(store.report(reports, heartbeat), (outcomes) => {
          for (const { count } of taken.values()) figures.reports += count;
          if (heartbeat) figures.heartbeats += 1;
          this.#writing = false;
          this.#options.onWritten(reports, outcomes);
        }),
      (thrown) => {
        failed = this.#writing;
        if (failed) this.#putBack(taken);
        this.#options.onFailed(thrown);
      },
    );
    finallyDo(written, () => {
      this.#writing = false;
      for (const resolve of this.#whenIdle.splice(0)) resolve();
      if (timers === null && !failed) this.#write();
    });
    return written;
  }

  /** What could not be written goes with the next; a heartbeat does not, for it would be a lie by then. */
  #putBack(taken: ReadonlyMap<string, Pending>): void {
    const newer = this.#pending;
    this.#pending = new Map(taken);
    this.#admitted = 0;
    for (const { admitted } of taken.values()) this.#admitted += admitted.length;
    for (const { report, admitted, count } of newer.values()) this.#join(report, admitted, count);
  }
}
