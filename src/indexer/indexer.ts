/** The log folded into the view: what agents publish goes to the store in order, and holes are filled by snapshots (design D5, D6). */

import { type KedgeError, toKedgeError } from "../errors/index.ts";
import type { EventBus, Unsubscribe } from "../events/bus.ts";
import type { FleetRow, IncarnationKey, LoadReport, Registration } from "../fleet/types.ts";
import type { ApplyOutcome, LeaderLease, MaybePromise, ReportOutcome, ViewStore } from "../store/types.ts";
import { type Feed, type FeedLag, FeedTable, type Held } from "./feeds.ts";
import { type IndexerFigures, newFigures } from "./figures.ts";
import { type LeaderState, Leadership } from "./leadership.ts";
import { LoadFolder } from "./loads.ts";
import { after, guarded, type Timers } from "./maybe.ts";
import { type KnownRank, nameOf, RankTable } from "./ranks.ts";
import { Snapshots } from "./snapshots.ts";
import { type KvWork, type RegistrationWork, type Work, Writer } from "./writer.ts";

/** How a store that is elsewhere is written to: few calls, and again what failed. */
export interface RemoteWrites {
  readonly timers: Timers;
  /** A batch waits at most this long for others; default 50. */
  readonly joinMs?: number;
  /** Time between two folds of load reports; default 250. */
  readonly foldMs?: number;
  /** A rank that stays behind for so long has lost a batch; default 2 s. */
  readonly stuckMs?: number;
  /** The bus must have carried this indexer's heartbeats for so long before a rank's silence counts; default 8 s. */
  readonly graceMs?: number;
}

export interface IndexerOptions {
  readonly bus: EventBus;
  readonly store: ViewStore;
  /** Milliseconds. */
  readonly now: () => number;
  /** Names this indexer's heartbeats; no two that run have the same. */
  readonly name: string;
  /** Told what the store or a snapshot request failed with; the indexer goes on and repairs by snapshots. */
  readonly onError: (error: KedgeError, doing: string) => void;
  /** Null or left out: the store answers at once, and is written to within the publisher's call. */
  readonly remote?: RemoteWrites | null;
  /** Null or left out: this indexer is the only one. */
  readonly lease?: LeaderLease | null;
  /** Life of that lease, default 6 s. */
  readonly leaseTtlMs?: number;
  readonly onState?: (state: IndexerState) => void;
  /** A registration that did not change is written again after so long; default 15 minutes, a quarter of the default horizon. */
  readonly registerAgainMs?: number;
  /** Batches of a rank that nobody registers are refused after so long; default 10 s. */
  readonly registrationWaitMs?: number;
  /** Batches kept per incarnation while its snapshot is on its way; more are left to the next snapshot. */
  readonly maxBufferedBatches?: number;
  /** Least time between two snapshot requests for one incarnation. */
  readonly snapshotIntervalMs?: number;
  /** A snapshot that has not come by then is given up. */
  readonly snapshotTimeoutMs?: number;
}

/** `standby`: another indexer works. `suspended`: led, and does not know whether it still does; consumes no log. */
export type IndexerState = "stopped" | LeaderState;

const LEASE_TTL_MS = 6_000;
/** After an outage of the bus an agent may wait five seconds before it connects again, and another before it speaks; then comes a fold. */
const GRACE_MS = 8_000;
/** Somebody who does not register although asked is asked ever more seldom: everybody else answers too. */
const ROLL_CALL_MS = { least: 1_000, most: 30_000 } as const;
/**
 * How often what the view says to have applied is compared with what this indexer believes (a failover or an older dump may have lost the
 * latest writes, and nothing else tells); and while it does not know.
 */
const AUDIT_EVERY_MS = 10_000;
const AUDIT_UNSURE_EVERY_MS = 1_000;
/** Batches not yet written; beyond, a log should have stopped to deliver, and snapshots heal what is let go. */
const MAX_QUEUED = 16_384;

