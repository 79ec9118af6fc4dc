/** An indexer as a host runs it: on its bus and view, with a lease, a clock that ticks, words for the log, status and metrics. */

import type { KedgeConfig } from "../config/index.ts";
import { type KedgeError, toKedgeError } from "../errors/index.ts";
import type { EventBus } from "../events/bus.ts";
import type { LeaderLease, ViewStore } from "../store/types.ts";
import { Registry } from "../telemetry/registry.ts";
import type { FeedLag } from "./feeds.ts";
import { Indexer, type IndexerState } from "./indexer.ts";
import type { Timers } from "./maybe.ts";
import { BusMetrics, type BusStatus, IndexerMetrics } from "./metrics.ts";

/** What is asked of a bus that may lose its connection. */
export interface IndexerBus extends EventBus {
  readonly connected: boolean;
  status(): BusStatus;
  close(): Promise<void>;
}

/** A view that also says who of several indexers works. */
export interface LeasingStore extends ViewStore {
  lease(name: string, holder: string, ttlMs: number): LeaderLease;
}

export type ServiceLog = (
  level: "info" | "warn" | "error",
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void;

export interface IndexerServiceOptions {
  readonly config: KedgeConfig;
  /** Unique among all that run. */
  readonly name: string;
  readonly store: LeasingStore;
  /** Makes the bus with these two to tell of its troubles. */
  readonly connect: (hooks: {
    readonly onError: (error: KedgeError, doing: string) => void;
    readonly onStatus: () => void;
  }) => IndexerBus;
  readonly timers: Timers;
  /** Milliseconds. */
  readonly now: () => number;
  readonly log: ServiceLog;
  /** Life of the lease; default 6 s. */
  readonly leaseTtlMs?: number;
}

export interface IndexerStatus {
  readonly name: string;
  readonly region: string;
  readonly state: IndexerState;
  readonly natsConnected: boolean;
  readonly natsServer: string | null;
  readonly viewReachable: boolean;
  readonly epoch: string;
  readonly ranks: number;
  readonly queuedWrites: number;
  readonly snapshotsPending: number;
  /** Batches of the log that are still to come; null: not consumed. */
  readonly logPending: number | null;
  readonly feeds: readonly FeedLag[];
  readonly figures: Readonly<Record<string, number>>;
}

const TICK_MS = 1_000;
const LEASE_NAME = "indexer";
const LEASE_TTL_MS = 6_000;
/** A leader cut off from NATS for so long lets others have the lease, and keeps it if nobody wants it. */
const GIVE_WAY_MS = 6_000;
/** What is queued gets so long to be written at the end. */
const STOP_WITHIN_MS = 5_000;
/** The same trouble is told once in this time. */
const REPEAT_MS = 10_000;
/** Registrations are written again well before their rows are forgotten. */
const REGISTRATIONS_PER_HORIZON = 4;

/** A bus gives up by itself when an agent falls silent; a large cache over a thin line may take its time. */
const SNAPSHOT_WITHIN_MS = 60_000;

const STATE_WORDS: Readonly<Record<IndexerState, string>> = {
  stopped: "stopped",
  leading: "leading: folds the log into the view",
  standby: "standing by: another indexer leads",
  suspended: "suspended: the lease cannot be renewed",
};

export class IndexerService {
  readonly #options: IndexerServiceOptions;
  readonly #indexer: Indexer;
  readonly #bus: IndexerBus;
  readonly #registry = new Registry();
  readonly #metrics: IndexerMetrics;
  readonly #busMetrics: BusMetrics;
  readonly #told = new Map<string, { atMs: number; unsaid: number }>();
  #timer: unknown = null;
  #stopping: Promise<void> | null = null;
  #viewReachable = true;
  /** Since when NATS is out of reach. */
  #cutOffSinceMs: number | null = null;
  #gaveWayAtMs = Number.NEGATIVE_INFINITY;

  /** Connects at once and goes on trying; works from `start` on. */
  constructor(options: IndexerServiceOptions) {
    this.#options = options;
    const { config, name, store, now, timers, leaseTtlMs = LEASE_TTL_MS } = options;
    this.#bus = options.connect({
      onError: (error, doing) => this.#tell(error, doing),
      onStatus: () => this.#busChanged(),
    });
    this.#indexer = new Indexer({
      bus: this.#bus,
      store,
      now,
      name,
      remote: { timers },
      lease: this.#lease(store.lease(LEASE_NAME, name, leaseTtlMs)),
      leaseTtlMs,
      snapshotTimeoutMs: SNAPSHOT_WITHIN_MS,
      registerAgainMs: config.feed.horizonMs / REGISTRATIONS_PER_HORIZON,
      onError: (error, doing) => this.#tell(error, doing),
      onState: (state) => options.log("info", STATE_WORDS[state]),
    });
    this.#metrics = new IndexerMetrics(this.#indexer, this.#registry);
    this.#busMetrics = new BusMetrics(this.#registry);
  }

  start(): void {
    if (this.#timer !== null || this.#stopping !== null) return;
    this.#indexer.start();
    this.#arm();
  }

  /** Leading or standing by, with bus and view in reach. */
  get ready(): boolean {
    const { state } = this.#indexer;
    return (
      (state === "leading" || state === "standby") &&
      this.#bus.connected &&
      this.#indexer.viewFailure === null
    );
  }

  status(): IndexerStatus {
    const { config, name, store } = this.#options;
    const { server, consumerLag } = this.#bus.status();
    const indexer = this.#indexer;
    return {
      name,
      region: config.place.region,
      state: indexer.state,
      natsConnected: this.#bus.connected,
      natsServer: server,
      viewReachable: indexer.viewFailure === null,
      epoch: store.epoch,
      ranks: indexer.ranks,
      queuedWrites: indexer.queued,
      snapshotsPending: indexer.snapshotsPending,
      logPending: consumerLag,
      feeds: indexer.lags(),
      figures: { ...indexer.figures },
    };
  }

  /** Prometheus text. */
  metrics(): string {
    this.#metrics.collect();
    this.#busMetrics.collect(this.#bus.connected, this.#bus.status());
    return this.#registry.encode();
  }

  /** Stops consuming, writes what is queued, gives up the lease, closes the bus; bounded by a few seconds. Safe to call twice. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    const { timers } = this.#options;
    if (this.#timer !== null) timers.clearTimeout(this.#timer);
    let timer: unknown;
    const late = new Promise<void>((resolve) => {
      timer = timers.setTimeout(resolve, STOP_WITHIN_MS);
    });
    await Promise.race([this.#indexer.stop(), late]);
    timers.clearTimeout(timer);
    await this.#bus.close();
  }

  #arm(): void {
    this.#timer = this.#options.timers.setTimeout(() => {
      if (this.#stopping !== null) return;
      this.#arm();
      this.#indexer.tick();
      this.#viewChanged();
    }, TICK_MS);
  }

  /** `router.resetStates`: the first thing that this process does as the leader. */
  #lease(lease: LeaderLease): LeaderLease {
    const { config, store, log } = this.#options;
    let reset = !config.router.resetStates;
    return {
      release: () => lease.release(),
      renew: async () => {
        const { state } = this.#indexer;
        const isCutOff = this.#cutOffForMs() >= GIVE_WAY_MS;
        if (isCutOff && state === "leading" && this.#givesWay()) {
          // Until the next renewal, which comes as often as others ask. With nobody there it goes on with what it knows.
          await lease.release();
          return true;
        }
        const held = await lease.renew();
        if (held && isCutOff && state === "standby") {
          // It knows nothing and hears nothing: whoever led may have it back.
          await lease.release();
          return false;
        }
        if (!held || reset) return held;
        await store.reset();
        reset = true;
        log("info", "a new epoch of the view has begun", { epoch: store.epoch });
        return held;
      },
    };
  }

  #cutOffForMs(): number {
    const nowMs = this.#options.now();
    if (this.#bus.connected) this.#cutOffSinceMs = null;
    else this.#cutOffSinceMs ??= nowMs;
    return nowMs - (this.#cutOffSinceMs ?? nowMs);
  }

  /** Who hears nothing must not keep those from the work who would. */
  #givesWay(): boolean {
    const nowMs = this.#options.now();
    if (nowMs - this.#gaveWayAtMs < GIVE_WAY_MS) return false;
    this.#gaveWayAtMs = nowMs;
    return true;
  }

  #busChanged(): void {
    // The bus may speak before it is given to this.
    const bus = this.#bus as IndexerBus | undefined;
    if (bus === undefined || this.#stopping !== null) return;
    if (bus.connected) this.#options.log("info", `connected to NATS at ${bus.status().server}`);
    else this.#options.log("warn", "the connection to NATS is lost; trying again");
  }

  #viewChanged(): void {
    const { viewFailure } = this.#indexer;
    const reachable = viewFailure === null;
    if (reachable === this.#viewReachable) return;
    this.#viewReachable = reachable;
    if (reachable) this.#options.log("info", "the view answers again");
    else this.#options.log("warn", `the view is out of reach: ${viewFailure.message}`);
  }

  #tell(thrown: unknown, doing: string): void {
    const { now, log } = this.#options;
    const error = toKedgeError(thrown);
    const kind = `${doing}: ${error.code}`;
    const last = this.#told.get(kind);
    if (last !== undefined && now() - last.atMs < REPEAT_MS) {
      last.unsaid += 1;
      return;
    }
    // What the code leaves out is in the cause, which is for this log only.
    const detail = error.cause instanceof Error ? ` (${error.cause.message})` : "";
    const more = last === undefined || last.unsaid === 0 ? {} : { more: last.unsaid };
    log("error", `${doing}: ${error.message}${error.code === "internal_error" ? detail : ""}`, more);
    this.#told.set(kind, { atMs: now(), unsaid: 0 });
  }
}
