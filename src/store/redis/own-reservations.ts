/** What this process reserved a moment ago: counted on top of rows that cannot contain it. */

import type { IncarnationKey } from "../../fleet/types.ts";
import type { Reserved } from "./roster.ts";

interface Own {
  readonly incarnation: string;
  readonly requestId: string;
  readonly blocks: number;
  readonly prefillTokens: number;
  readonly atMs: number;
}

const NONE = { requests: 0, blocks: 0, prefillTokens: 0 };

export class OwnReservations {
  private readonly keepMs: number;
  /** By rank, in the order of their latest; each oldest first. */
  private readonly ranks = new Map<string, Own[]>();

  constructor(keepMs: number) {
    this.keepMs = keepMs;
  }

  add(rank: string, write: Omit<Own, "atMs">, atMs: number): void {
    const { incarnation, requestId, blocks, prefillTokens } = write;
    const kept = this.since(rank, atMs - this.keepMs);
    this.ranks.delete(rank);
    this.ranks.set(rank, [...kept, { incarnation, requestId, blocks, prefillTokens, atMs }]);
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

  /** Those of this life of the rank made after `sinceMs`. */
  sum(rank: string, { incarnation }: IncarnationKey, sinceMs: number): Reserved {
    if (!this.ranks.has(rank)) return NONE;
    const sum = { ...NONE };
    for (const each of this.since(rank, sinceMs)) {
      if (each.incarnation !== incarnation) continue;
      sum.requests += 1;
      sum.blocks += each.blocks;
      sum.prefillTokens += each.prefillTokens;
    }
    return sum;
  }

  private since(rank: string, sinceMs: number): Own[] {
    return (this.ranks.get(rank) ?? []).filter(({ atMs }) => atMs > sinceMs);
  }
}