/**
 * Messages of a rank are handled in the order of their arrival. A store that answers at once is written to within the
 * publisher's call; for one that is elsewhere (`remote`), what arrives meanwhile is joined into larger writes.
 */
export class Indexer {
  readonly figures: IndexerFigures = newFigures();
  readonly #options: IndexerOptions;
  readonly #feeds: FeedTable;
  readonly #ranks = new RankTable();
  readonly #writer: Writer;
  readonly #loads: LoadFolder;
  readonly #snapshots: Snapshots;
  readonly #leadership: Leadership | null;
  /** Registrations that are queued, as text, by rank. */
  readonly #registering = new Map<string, string>();
  #state: IndexerState = "stopped";
  #subscriptions: Unsubscribe[] = [];
  #consumption: Unsubscribe | null = null;
  #epoch = "";
  #rolledAtMs = Number.NEGATIVE_INFINITY;
  #rollEveryMs: number = ROLL_CALL_MS.least;
  #auditedAtMs = Number.NEGATIVE_INFINITY;
  #auditing = false;
  /** The view has answered since a failed write last asked. */
  #viewAnswered = false;
  /** Why the last call to the view failed; null: it answered. */
  #viewFailure: KedgeError | null = null;

  constructor(options: IndexerOptions) {
    this.#options = options;
    const {
      bus,
      store,
      now,
      remote = null,
      lease = null,
      leaseTtlMs: ttlMs = LEASE_TTL_MS,
      onError,
    } = options;
    const { figures } = this;
    this.#feeds = new FeedTable(now, options.maxBufferedBatches ?? 4_096);
    this.#writer = new Writer({
      perform: (run) => this.#perform(run),
      onFailed: (error, run, abandoned) => this.#writeFailed(error, run, abandoned),
      timers: remote?.timers ?? null,
      joinMs: remote?.joinMs ?? 50,
      viewAnswers: () => {
        const answered = this.#viewAnswered;
        this.#viewAnswered = false;
        return answered;
      },
    });
    this.#loads = new LoadFolder({
      store,
      now,
      figures,
      timers: remote?.timers ?? null,
      foldMs: remote?.foldMs ?? 250,
      graceMs: remote === null ? 0 : (remote.graceMs ?? GRACE_MS),
      onWritten: (reports, outcomes) => this.#reported(reports, outcomes),
      onFailed: (thrown) => this.#failed(toKedgeError(thrown), "load"),
    });
    this.#snapshots = new Snapshots({
      bus,
      store,
      now,
      figures,
      feeds: this.#feeds,
      intervalMs: options.snapshotIntervalMs ?? 1_000,
      timeoutMs: options.snapshotTimeoutMs ?? 10_000,
      onReleased: (held) => this.#writer.add(...held.map(toWork)),
      onRefused: (feed, outcome) => this.#snapshotRefused(feed, outcome),
      onError,
    });
    this.#leadership =
      lease === null
        ? null
        : new Leadership({
            lease,
            ttlMs,
            now,
            onAnswer: () => {
              this.#viewAnswered = true;
              this.#viewFailure = null;
            },
            onChange: (state, before) => this.#leaderChanged(state, before),
            onError: (error) => this.#failed(error, "lease"),
          });
  }

  get state(): IndexerState {
    return this.#state;
  }

  /** Why the view did not answer the last call to it; null: it did. */
  get viewFailure(): KedgeError | null {
    return this.#viewFailure;
  }

  /** Incarnations whose snapshot is on its way. */
  get snapshotsPending(): number {
    return this.#snapshots.pending;
  }

  /** Messages not yet written. */
  get queued(): number {
    return this.#writer.queued;
  }

  /** Registered ranks. */
  get ranks(): number {
    return this.#ranks.size;
  }

  /** How far the view is behind each registered rank. */
  lags(): FeedLag[] {
    return this.#feeds.lags().filter(({ key }) => this.#ranks.get(key) !== undefined);
  }

  /** Begins to work, or to stand by if another does. */
  start(): void {
    if (this.#state !== "stopped") return;
    if (this.#leadership === null) {
      this.#become("leading");
      this.#lead();
      return;
    }
    // Who leads is told when the lease answers.
    this.#state = "standby";
    this.#leadership.tick();
  }

  /** Hears nothing more; resolves when what is queued is written, as far as that is possible, and the lease is given up. */
  async stop(): Promise<void> {
    if (this.#state === "stopped") return;
    await this.#retreat("stopped");
    await this.#leadership?.release();
  }

  /** To be called about once a second: keeps the lease, sends the heartbeat that proves the bus, gives up what is overdue. */
  tick(): void {
    if (this.#state === "stopped") return;
    this.#leadership?.tick();
    if (this.#subscriptions.length === 0) return;
    const { bus, name, now, remote = null, registrationWaitMs = 10_000 } = this.#options;
    bus.publishHeartbeat(name);
    this.#snapshots.tick();
    this.#feeds.dropSilent();
    this.#ranks.dropSilent(now() - 4 * this.#registerAgainMs);
    for (const feed of this.#feeds) {
      if (feed.hold?.reason !== "registration" || now() - feed.hold.sinceMs < registrationWaitMs) continue;
      const refused = this.#feeds.release(feed);
      this.figures.batchesRefused += refused.length;
      for (const { done } of refused) done();
    }
    if (remote !== null && now() - this.#auditedAtMs >= AUDIT_EVERY_MS) this.#audit();
  }

  get #registerAgainMs(): number {
    return this.#options.registerAgainMs ?? 900_000;
  }

  #become(state: IndexerState): void {
    this.#state = state;
    this.#options.onState?.(state);
  }

  #leaderChanged(state: LeaderState, before: LeaderState | null): void {
    if (this.#state === "stopped") return;
    if (state === "standby") {
      void this.#retreat("standby");
      return;
    }
    this.#become(state);
    if (state === "suspended") this.#stopConsuming();
    else if (before === "suspended") this.#consume();
    else this.#lead();
  }

  #lead(): void {
    const { bus, name, store, now } = this.#options;
    this.#forgetAll();
    this.#epoch = store.epoch;
    this.#auditedAtMs = now();
    this.#rolledAtMs = Number.NEGATIVE_INFINITY;
    this.#rollEveryMs = ROLL_CALL_MS.least;
    this.#subscriptions = [
      bus.onRegistration((registration) => this.#registered(registration)),
      bus.onRetirement((key) => this.#writer.add({ kind: "retirement", key })),
      bus.onLoad((report) => this.#loads.offer(report)),
      bus.onHeartbeat((from) => {
        if (from === name) this.#loads.beat();
      }),
    ];
    this.#loads.start();
    this.#consume();
    this.#callRoll();
  }

  #consume(): void {
    this.#consumption ??= this.#options.bus.onKv((batch, done) => this.#received({ batch, done }));
  }

  #stopConsuming(): void {
    this.#consumption?.();
    this.#consumption = null;
  }

  async #retreat(to: "stopped" | "standby"): Promise<void> {
    this.#become(to);
    this.#stopConsuming();
    for (const unsubscribe of this.#subscriptions.splice(0)) unsubscribe();
    await Promise.all([this.#writer.drain(), this.#loads.stop()]);
    if (this.#subscriptions.length === 0) this.#forgetAll();
  }

  #forgetAll(): void {
    this.#feeds.clear();
    this.#ranks.clear();
    this.#snapshots.clear();
    this.#registering.clear();
  }

  #received(held: Held): void {
    const feed = this.#feeds.get(held.batch);
    if (feed !== undefined && feed.hold !== null) {
      this.#keep(feed, feed.hold.reason, held);
    } else if (this.#writer.queued >= MAX_QUEUED) {
      this.#overflown(held);
    } else {
      this.#writer.add(toWork(held));
    }
  }

  #keep(feed: Feed, reason: "registration" | "snapshot", held: Held): void {
    if (!this.#feeds.keep(feed, reason, held)) this.#overflown(held);
  }

  #overflown({ done }: Held): void {
    this.figures.batchesOverflown += 1;
    done();
  }

  /** Agents repeat themselves; the view needs to hear only what is new to it, and the rest before its lease ends. */
  #registered(registration: Registration): void {
    const { now } = this.#options;
    const known = this.#ranks.get(registration);
    const text = JSON.stringify(registration);
    if (known !== undefined && known.text === text) {
      known.heardAtMs = now();
      if (now() - known.writtenAtMs < this.#registerAgainMs) {
        this.figures.registrationsSkipped += 1;
        return;
      }
    }
    this.#enqueueRegistration(registration, text, false);
  }

  #enqueueRegistration(registration: Registration, text: string, revive: boolean): void {
    const name = nameOf(registration);
    if (this.#registering.get(name) === text) return;
    this.#registering.set(name, text);
    this.#writer.add({ kind: "registration", registration, revive });
  }

  /** The view has forgotten the rank. */
  #revive({ registration, text }: KnownRank): void {
    this.#enqueueRegistration(registration, text, true);
  }

  #perform(run: readonly Work[]): MaybePromise<void> {
    const { store } = this.#options;
    const work = run[0]!;
    switch (work.kind) {
      case "registration":
        return this.#registerAll(run.flatMap((each) => (each.kind === "registration" ? each : [])));
      case "retirement": {
        this.#ranks.delete(work.key);
        const feed = this.#feeds.get(work.key);
        if (feed !== undefined) this.#feeds.drop(feed);
        this.figures.otherCalls += 1;
        return after(store.retire(work.key), () => this.#answered());
      }
      case "kv":
        return this.#apply(run.flatMap((each) => (each.kind === "kv" ? each : [])));
    }
  }

  /** Of different ranks, side by side. */
  #registerAll(run: readonly RegistrationWork[]): MaybePromise<void> {
    const writes = run.map(({ registration, revive }) => this.#register(registration, revive));
    return writes.length === 1 ? writes[0] : Promise.all(writes).then(() => undefined);
  }

  #register(registration: Registration, revive: boolean): MaybePromise<void> {
    const { store, now } = this.#options;
    this.figures.otherCalls += 1;
    this.figures.registrationsWritten += 1;
    return after(store.register(registration), (slots) => {
      this.#registering.delete(nameOf(registration));
      const feed = this.#feeds.get(registration);
      if (slots === null) {
        if (feed !== undefined) this.#feeds.drop(feed);
        this.#ranks.delete(registration);
      } else {
        if (this.#ranks.get(registration) === undefined) this.#rollEveryMs = ROLL_CALL_MS.least;
        this.#ranks.written(registration, now());
        // A new life of a rank makes the feeds of its former lives pointless.
        this.#feeds.dropOtherLives(registration);
        if (revive) this.#refill(registration);
        else if (feed?.hold?.reason === "registration") this.#release(feed);
      }
      this.#answered();
    });
  }

  /** Registered again in a view that knew nothing of it. */
  #refill(registration: Registration): void {
    const feed = this.#feeds.heard(registration);
    feed.applied = 0;
    feed.failures = 0;
    if (registration.kvEvents) this.#snapshots.want(feed, true);
    else this.#release(feed);
  }

  #release(feed: Feed): void {
    this.#writer.add(...this.#feeds.release(feed).map(toWork));
  }

  #apply(run: readonly KvWork[]): MaybePromise<void> {
    const ready = run.filter((work) => {
      const feed = this.#feeds.get(work.batch);
      if (feed === undefined || feed.hold === null) return true;
      this.#keep(feed, feed.hold.reason, work);
      return false;
    });
    if (ready.length === 0) return;
    this.figures.applyCalls += 1;
    return after(this.#options.store.apply(ready.map(({ batch }) => batch)), (outcomes) => {
      for (const [i, work] of ready.entries()) this.#settle(work, outcomes[i]!);
      this.#answered();
    });
  }

  #settle(work: KvWork, outcome: ApplyOutcome): void {
    const { batch, done } = work;
    switch (outcome) {
      case "applied":
      case "duplicate":
        if (outcome === "applied") this.figures.batchesApplied += 1;
        else this.figures.batchesDuplicate += 1;
        this.#feeds.applied(this.#feeds.heard(batch), batch.sequence);
        done();
        return;
      case "gap":
        this.#settleGap(work);
        return;
      case "unknown":
        this.#settleUnknown(work);
        return;
      case "retired": {
        this.figures.batchesRefused += 1;
        const feed = this.#feeds.get(batch);
        if (feed !== undefined) this.#feeds.drop(feed);
        done();
      }
    }
  }

  #settleGap(work: KvWork): void {
    const { batch, done } = work;
    const feed = this.#feeds.heard(batch);
    if (work.again !== true && feed.hold === null && feed.applied !== null) {
      if (batch.sequence <= feed.applied + 1) {
        // A snapshot came in between the write and its answer.
        this.#writer.add({ ...work, again: true });
        return;
      }
    }
    this.figures.batchesBehindGap += 1;
    if (this.#snapshots.want(feed)) this.#keep(feed, "snapshot", work);
    // The snapshot that fills the hole, when the next batch or report asks for one, brings this batch too.
    else done();
  }

  /** A batch may overtake its rank's registration, which goes another way; or the view was emptied. */
  #settleUnknown(work: KvWork): void {
    const { batch } = work;
    this.#keep(this.#feeds.heard(batch), "registration", work);
    const known = this.#ranks.get(batch);
    if (known !== undefined) this.#revive(known);
    else if (!this.#registering.has(nameOf(batch))) this.#callRoll();
  }

  #snapshotRefused(feed: Feed, outcome: Exclude<ApplyOutcome, "applied">): void {
    if (outcome === "retired") {
      this.#feeds.drop(feed);
    } else if (outcome === "unknown") {
      if (feed.hold !== null) feed.hold.reason = "registration";
      const known = this.#ranks.get(feed.key);
      if (known !== undefined) this.#revive(known);
      else this.#callRoll();
    } else {
      // The view is ahead of the snapshot: another indexer works too.
      feed.applied = null;
    }
  }

  #reported(reports: readonly LoadReport[], outcomes: readonly ReportOutcome[]): void {
    let unsure = false;
    for (const [i, report] of reports.entries()) {
      if (outcomes[i] === "unknown") this.#reportUnknown(report);
      else if (outcomes[i] === "retired") this.#reportRetired(report);
      else unsure = this.#checkBehind(report) || unsure;
    }
    this.#answered();
    if (unsure && this.#options.now() - this.#auditedAtMs >= this.#auditUnsureEveryMs) this.#audit();
  }

  get #auditUnsureEveryMs(): number {
    return this.#options.remote ? AUDIT_UNSURE_EVERY_MS : 0;
  }

  #reportUnknown(report: LoadReport): void {
    const known = this.#ranks.get(report);
    if (known !== undefined) this.#revive(known);
    else if (!this.#registering.has(nameOf(report))) this.#callRoll();
  }

  #reportRetired(report: LoadReport): void {
    this.#ranks.delete(report);
    const feed = this.#feeds.get(report);
    if (feed !== undefined) this.#feeds.drop(feed);
  }

  /**
   * A lost last batch shows in no later one. Reports and batches take different ways, so a feed counts as stuck when two
   * reports in a row, and for a while where there is a queue in between, find it behind and at the same place. True: what
   * the view has is not known.
   */
  #checkBehind(report: LoadReport): boolean {
    const { now, remote = null } = this.#options;
    const known = this.#ranks.get(report);
    if (known !== undefined) known.heardAtMs = now();
    const feed = this.#feeds.heard(report);
    this.#feeds.published(feed, report.publishedSequence);
    if (feed.applied === null) return report.publishedSequence > 0;
    const stuckMs = remote === null ? 0 : (remote.stuckMs ?? 2_000);
    if (report.publishedSequence <= feed.applied) {
      feed.behindAt = -1;
    } else if (feed.behindAt !== feed.applied) {
      feed.behindAt = feed.applied;
      feed.behindSinceMs = now();
    } else if (now() - feed.behindSinceMs >= stuckMs) {
      this.#snapshots.want(feed);
    }
    return false;
  }

  /** Asks the view how far it is, where this indexer has not applied anything itself, and whether it has lost something. */
  #audit(): void {
    if (this.#auditing) return;
    const { store, now } = this.#options;
    this.#auditing = true;
    this.#auditedAtMs = now();
    const before = new Map(
      [...this.#feeds].map(({ key, applied, published }) => [key, { applied, published }]),
    );
    this.figures.otherCalls += 1;
    void guarded(
      () =>
        after(store.fleet(0), (rows) => {
          this.#auditing = false;
          for (const row of rows) this.#compare(row, before);
          this.#answered();
        }),
      (thrown) => {
        this.#auditing = false;
        this.#failed(toKedgeError(thrown), "audit");
      },
    );
  }

  #compare(
    row: FleetRow,
    before: ReadonlyMap<IncarnationKey, { readonly applied: number | null; readonly published: number }>,
  ): void {
    const feed = this.#feeds.get(row);
    const then = feed === undefined ? undefined : before.get(feed.key);
    // What was written meanwhile is newer than the answer.
    if (feed === undefined || then === undefined || feed.applied !== then.applied) return;
    const inView = Math.max(0, then.published - row.feed.lagEvents);
    if (feed.applied === null) {
      this.#feeds.applied(feed, inView);
      // A view that has nothing of what was published is a new one, unless it is on its way.
      if (inView === 0 && then.published > 0 && this.#writer.idle) this.#snapshots.want(feed);
    } else if (inView < feed.applied) {
      feed.applied = inView;
    }
  }

  /** The view has answered; if it is another one than before, it is told everything again. */
  #answered(): void {
    this.#viewAnswered = true;
    this.#viewFailure = null;
    const { epoch } = this.#options.store;
    if (epoch === this.#epoch) return;
    const before = this.#epoch;
    this.#epoch = epoch;
    if (before === "" || this.#subscriptions.length === 0) return;
    for (const known of this.#ranks) this.#revive(known);
    this.#callRoll();
  }

  #callRoll(): void {
    const { bus, now } = this.#options;
    if (now() - this.#rolledAtMs < this.#rollEveryMs) return;
    this.#rolledAtMs = now();
    this.#rollEveryMs = Math.min(this.#rollEveryMs * 2, ROLL_CALL_MS.most);
    this.figures.rollCalls += 1;
    bus.callRoll();
  }

  #failed(error: KedgeError, doing: string): void {
    this.figures.storeErrors += 1;
    if (error.code === "view_unavailable") this.#viewFailure = error;
    this.#options.onError(error, doing);
  }

  /** A hole that an abandoned write leaves is found by the next batch or report. */
  #writeFailed(error: KedgeError, run: readonly Work[], abandoned: boolean): void {
    this.#failed(error, run[0]!.kind);
    if (!abandoned) return;
    for (const work of run) {
      if (work.kind === "registration") this.#registering.delete(nameOf(work.registration));
      // Nobody in charge here any more: the log delivers it to whoever is.
      if (work.kind === "kv" && this.#subscriptions.length > 0) work.done();
    }
  }
}

function toWork({ batch, done }: Held): KvWork {
  return { kind: "kv", batch, done };
}
