/** The indexer's figures as metrics: lag per rank, counters of its work. */

import type { Counter, Family, Gauge, Registry } from "../telemetry/registry.ts";
import type { IndexerFigures } from "./figures.ts";
import type { Indexer } from "./indexer.ts";

/** Figure → metric and its outcome label. */
const COUNTERS: Readonly<Record<keyof IndexerFigures, readonly [metric: string, label: string]>> = {
  batchesApplied: ["batches", "applied"],
  batchesDuplicate: ["batches", "duplicate"],
  batchesBehindGap: ["batches", "gap"],
  batchesRefused: ["batches", "refused"],
  batchesOverflown: ["batches", "overflown"],
  snapshotsRequested: ["snapshots", "requested"],
  snapshotsApplied: ["snapshots", "applied"],
  snapshotsFailed: ["snapshots", "failed"],
  reports: ["load_reports", "folded"],
  admissionsLost: ["load_reports", "admission_lost"],
  heartbeats: ["heartbeats", "written"],
  registrationsWritten: ["registrations", "written"],
  registrationsSkipped: ["registrations", "skipped"],
  rollCalls: ["registrations", "roll_call"],
  applyCalls: ["store_calls", "apply"],
  reportCalls: ["store_calls", "report"],
  otherCalls: ["store_calls", "other"],
  storeErrors: ["store_calls", "failed"],
};

const HELP: Readonly<Record<string, string>> = {
  batches: "KV batches by what became of them.",
  snapshots: "Snapshots requested, applied, and not come or refused.",
  load_reports: "Load reports folded into the view, and admissions lost on the way.",
  heartbeats: "Own heartbeats in the view: while they come, a silent worker counts as dead.",
  registrations: "Registrations written and skipped, and roll calls.",
  store_calls: "Calls to the view, and how many failed.",
};

export class IndexerMetrics {
  readonly #indexer: Indexer;
  readonly #counters = new Map<string, Family<Counter>>();
  readonly #counted = new Map<string, number>();
  readonly #lagEvents: Family<Gauge>;
  readonly #lagMs: Family<Gauge>;
  readonly #leading: Gauge;
  readonly #queued: Gauge;
  readonly #ranks: Gauge;
  /** Labels that the lag gauges have now. */
  #labels = new Map<string, readonly [string, string]>();

  constructor(indexer: Indexer, registry: Registry) {
    this.#indexer = indexer;
    for (const [metric, help] of Object.entries(HELP)) {
      const name = `kedge_indexer_${metric}_total`;
      this.#counters.set(metric, registry.counter({ name, help, labels: ["outcome"] }));
    }
    const gauge = (name: string, help: string, labels: readonly string[] = []): Family<Gauge> =>
      registry.gauge({ name: `kedge_indexer_${name}`, help, labels });
    const rank = ["worker", "rank"];
    this.#lagEvents = gauge("lag_events", "Published batches that the view has not applied yet.", rank);
    this.#lagMs = gauge("lag_ms", "Milliseconds since a published batch is missing in the view.", rank);
    this.#leading = gauge("leading", "1 while this indexer works, 0 while it stands by.").labels();
    this.#queued = gauge("queued_writes", "Messages heard and not yet written.").labels();
    this.#ranks = gauge("ranks", "Registered ranks.").labels();
  }

  /** To be called before the registry is read. */
  collect(): void {
    const indexer = this.#indexer;
    for (const [figure, [metric, label]] of Object.entries(COUNTERS)) {
      const value = indexer.figures[figure as keyof IndexerFigures];
      this.#counters
        .get(metric)
        ?.labels(label)
        .inc(value - (this.#counted.get(figure) ?? 0));
      this.#counted.set(figure, value);
    }
    this.#leading.set(indexer.state === "leading" ? 1 : 0);
    this.#queued.set(indexer.queued);
    this.#ranks.set(indexer.ranks);
    this.#collectLags();
  }

  #collectLags(): void {
    const before = this.#labels;
    this.#labels = new Map();
    for (const { key, lagEvents, lagMs } of this.#indexer.lags()) {
      const labels = [key.worker, String(key.rank)] as const;
      this.#lagEvents.labels(...labels).set(lagEvents);
      this.#lagMs.labels(...labels).set(lagMs);
      this.#labels.set(labels.join("\n"), labels);
    }
    for (const [id, labels] of before) {
      if (this.#labels.has(id)) continue;
      this.#lagEvents.remove(...labels);
      this.#lagMs.remove(...labels);
    }
  }
}

/** What a bus over NATS says of itself. */
export interface BusStatus {
  readonly server: string | null;
  readonly redelivered: number;
  readonly undecodable: number;
  readonly pendingAcks: number;
  readonly consumerLag: number | null;
}

export class BusMetrics {
  readonly #connected: Gauge;
  readonly #logPending: Gauge;
  readonly #pendingAcks: Gauge;
  readonly #redelivered: Gauge;
  readonly #undecodable: Gauge;

  constructor(registry: Registry) {
    const gauge = (name: string, help: string): Gauge =>
      registry.gauge({ name: `kedge_indexer_${name}`, help }).labels();
    this.#connected = gauge("nats_connected", "1 while connected to NATS.");
    this.#logPending = gauge("log_pending", "Batches of the log still to come.");
    this.#pendingAcks = gauge("pending_acks", "Batches heard and not yet acknowledged.");
    this.#redelivered = gauge("redelivered", "Batches that the log delivered again.");
    this.#undecodable = gauge("undecodable", "Messages that could not be read.");
  }

  /** To be called before the registry is read. */
  collect(connected: boolean, status: BusStatus): void {
    this.#connected.set(connected ? 1 : 0);
    this.#logPending.set(status.consumerLag ?? 0);
    this.#pendingAcks.set(status.pendingAcks);
    this.#redelivered.set(status.redelivered);
    this.#undecodable.set(status.undecodable);
  }
}
