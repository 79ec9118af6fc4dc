/** The view in this process's memory: answers at once, without garbage but for changed fleet rows (design D1–D6). */

import { KedgeError } from "../../errors/index.ts";
import { DEFAULT_LIVENESS, isAlive, type LivenessSettings, SUCCESSOR_SILENT_MS } from "../../fleet/rules.ts";
import {
  type BusyThresholds,
  type FleetRow,
  type IncarnationKey,
  type LoadReport,
  type Registration,
  TIERS,
  type Tier,
} from "../../fleet/types.ts";
import type {
  ApplyOutcome,
  KvBatch,
  KvOp,
  KvSnapshot,
  LookupResult,
  RemoveOp,
  ReportOutcome,
  ReserveWrite,
  StoreOp,
  ViewRead,
  ViewStore,
} from "../types.ts";
import { ChainDepths } from "./chain-depths.ts";
import { ChainSearch, MAX_PROBES } from "./chain-search.ts";
import { FleetTable } from "./fleet-table.ts";
import { HolderIndex } from "./holder-index.ts";
import { Lookup } from "./lookup.ts";
import { Predictions } from "./predictions.ts";
import type { Rank } from "./rank.ts";
import { SlotTable } from "./slots.ts";

export interface MemoryStoreOptions {
  /** Milliseconds; the only clock of the view. Steps backwards are ignored. */
  readonly now: () => number;
  /** Uniform in [0, 1): names the epoch and seeds the hash tables. */
  readonly random: () => number;
  /** Life of a confirmed holder. */
  readonly horizonMs?: number;
  /** Most predicted holders kept; the oldest make room. */
  readonly maxPredictedEntries?: number;
  /** Most index probes of one lookup (D1), up to 1,024. */
  readonly probeLimit?: number;
  /** How old `lagMs`, `ageMs` and liveness in cached fleet rows may be. Changes of load and reservations always show. */
  readonly fleetMaxAgeMs?: number;
  readonly liveness?: LivenessSettings;
}

/** What the view holds and what it refused, for metrics and benchmarks. */
export interface MemoryStoreFigures {
  readonly entries: number;
  readonly holders: number;
  readonly predictedHolders: number;
  /** Bytes of all tables. */
  readonly bytes: number;
  readonly slots: number;
  /** Keys of store ops whose parent the slot does not hold. */
  readonly orphanedKeys: number;
  /** Keys with more holders than an entry can have. */
  readonly overflownKeys: number;
  /** Reservations, reports, batches and snapshots of retired or unknown incarnations. */
  readonly refusedWrites: number;
}

type Slots = Readonly<Record<Tier, number>>;

/** Leases are counted in ticks of this length since the store was made, rounded up. */
const TICK_MS = 100;

/** Places of the tables to sweep per key written. */
const SWEEP_PER_KEY = 2;

/** Share of a lookup's probes kept for predictions, if there are any. */
const PREDICTION_PROBES = 1 / 4;

const NO_THRESHOLDS: BusyThresholds = {
  activeDecodeBlocksThreshold: null,
  activePrefillTokensThreshold: null,
  activePrefillTokensThresholdFrac: null,
};

export class MemoryStore implements ViewStore {
  private readonly nameEpoch: () => string;
  private epochName: string;
  private readonly clock: () => number;
  private readonly startMs: number;
  private readonly horizonMs: number;
  private readonly probeLimit: number;
  private readonly slotTable = new SlotTable();
  private readonly confirmed: HolderIndex;
  private readonly search: ChainSearch;
  private readonly predictions: Predictions;
  private readonly fleetTable: FleetTable;
  private readonly thresholds = new Map<string, BusyThresholds>();
  private readonly lookup = new Lookup();
  private readonly scratch = new ChainDepths();
  /** One key as a pair of words, in the machine's byte order as in key arrays. */
  private readonly oneKey = new BigUint64Array(1);
  private readonly oneKeyWords = new Int32Array(this.oneKey.buffer);
  private nowMs: number;
  private heartbeatAtMs = Number.NEGATIVE_INFINITY;
  private orphanedKeys = 0;
  private overflownKeys = 0;
  private refusedWrites = 0;

  constructor(options: MemoryStoreOptions) {
    const word = () => Math.floor(options.random() * 2 ** 32);
    const seed = word();
    const liveness = options.liveness ?? DEFAULT_LIVENESS;
    this.nameEpoch = () => [word(), word()].map((part) => part.toString(16).padStart(8, "0")).join("");
    this.epochName = this.nameEpoch();
    this.clock = options.now;
    this.startMs = this.clock();
    this.nowMs = this.startMs;
    this.horizonMs = options.horizonMs ?? 3_600_000;
    this.probeLimit = Math.min(options.probeLimit ?? 128, MAX_PROBES);
    this.confirmed = new HolderIndex(this.slotTable, seed);
    this.search = new ChainSearch(this.confirmed);
    this.predictions = new Predictions(this.slotTable, seed, options.maxPredictedEntries ?? 2 ** 20);
    this.fleetTable = new FleetTable({
      maxAgeMs: options.fleetMaxAgeMs ?? 100,
      horizonMs: this.horizonMs,
      isAlive: (rank, nowMs) => isAlive(nowMs - rank.heardAtMs, nowMs - this.heartbeatAtMs, liveness),
    });
  }

