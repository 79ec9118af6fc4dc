/** A naive model of the view for the store's contract tests: plain maps, linear walks, the rules of design D3, D4 and D6. */

import { SUCCESSOR_SILENT_MS } from "../../src/fleet/rules.ts";
import { type IncarnationKey, type LoadReport, TIERS, type Tier } from "../../src/fleet/types.ts";
import { boundaryAt, boundaryCount } from "../../src/prefix/boundaries.ts";
import type { ApplyOutcome, KvBatch, KvOp, KvSnapshot, ReserveWrite } from "../../src/store/types.ts";

interface Lease {
  endsAtMs: number;
  tokens: number;
}

export interface ModelDepth {
  confirmedDepth: number;
  confirmedTokens: number;
  predictedDepth: number;
  predictedTokens: number;
}

export class ModelRank {
  readonly key: IncarnationKey;
  readonly tiers: Record<Tier, Map<bigint, Lease>> = { device: new Map(), host: new Map(), disk: new Map() };
  readonly predicted = new Map<bigint, Lease>();
  readonly reservations = new Map<string, { blocks: number; prefillTokens: number; endsAtMs: number }>();
  readonly admittedEarly = new Set<string>();
  watermark = 0;
  published = 0;
  report: LoadReport | null = null;
  heardAtMs: number;

  constructor(key: IncarnationKey, nowMs: number) {
    this.key = key;
    this.heardAtMs = nowMs;
  }
}

export class ViewModel {
  nowMs = 0;
  readonly ranks = new Map<string, ModelRank>();
  /** Retired incarnations and when they were; they are remembered for the horizon. */
  private readonly retired = new Map<string, number>();
  private readonly horizonMs: number;

  constructor(horizonMs: number) {
    this.horizonMs = horizonMs;
  }

  register(key: IncarnationKey): boolean {
    const present = this.ranks.get(placeOf(key));
    if (present?.key.incarnation === key.incarnation) {
      present.heardAtMs = this.nowMs;
      return true;
    }
    if (this.isRetired(key)) {
      if (present === undefined || this.nowMs - present.heardAtMs <= SUCCESSOR_SILENT_MS) return false;
      this.retired.delete(idOf(key));
    }
    if (present !== undefined) this.retired.set(idOf(present.key), this.nowMs);
    this.ranks.set(placeOf(key), new ModelRank(key, this.nowMs));
    return true;
  }

  retire(key: IncarnationKey): void {
    this.retired.set(idOf(key), this.nowMs);
    if (this.current(key) !== undefined) this.ranks.delete(placeOf(key));
  }

  current(key: IncarnationKey): ModelRank | undefined {
    const rank = this.ranks.get(placeOf(key));
    return rank?.key.incarnation === key.incarnation ? rank : undefined;
  }

  apply(batch: KvBatch): ApplyOutcome {
    const rank = this.current(batch);
    if (rank === undefined) return this.refusal(batch);
    rank.heardAtMs = this.nowMs;
    if (batch.sequence <= rank.watermark) return "duplicate";
    if (batch.sequence > rank.watermark + 1) return "gap";
    for (const op of batch.ops) this.applyOp(rank, op);
    this.advance(rank, batch.sequence);
    return "applied";
  }

  applySnapshot(snapshot: KvSnapshot): ApplyOutcome {
    const rank = this.current(snapshot);
    if (rank === undefined) return this.refusal(snapshot);
    rank.heardAtMs = this.nowMs;
    if (snapshot.sequence < rank.watermark) return "duplicate";
    for (const tier of TIERS) rank.tiers[tier].clear();
    rank.predicted.clear();
    for (const op of snapshot.ops) this.applyOp(rank, op);
    this.advance(rank, snapshot.sequence);
    return "applied";
  }

