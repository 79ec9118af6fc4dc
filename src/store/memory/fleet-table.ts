/** The ranks that the memory store knows, by worker and by model, and their cached fleet rows. */

import type { FleetRow, IncarnationKey, Registration, Tier } from "../../fleet/types.ts";
import { Rank } from "./rank.ts";

interface ModelGroup {
  /** Sorted by (worker, rank). */
  ranks: Rank[];
  rows: readonly FleetRow[];
  /** Some rank has changed since the rows were built. */
  changed: boolean;
  /** From this time on every row is out of date. */
  staleAtMs: number;
}

export interface FleetTableOptions {
  /** Rows say how long ago things were; a cached copy may be this much out of date. */
  readonly maxAgeMs: number;
  /** How long a retired incarnation is remembered, so that its late messages are refused. */
  readonly horizonMs: number;
  readonly isAlive: (rank: Rank, nowMs: number) => boolean;
}

const NO_ROWS: readonly FleetRow[] = [];

export class FleetTable {
  private readonly options: FleetTableOptions;
  private readonly workers = new Map<string, Map<number, Rank>>();
  private readonly groups = new Map<string, ModelGroup>();
  /** Retired incarnations and when they were, oldest first. */
  private readonly retired = new Map<string, number>();

  constructor(options: FleetTableOptions) {
    this.options = options;
  }

  /** The rank whose current incarnation this is. */
  current(key: IncarnationKey): Rank | undefined {
    const rank = this.rankOf(key);
    return rank?.registration.incarnation === key.incarnation ? rank : undefined;
  }

  /** The rank of this (worker, rank) in whatever life. */
  rankOf(key: IncarnationKey): Rank | undefined {
    return this.workers.get(key.worker)?.get(key.rank);
  }

  isRetired(key: IncarnationKey, nowMs: number): boolean {
    const atMs = this.retired.get(nameOf(key));
    return atMs !== undefined && nowMs - atMs <= this.options.horizonMs;
  }

  add(registration: Registration, slots: Readonly<Record<Tier, number>>, nowMs: number): Rank {
    const rank = new Rank(registration, slots, nowMs);
    const ranks = this.workers.get(registration.worker) ?? new Map<number, Rank>();
    this.workers.set(registration.worker, ranks.set(registration.rank, rank));
    this.join(rank);
    return rank;
  }

  /** A refreshed registration of the same incarnation; the model it serves may have changed. */
  refresh(rank: Rank, registration: Registration): void {
    if (rank.registration.model === registration.model) {
      rank.registration = registration;
      this.changed(rank);
      return;
    }
    this.leave(rank);
    rank.registration = registration;
    this.join(rank);
  }

  remove(rank: Rank): void {
    const { worker, rank: number } = rank.registration;
    const ranks = this.workers.get(worker);
    ranks?.delete(number);
    if (ranks?.size === 0) this.workers.delete(worker);
    this.leave(rank);
  }

  /** From now on the incarnation's messages are refused, whether it was known or not. */
  markRetired(key: IncarnationKey, nowMs: number): void {
    for (const [name, atMs] of this.retired) {
      if (nowMs - atMs <= this.options.horizonMs) break;
      this.retired.delete(name);
    }
    // Once more at the end of the order, even if it was retired before.
    this.retired.delete(nameOf(key));
    this.retired.set(nameOf(key), nowMs);
  }

  unmarkRetired(key: IncarnationKey): void {
    this.retired.delete(nameOf(key));
  }

  /** The rank's row must be built anew. */
  changed(rank: Rank): void {
    const group = this.groups.get(rank.registration.model);
    if (group !== undefined) group.changed = true;
    rank.cachedRow = null;
  }

  rows(model: string, nowMs: number): readonly FleetRow[] {
    const group = this.groups.get(model);
    if (group === undefined) return NO_ROWS;
    if (group.changed || nowMs >= group.staleAtMs) this.build(group, nowMs);
    return group.rows;
  }

  models(): IterableIterator<string> {
    return this.groups.keys();
  }

  *ranks(): Generator<Rank> {
    for (const ranks of this.workers.values()) yield* ranks.values();
  }

  private build(group: ModelGroup, nowMs: number): void {
    const rows: FleetRow[] = [];
    const all = nowMs >= group.staleAtMs;
    if (all) group.staleAtMs = nowMs + this.options.maxAgeMs;
    for (const rank of group.ranks) {
      const ended = nowMs >= rank.reservationsSoonestMs;
      if (ended) rank.endReservations(nowMs);
      group.staleAtMs = Math.min(group.staleAtMs, rank.reservationsSoonestMs);
      if (!this.options.isAlive(rank, nowMs)) continue;
      if (all || ended || rank.cachedRow === null) rank.cachedRow = rank.row(nowMs);
      rows.push(rank.cachedRow);
    }
    group.rows = rows;
    group.changed = false;
  }

  private join(rank: Rank): void {
    const { model } = rank.registration;
    let group = this.groups.get(model);
    if (group === undefined) {
      group = { ranks: [], rows: NO_ROWS, changed: true, staleAtMs: Number.NEGATIVE_INFINITY };
      this.groups.set(model, group);
    }
    group.ranks.push(rank);
    group.ranks.sort(byWorkerAndRank);
    this.changed(rank);
  }

  private leave(rank: Rank): void {
    const { model } = rank.registration;
    const group = this.groups.get(model);
    if (group === undefined) return;
    group.ranks = group.ranks.filter((other) => other !== rank);
    group.changed = true;
    if (group.ranks.length === 0) this.groups.delete(model);
  }
}

function nameOf(key: IncarnationKey): string {
  return JSON.stringify([key.worker, key.rank, key.incarnation]);
}

function byWorkerAndRank(a: Rank, b: Rank): number {
  const left = a.registration;
  const right = b.registration;
  if (left.worker !== right.worker) return left.worker < right.worker ? -1 : 1;
  return left.rank - right.rank;
}
