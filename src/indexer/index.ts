/** The log folded into the view: what agents publish goes to the store in order, and holes are filled by snapshots (design D5, D6). */

import { type KedgeError, toKedgeError } from "../errors/index.ts";
import type { EventBus, Unsubscribe } from "../events/bus.ts";
import type { IncarnationKey, LoadReport, Registration } from "../fleet/types.ts";
import type { ApplyOutcome, KvBatch, KvSnapshot, MaybePromise, ViewStore } from "../store/types.ts";

export interface IndexerOptions {
  readonly bus: EventBus;
  readonly store: ViewStore;
  /** Milliseconds. */
  readonly now: () => number;
  /** Names this indexer's heartbeats. */
  readonly name: string;
  /** Told what the store or a snapshot request failed with; the indexer goes on and repairs by snapshots. */
  readonly onError: (error: KedgeError, doing: string) => void;
  /** Batches kept per incarnation while its snapshot is on its way; more are left to the next snapshot. */
  readonly maxBufferedBatches?: number;
  /** Least time between two snapshot requests for one incarnation. */
  readonly snapshotIntervalMs?: number;
  /** A snapshot that has not come by then is given up. */
  readonly snapshotTimeoutMs?: number;
}

/** Counted since the start. */
export interface IndexerFigures {
  batchesApplied: number;
  batchesDuplicate: number;
  batchesBehindGap: number;
  batchesRefused: number;
  batchesOverflown: number;
  snapshotsRequested: number;
  snapshotsApplied: number;
  snapshotsFailed: number;
  reports: number;
  storeErrors: number;
}

type Work =
  | { readonly kind: "registration"; readonly registration: Registration }
  | { readonly kind: "retirement"; readonly key: IncarnationKey }
  /** `alone`: was in a write that the store refused as malformed, and is tried by itself. */
  | { readonly kind: "kv"; readonly batch: KvBatch; readonly alone: boolean }
  | { readonly kind: "load"; readonly report: LoadReport }
  | { readonly kind: "snapshot"; readonly snapshot: KvSnapshot; readonly feed: Feed }
  | { readonly kind: "heartbeat" };

/** One incarnation's stream of batches. */
interface Feed {
  readonly key: IncarnationKey;
  /** Highest sequence known to be in the view. */
  applied: number;
  /** `applied` when a report last said that more was published; −1: no such report since. */
  behindAt: number;
  requestedAtMs: number;
  heardAtMs: number;
  /** Set while a snapshot is on its way: the batches that came meanwhile. */
  pending: { readonly buffer: KvBatch[] } | null;
}

/** Most batches or reports handed to the store in one call. */
const MAX_RUN = 256;

/** A feed that was silent for so long is forgotten; if it comes back, it is learnt anew. */
const FORGET_FEED_MS = 3_600_000;

/**
 * Messages are handled in the order of their arrival. A store that answers at once is written to within the publisher's
 * call; with one that answers later, what arrives meanwhile is joined into larger writes.
 */
export class Indexer {
  readonly figures: IndexerFigures = {
    batchesApplied: 0,
    batchesDuplicate: 0,
    batchesBehindGap: 0,
    batchesRefused: 0,
    batchesOverflown: 0,
    snapshotsRequested: 0,
    snapshotsApplied: 0,
    snapshotsFailed: 0,
    reports: 0,
    storeErrors: 0,
  };
  private readonly options: Required<IndexerOptions>;
  private readonly feeds = new Map<string, Feed>();
  private queue: Work[] = [];
  private pumping = false;
  private subscriptions: Unsubscribe[] = [];

  constructor(options: IndexerOptions) {
    this.options = {
      maxBufferedBatches: 4_096,
      snapshotIntervalMs: 1_000,
      snapshotTimeoutMs: 10_000,
      ...options,
    };
  }

  /** Incarnations whose snapshot is on its way. */
  get snapshotsPending(): number {
    let count = 0;
    for (const { pending } of this.feeds.values()) if (pending !== null) count += 1;
    return count;
  }

  /** Messages not yet written. */
  get queued(): number {
    return this.queue.length;
  }