  reserve(write: ReserveWrite): void {
    const rank = this.current(write);
    if (rank === undefined) return;
    if (!rank.admittedEarly.delete(write.requestId)) {
      const { blocks, prefillTokens, reservationTtlMs } = write;
      rank.reservations.set(write.requestId, {
        blocks,
        prefillTokens,
        endsAtMs: this.nowMs + reservationTtlMs,
      });
    }
    if (write.prediction === null) return;
    const { keys, tokensPerKey, ttlMs } = write.prediction;
    for (let i = 0; i < boundaryCount(keys.length); i++) {
      const depth = boundaryAt(i);
      const before = rank.predicted.get(keys[depth - 1])?.endsAtMs ?? 0;
      const endsAtMs = Math.max(before, this.nowMs + ttlMs);
      rank.predicted.set(keys[depth - 1], { endsAtMs, tokens: Math.round(depth * tokensPerKey) });
    }
  }

  release(key: IncarnationKey, requestId: string): void {
    this.current(key)?.reservations.delete(requestId);
  }

  fold(report: LoadReport): void {
    const rank = this.current(report);
    if (rank === undefined) return;
    rank.heardAtMs = this.nowMs;
    this.endReservations(rank);
    for (const id of report.admitted) if (!rank.reservations.delete(id)) rank.admittedEarly.add(id);
    if (rank.report !== null && report.sequence <= rank.report.sequence) return;
    rank.report = report;
    rank.published = Math.max(rank.published, report.publishedSequence);
  }

  reserved(rank: ModelRank): { requests: number; blocks: number; prefillTokens: number } {
    this.endReservations(rank);
    const sum = { requests: 0, blocks: 0, prefillTokens: 0 };
    for (const { blocks, prefillTokens } of rank.reservations.values()) {
      sum.requests += 1;
      sum.blocks += blocks;
      sum.prefillTokens += prefillTokens;
    }
    return sum;
  }

  depth(rank: ModelRank, tier: Tier, keys: BigUint64Array): ModelDepth {
    const found = { confirmedDepth: 0, confirmedTokens: 0, predictedDepth: 0, predictedTokens: 0 };
    for (const key of keys) {
      const lease = rank.tiers[tier].get(key);
      if (lease === undefined || lease.endsAtMs <= this.nowMs) break;
      found.confirmedDepth += 1;
      found.confirmedTokens = lease.tokens;
    }
    if (tier !== "device") return found;
    for (let i = 0; i < boundaryCount(keys.length); i++) {
      const lease = rank.predicted.get(keys[boundaryAt(i) - 1]);
      if (lease === undefined || lease.endsAtMs <= this.nowMs) break;
      found.predictedDepth = boundaryAt(i);
      found.predictedTokens = lease.tokens;
    }
    return found;
  }

  private applyOp(rank: ModelRank, op: KvOp): void {
    const held = rank.tiers[op.tier];
    if (op.op === "remove") {
      for (const key of op.keys) held.delete(key);
      return;
    }
    let endsAtMs = this.nowMs + this.horizonMs;
    if (op.parent !== null) {
      const parent = held.get(op.parent);
      if (parent === undefined || parent.endsAtMs <= this.nowMs) return;
      endsAtMs = Math.min(endsAtMs, parent.endsAtMs);
    }
    op.keys.forEach((key, i) => {
      held.set(key, { endsAtMs, tokens: op.tokens[i] });
    });
  }

  private advance(rank: ModelRank, sequence: number): void {
    rank.watermark = sequence;
    rank.published = Math.max(rank.published, sequence);
  }

  private endReservations(rank: ModelRank): void {
    for (const [id, { endsAtMs }] of rank.reservations)
      if (endsAtMs <= this.nowMs) rank.reservations.delete(id);
  }

  private isRetired(key: IncarnationKey): boolean {
    const atMs = this.retired.get(idOf(key));
    return atMs !== undefined && this.nowMs - atMs <= this.horizonMs;
  }

  private refusal(key: IncarnationKey): ApplyOutcome {
    return this.isRetired(key) ? "retired" : "unknown";
  }
}

export function placeOf(key: { worker: string; rank: number }): string {
  return `${key.worker}/${key.rank}`;
}

function idOf(key: IncarnationKey): string {
  return `${placeOf(key)}/${key.incarnation}`;
}
