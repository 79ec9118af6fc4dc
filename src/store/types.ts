/** The view's interface: one read per request, batched writes, leases by the store's clock (design D1, D3, D4, D6). */

import type {
  BusyThresholds,
  FleetRow,
  IncarnationKey,
  LoadReport,
  Registration,
  Tier,
} from "../fleet/types.ts";

/** Who leads among several processes that could do the same work; the loser of a race stands by. */
export interface LeaderLease {
  /** Takes or keeps the lease. False: another holds it. */
  renew(): MaybePromise<boolean>;
  /** Gives it up at once, if it is held here. */
  release(): MaybePromise<void>;
}

/** The memory store answers at once, Redis later; callers await either. */
export type MaybePromise<T> = T | Promise<T>;

/**
 * Depths of every slot that holds some of a prompt. Structure of arrays; only the first `count` rows are valid.
 * The store reuses one result object: it is valid until the next lookup on the same store.
 */
export interface LookupResult {
  count: number;
  slots: Uint32Array;
  /** Leading keys held by confirmed entries. */
  confirmedDepth: Uint32Array;
  /** Usable tokens at that depth, as the agent published them (D2, D5). */
  confirmedTokens: Uint32Array;
  /** Leading keys held by predictions (rounded down to a prediction boundary). */
  predictedDepth: Uint32Array;
  predictedTokens: Uint32Array;
  /** Index probes spent. */
  probes: number;
  /** True if the probe limit was reached: depths of shallower holders are lower bounds. */
  truncated: boolean;
}

export interface ViewRead {
  readonly epoch: string;
  readonly lookup: LookupResult;
  /** Rows of the asked model's workers, alive only, sorted by (worker, rank). */
  readonly fleet: readonly FleetRow[];
  readonly thresholds: BusyThresholds;
}

/** Keys root → leaf that a slot now holds; consecutive along one chain. */
export interface StoreOp {
  readonly op: "store";
  readonly tier: Tier;
  /** First key of the chain: what a view with several shards is split by. */
  readonly root: bigint;
  /** Key just before keys[0], null at the chain's start. A child's lease never outlives this parent's. */
  readonly parent: bigint | null;
  readonly keys: BigUint64Array;
  /** Usable tokens per key when it is the deepest one matched; same length as keys. */
  readonly tokens: Uint32Array;
}

/** Keys that a slot no longer holds; descendants are removed by the same or earlier ops (prefix-closed). */
export interface RemoveOp {
  readonly op: "remove";
  readonly tier: Tier;
  /** First key of the chain that all of the keys belong to. */
  readonly root: bigint;
  readonly keys: BigUint64Array;
}

export type KvOp = StoreOp | RemoveOp;

/** One numbered batch of one rank, as its agent published it: clean, prefix-closed, in order (D5). */
export interface KvBatch extends IncarnationKey {
  readonly model: string;
  /** 1, 2, 3 … per incarnation. */
  readonly sequence: number;
  readonly ops: readonly KvOp[];
}

export interface KvSnapshot extends IncarnationKey {
  readonly model: string;
  /** Batches up to and including this one are contained. */
  readonly sequence: number;
  readonly ops: readonly StoreOp[];
}

/** `applied`; `duplicate`: already in; `gap`: batches before it are missing, ask for a snapshot; `retired`/`unknown`: refused. */
export type ApplyOutcome = "applied" | "duplicate" | "gap" | "retired" | "unknown";

/** What became of a load report; `unknown`: the view does not know the rank (it may be new or was emptied): register it again. */
export type ReportOutcome = "applied" | "retired" | "unknown";

/** Written when a request is sent: reservation and prediction in one call (D6). */
export interface ReserveWrite extends IncarnationKey {
  readonly requestId: string;
  readonly blocks: number;
  readonly prefillTokens: number;
  /** Backstop in case no load report ever covers it. */
  readonly reservationTtlMs: number;
  /** The prompt's chain, to be held as predicted by the worker's device slot; null: predict nothing. */
  readonly prediction: {
    readonly keys: BigUint64Array;
    /** Estimated tokens at key index i = round((i + 1) · tokensPerKey). */
    readonly tokensPerKey: number;
    readonly ttlMs: number;
  } | null;
}

export interface ViewStore {
  /** Random name of this life of the view; changes when it is emptied. A remote store: as last seen, empty before the first answer. */
  readonly epoch: string;
  /**
   * One round trip: depths of a prompt's keys plus fleet rows. `keys` may be empty (cold or unkeyed prompt).
   * Memory: synchronous and free of garbage but for fleet rows, which are cached until something changes.
   */
  read(model: string, keys: BigUint64Array): MaybePromise<ViewRead>;
  /**
   * Registers or refreshes a rank's incarnation; a new one retires the older of the same (worker, rank). Returns its
   * slots, or null for an incarnation that was retired before (a late message), unless its successor has been silent for
   * `SUCCESSOR_SILENT_MS`: then the successor was the late message, and the rank begins anew under the older name.
   */
  register(registration: Registration): MaybePromise<Readonly<Record<Tier, number>> | null>;
  /** Takes a rank out of the fleet; its entries are inert from now on. */
  retire(key: IncarnationKey): MaybePromise<void>;
  /** Applies batches in order. Errors: `KedgeError` `invalid_request` for a malformed op, before anything is written. */
  apply(batches: readonly KvBatch[]): MaybePromise<readonly ApplyOutcome[]>;
  /** Sets a rank's keys to exactly the snapshot's and its watermark to the snapshot's sequence. */
  applySnapshot(snapshot: KvSnapshot): MaybePromise<ApplyOutcome>;
  reserve(write: ReserveWrite): MaybePromise<void>;
  /** Drops a reservation early: the forward failed before the engine accepted it. */
  release(key: IncarnationKey, requestId: string): MaybePromise<void>;
  /**
   * Folds load reports in one write: load, feed, and deletion of the covered reservations. `heartbeat`: the indexer's own heartbeat came
   * round over the bus since the last call, so that from here on a rank's silence is the rank's own and not the bus's (D6); without it
   * nobody is ever judged dead. May be called with no reports.
   */
  report(reports: readonly LoadReport[], heartbeat?: boolean): MaybePromise<readonly ReportOutcome[]>;
  /** All models with at least one live worker, with their rows. A remote store may answer from a copy of at most `maxAgeMs`. */
  fleet(maxAgeMs?: number): MaybePromise<readonly FleetRow[]>;
  getThresholds(model: string): MaybePromise<BusyThresholds>;
  setThresholds(model: string, thresholds: BusyThresholds): MaybePromise<void>;
  /** Begins a new epoch with an empty fleet and index; thresholds stay. Agents' next registrations and snapshots fill it again. */
  reset(): MaybePromise<void>;
}