  get epoch(): string {
    return this.epochName;
  }

  read(model: string, keys: BigUint64Array): ViewRead {
    const lookup = this.depths(keys);
    return {
      epoch: this.epoch,
      lookup,
      fleet: this.fleetTable.rows(model, this.nowMs),
      thresholds: this.getThresholds(model),
    };
  }

  /** The lookup alone: depths of every slot that holds some of the chain. */
  depths(keys: BigUint64Array): LookupResult {
    const now = this.tick();
    const { lookup, scratch, predictions, probeLimit } = this;
    lookup.begin(this.slotTable.size);
    if (keys.length === 0) return lookup;
    const words = wordsOf(keys);
    const spare = predictions.empty ? 0 : Math.floor(probeLimit * PREDICTION_PROBES);
    this.search.depths(words, keys.length, null, probeLimit - spare, now, scratch);
    lookup.addConfirmed(scratch);
    if (spare > 0) predictions.read(words, probeLimit - lookup.probes, now, scratch, lookup);
    return lookup;
  }

  register(registration: Registration): Slots | null {
    this.tick();
    const rank = this.fleetTable.rankOf(registration);
    if (rank?.registration.incarnation === registration.incarnation) {
      rank.heardAtMs = this.nowMs;
      this.fleetTable.refresh(rank, registration);
      return rank.slots;
    }
    if (this.fleetTable.isRetired(registration, this.nowMs)) {
      if (rank === undefined || this.nowMs - rank.heardAtMs <= SUCCESSOR_SILENT_MS) return null;
      this.fleetTable.unmarkRetired(registration);
    }
    if (rank !== undefined) this.retireRank(rank);
    return this.fleetTable.add(registration, this.allot(), this.nowMs).slots;
  }

  retire(key: IncarnationKey): void {
    this.tick();
    const rank = this.fleetTable.current(key);
    if (rank === undefined) this.fleetTable.markRetired(key, this.nowMs);
    else this.retireRank(rank);
  }

  /** Also forgets ranks that were silent for so long that all their leases have ended; they may come back. */
  private heartbeat(): void {
    this.heartbeatAtMs = this.nowMs;
    for (const rank of [...this.fleetTable.ranks()]) {
      if (this.nowMs - rank.heardAtMs > this.horizonMs) this.forget(rank);
    }
  }

  apply(batches: readonly KvBatch[]): ApplyOutcome[] {
    for (const batch of batches) checkOps(batch.ops);
    const now = this.tick();
    return batches.map((batch) => this.applyOne(batch, now));
  }

  /** The simplest way to hold exactly these keys: fresh slots, which makes what the old ones held inert. */
  applySnapshot(snapshot: KvSnapshot): ApplyOutcome {
    checkOps(snapshot.ops);
    const now = this.tick();
    const rank = this.fleetTable.current(snapshot);
    if (rank === undefined) return this.refuse(snapshot);
    rank.heardAtMs = this.nowMs;
    if (snapshot.sequence < rank.watermark) return "duplicate";
    this.retireSlots(rank);
    rank.slots = this.allot();
    for (const op of snapshot.ops) this.storeKeys(op, rank.slots[op.tier], now);
    rank.advance(snapshot.sequence, this.nowMs);
    this.fleetTable.changed(rank);
    return "applied";
  }

  reserve(write: ReserveWrite): void {
    const now = this.tick();
    const rank = this.fleetTable.current(write);
    if (rank === undefined) {
      this.refusedWrites += 1;
      return;
    }
    const { requestId, blocks, prefillTokens, reservationTtlMs, prediction } = write;
    rank.reserve(requestId, { blocks, prefillTokens, endsAtMs: this.nowMs + reservationTtlMs });
    this.fleetTable.changed(rank);
    if (prediction === null) return;
    const { keys, tokensPerKey } = prediction;
    // No lease may outlast the horizon, after which its slot may stand for another incarnation.
    const expiry = this.expiryTick(Math.min(prediction.ttlMs, this.horizonMs));
    if (expiry > now) this.predictions.put(wordsOf(keys), rank.slots.device, expiry, tokensPerKey, now);
  }

  release(key: IncarnationKey, requestId: string): void {
    const rank = this.fleetTable.current(key);
    if (rank === undefined) return;
    rank.release(requestId);
    this.fleetTable.changed(rank);
  }

  report(reports: readonly LoadReport[], heartbeat = false): ReportOutcome[] {
    this.tick();
    const outcomes = reports.map((report) => this.fold(report));
    if (heartbeat) this.heartbeat();
    return outcomes;
  }

  private fold(report: LoadReport): ReportOutcome {
    const rank = this.fleetTable.current(report);
    if (rank === undefined) return this.refuse(report);
    rank.heardAtMs = this.nowMs;
    rank.report(report, this.nowMs);
    this.fleetTable.changed(rank);
    return "applied";
  }

