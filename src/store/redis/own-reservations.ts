/** What this process reserved since a reading was asked for: counted on top of its rows, which do not contain it yet. */

import type { IncarnationKey } from "../../fleet/types.ts";
import type { Reserved } from "./roster.ts";

interface Own {
  readonly incarnation: string;
  readonly requestId: string;
  readonly blocks: number;
  readonly prefillTokens: number;
  readonly atMs: number;
  readonly serial: number;
}

const NONE = { requests: 0, blocks: 0, prefillTokens: 0 };

export class OwnReservations {
  private readonly keepMs: number;
  /** By rank, in the order of their latest; each oldest first. */
  private readonly ranks = new Map<string, Own[]>();
  private serial = 0;

  constructor(keepMs: number) {
    this.keepMs = keepMs;
  }

  /** Reservations made from now on are newer than this. */
  get mark(): number {
    return this.serial;
  }

  add(rank: string, write: Omit<Own, "atMs" | "serial">, atMs: number): void {
    const { incarnation, requestId, blocks, prefillTokens } = write;
    const kept = (this.ranks.get(rank) ?? []).filter((each) => each.atMs > atMs - this.keepMs);
    const serial = ++this.serial;
    this.ranks.delete(rank);
    this.ranks.set(rank, [...kept, { incarnation, requestId, blocks, prefillTokens, atMs, serial }]);
    for (const [other, own] of this.ranks) {
      if (own.some((each) => each.atMs > atMs - this.keepMs)) break;
      this.ranks.delete(other);
    }
  }

  release(rank: string, requestId: string): void {
    const own = this.ranks.get(rank);
    if (own !== undefined)
      this.ranks.set(
        rank,
        own.filter((each) => each.requestId !== requestId),
      );
  }

  /** Those of this life of the rank that are newer than a mark and were made after `sinceMs`. */
  sum(rank: string, { incarnation }: IncarnationKey, mark: number, sinceMs: number): Reserved {
    const own = this.ranks.get(rank);
    if (own === undefined) return NONE;
    const sum = { ...NONE };
    for (const each of own) {
      if (each.incarnation !== incarnation || each.serial <= mark || each.atMs <= sinceMs) continue;
      sum.requests += 1;
      sum.blocks += each.blocks;
      sum.prefillTokens += each.prefillTokens;
    }
    return sum;
  }
}