  start(): void {
    if (this.subscriptions.length > 0) return;
    const { bus, name } = this.options;
    this.subscriptions = [
      bus.onRegistration((registration) => this.enqueue({ kind: "registration", registration })),
      bus.onRetirement((key) => this.enqueue({ kind: "retirement", key })),
      bus.onKv((batch) => this.receive(batch)),
      bus.onLoad((report) => this.enqueue({ kind: "load", report })),
      bus.onHeartbeat((from) => {
        if (from === name) this.enqueue({ kind: "heartbeat" });
      }),
    ];
  }

  /** Hears nothing more; what is queued is still written. */
  stop(): void {
    for (const unsubscribe of this.subscriptions.splice(0)) unsubscribe();
    this.feeds.clear();
  }

  /** To be called about once a second: sends the heartbeat that proves the bus, and gives up on lost snapshots. */
  tick(): void {
    if (this.subscriptions.length === 0) return;
    this.options.bus.publishHeartbeat(this.options.name);
    const nowMs = this.options.now();
    const overdue = nowMs - this.options.snapshotTimeoutMs;
    for (const [id, feed] of this.feeds) {
      if (nowMs - feed.heardAtMs > FORGET_FEED_MS) this.feeds.delete(id);
      if (feed.pending === null || feed.requestedAtMs > overdue) continue;
      feed.pending = null;
      this.figures.snapshotsFailed += 1;
    }
  }

  private receive(batch: KvBatch): void {
    const pending = this.feeds.get(idOf(batch))?.pending ?? null;
    if (pending === null) this.enqueue({ kind: "kv", batch, alone: false });
    else if (pending.buffer.length < this.options.maxBufferedBatches) pending.buffer.push(batch);
    else this.figures.batchesOverflown += 1;
  }

  private enqueue(...work: Work[]): void {
    this.queue.push(...work);
    this.pump();
  }

  private pump(): void {
    if (this.pumping) return;
    this.pumping = true;
    while (this.queue.length > 0) {
      const run = this.takeRun();
      const done = this.guard(run);
      if (done instanceof Promise) {
        void done.then(() => {
          this.pumping = false;
          this.pump();
        });
        return;
      }
    }
    this.pumping = false;
  }

  /** The next piece of work with those of its kind that follow directly, where the store takes many at once. */
  private takeRun(): Work[] {
    const [first] = this.queue;
    const most = (first.kind === "kv" && !first.alone) || first.kind === "load" ? MAX_RUN : 1;
    let length = 1;
    while (length < Math.min(this.queue.length, most) && this.queue[length].kind === first.kind) length += 1;
    return this.queue.splice(0, length);
  }

  private perform(run: readonly Work[]): MaybePromise<void> {
    const { store } = this.options;
    const [work] = run;
    switch (work.kind) {
      case "registration":
        return this.register(work.registration);
      case "retirement":
        this.feeds.delete(idOf(work.key));
        return store.retire(work.key);
      case "heartbeat":
        return after(store.report([], true), () => undefined);
      case "load":
        return this.report(run.flatMap((each) => (each.kind === "load" ? each.report : [])));
      case "kv":
        return this.apply(run.flatMap((each) => (each.kind === "kv" ? each.batch : [])));
      case "snapshot":
        return this.applySnapshot(work.snapshot, work.feed);
    }
  }

  /** A new life of a rank makes the feeds of its former lives pointless. */
  private register(registration: Registration): MaybePromise<void> {
    return after(this.options.store.register(registration), (slots) => {
      if (slots === null) return;
      for (const [id, { key }] of this.feeds) {
        const same = key.worker === registration.worker && key.rank === registration.rank;
        if (same && key.incarnation !== registration.incarnation) this.feeds.delete(id);
      }
    });
  }

  private report(reports: readonly LoadReport[]): MaybePromise<void> {
    return after(this.options.store.report(reports), () => {
      this.figures.reports += reports.length;
      for (const report of reports) this.checkBehind(report);
    });
  }

  /**
   * A lost last batch shows in no later one. Reports and batches may take different ways, so a feed counts as stuck when
   * two reports in a row find it behind and at the same place.
   */
  private checkBehind(report: LoadReport): void {
    const feed = this.feedOf(report);
    if (report.publishedSequence <= feed.applied) {
      feed.behindAt = -1;
    } else if (feed.behindAt === feed.applied) {
      this.requestSnapshot(feed);
    } else {
      feed.behindAt = feed.applied;
    }
  }