  fleet(): FleetRow[] {
    this.tick();
    return [...this.fleetTable.models()].sort().flatMap((model) => this.fleetTable.rows(model, this.nowMs));
  }

  getThresholds(model: string): BusyThresholds {
    return this.thresholds.get(model) ?? NO_THRESHOLDS;
  }

  setThresholds(model: string, thresholds: BusyThresholds): void {
    this.thresholds.set(model, thresholds);
  }

  reset(): void {
    this.tick();
    for (const rank of [...this.fleetTable.ranks()]) this.forget(rank);
    this.epochName = this.nameEpoch();
  }

  figures(): MemoryStoreFigures {
    return {
      entries: this.confirmed.entries,
      holders: this.confirmed.holders,
      predictedHolders: this.predictions.holders,
      bytes: this.confirmed.bytes + this.search.bytes + this.predictions.bytes,
      slots: this.slotTable.size,
      orphanedKeys: this.orphanedKeys,
      overflownKeys: this.overflownKeys,
      refusedWrites: this.refusedWrites,
    };
  }

  private applyOne(batch: KvBatch, now: number): ApplyOutcome {
    const rank = this.fleetTable.current(batch);
    if (rank === undefined) return this.refuse(batch);
    rank.heardAtMs = this.nowMs;
    if (batch.sequence <= rank.watermark) return "duplicate";
    if (batch.sequence > rank.watermark + 1) return "gap";
    for (const op of batch.ops) {
      const slot = rank.slots[op.tier];
      if (op.op === "store") this.storeKeys(op, slot, now);
      else this.removeKeys(op, slot, now);
    }
    rank.advance(batch.sequence, this.nowMs);
    this.fleetTable.changed(rank);
    return "applied";
  }

  /** All keys get one expiry, at most the parent's, so that leases never increase along a chain. */
  private storeKeys(op: StoreOp, slot: number, now: number): void {
    let expiry = this.expiryTick(this.horizonMs);
    if (op.parent !== null) {
      this.oneKey[0] = op.parent;
      const parents = this.confirmed.expiryOf(this.oneKeyWords[0], this.oneKeyWords[1], slot, now);
      if (parents === 0) {
        this.orphanedKeys += op.keys.length;
        return;
      }
      expiry = Math.min(expiry, parents);
    }
    this.confirmed.sweep(SWEEP_PER_KEY * op.keys.length, now);
    const words = wordsOf(op.keys);
    for (let i = 0; i < op.keys.length; i++) {
      if (this.confirmed.put(words[2 * i], words[2 * i + 1], slot, expiry, op.tokens[i], now)) continue;
      this.overflownKeys += op.keys.length - i;
      return;
    }
  }

  private removeKeys(op: RemoveOp, slot: number, now: number): void {
    const words = wordsOf(op.keys);
    for (let i = 0; i < op.keys.length; i++) this.confirmed.remove(words[2 * i], words[2 * i + 1], slot, now);
  }

  private refuse(key: IncarnationKey): "retired" | "unknown" {
    this.refusedWrites += 1;
    return this.fleetTable.isRetired(key, this.nowMs) ? "retired" : "unknown";
  }

  private retireRank(rank: Rank): void {
    this.forget(rank);
    this.fleetTable.markRetired(rank.registration, this.nowMs);
  }

  private forget(rank: Rank): void {
    this.retireSlots(rank);
    this.fleetTable.remove(rank);
  }

  private retireSlots(rank: Rank): void {
    this.slotTable.retire(Object.values(rank.slots), this.expiryTick(this.horizonMs));
  }

  private allot(): Slots {
    const now = this.tick();
    const [device, host, disk] = TIERS.map(() => this.slotTable.allot(now));
    return { device, host, disk };
  }

  /** Reads the clock; the tick of now. */
  private tick(): number {
    const nowMs = this.clock();
    if (nowMs > this.nowMs) this.nowMs = nowMs;
    return Math.floor((this.nowMs - this.startMs) / TICK_MS);
  }

  /** The tick from which a lease of `ttlMs` that begins now is over. */
  private expiryTick(ttlMs: number): number {
    return Math.ceil((this.nowMs - this.startMs + ttlMs) / TICK_MS);
  }
}

/** Keys as pairs of 32-bit words: a view, since reading 64-bit integers one by one makes garbage. */
function wordsOf(keys: BigUint64Array): Int32Array {
  return new Int32Array(keys.buffer, keys.byteOffset, keys.length * 2);
}

/** Refuses a malformed batch whole. */
function checkOps(ops: readonly KvOp[]): void {
  for (const op of ops) {
    if (!TIERS.includes(op.tier)) throw new KedgeError("invalid_request", `Unknown cache tier "${op.tier}".`);
    if (op.op !== "store" || op.tokens.length === op.keys.length) continue;
    const counts = `${op.keys.length} keys and ${op.tokens.length} token counts`;
    throw new KedgeError("invalid_request", `A store op has ${counts}; it needs as many of both.`);
  }
}