  private apply(batches: readonly KvBatch[]): MaybePromise<void> {
    return after(this.options.store.apply(batches), (outcomes) => {
      for (const [i, batch] of batches.entries()) this.settle(batch, outcomes[i]);
    });
  }

  private settle(batch: KvBatch, outcome: ApplyOutcome): void {
    switch (outcome) {
      case "applied":
        this.figures.batchesApplied += 1;
        this.feedOf(batch).applied = batch.sequence;
        return;
      case "duplicate": {
        this.figures.batchesDuplicate += 1;
        const feed = this.feedOf(batch);
        feed.applied = Math.max(feed.applied, batch.sequence);
        return;
      }
      case "gap":
        this.figures.batchesBehindGap += 1;
        this.requestSnapshot(this.feedOf(batch), batch);
        return;
      case "unknown":
        // Its agent's next registration makes it known; the batch after that finds the gap.
        this.figures.batchesRefused += 1;
        return;
      case "retired":
        this.figures.batchesRefused += 1;
        this.feeds.delete(idOf(batch));
    }
  }

  /** One request at a time per incarnation; `batch` and those that follow wait for the answer. */
  private requestSnapshot(feed: Feed, batch?: KvBatch): void {
    const { bus, now, snapshotIntervalMs } = this.options;
    if (feed.pending !== null) {
      if (batch !== undefined) feed.pending.buffer.push(batch);
      return;
    }
    if (now() - feed.requestedAtMs < snapshotIntervalMs) return;
    const pending = { buffer: batch === undefined ? [] : [batch] };
    feed.pending = pending;
    feed.requestedAtMs = now();
    this.figures.snapshotsRequested += 1;
    const answered = (snapshot: KvSnapshot | null) => {
      // Given up, retired or stopped meanwhile.
      if (feed.pending !== pending || this.feeds.get(idOf(feed.key)) !== feed) return;
      feed.pending = null;
      if (snapshot === null) {
        this.figures.snapshotsFailed += 1;
        return;
      }
      const buffered = pending.buffer.map((each) => ({ kind: "kv", batch: each, alone: false }) as const);
      this.enqueue({ kind: "snapshot", snapshot, feed }, ...buffered);
    };
    bus.requestSnapshot(feed.key).then(answered, (thrown) => {
      this.options.onError(toKedgeError(thrown), "snapshot request");
      answered(null);
    });
  }

  private applySnapshot(snapshot: KvSnapshot, feed: Feed): MaybePromise<void> {
    return after(this.options.store.applySnapshot(snapshot), (outcome) => {
      if (outcome === "applied") {
        this.figures.snapshotsApplied += 1;
        feed.applied = Math.max(feed.applied, snapshot.sequence);
      } else {
        this.figures.snapshotsFailed += 1;
      }
    });
  }

  private feedOf(key: IncarnationKey): Feed {
    const id = idOf(key);
    const known = this.feeds.get(id);
    const heardAtMs = this.options.now();
    if (known !== undefined) {
      known.heardAtMs = heardAtMs;
      return known;
    }
    const { worker, rank, incarnation } = key;
    const feed: Feed = {
      key: { worker, rank, incarnation },
      applied: 0,
      behindAt: -1,
      requestedAtMs: Number.NEGATIVE_INFINITY,
      heardAtMs,
      pending: null,
    };
    this.feeds.set(id, feed);
    return feed;
  }

  /** Failures of the store are counted and told; a hole that they leave is found by the next batch or report. */
  private guard(run: readonly Work[]): MaybePromise<void> {
    const failed = (thrown: unknown) => {
      const error = toKedgeError(thrown);
      if (error.code === "invalid_request" && run.length > 1) {
        // One malformed batch must not take the others of its write with it.
        this.queue.unshift(...run.map((work) => (work.kind === "kv" ? { ...work, alone: true } : work)));
        return;
      }
      this.figures.storeErrors += 1;
      this.options.onError(error, run[0].kind);
    };
    try {
      const done = this.perform(run);
      return done instanceof Promise ? done.catch(failed) : done;
    } catch (thrown) {
      failed(thrown);
    }
  }
}

function idOf(key: IncarnationKey): string {
  return JSON.stringify([key.worker, key.rank, key.incarnation]);
}

/** `then` for what may be there already. */
function after<T>(value: MaybePromise<T>, act: (value: T) => void): MaybePromise<void> {
  if (value instanceof Promise) return value.then(act);
  act(value);
}
