/** The last registration of each rank: what needs no second write, and what an emptied view is told again. */

import type { IncarnationKey, Registration } from "../fleet/types.ts";

export interface KnownRank {
  readonly registration: Registration;
  /** The registration as text, to compare with. */
  readonly text: string;
  readonly writtenAtMs: number;
  heardAtMs: number;
}

/** More ranks than any fleet has. */
const MAX_RANKS = 16_384;

export class RankTable {
  readonly #ranks = new Map<string, KnownRank>();

  /** The rank of this (worker, rank) if it is in this very life. */
  get(key: IncarnationKey): KnownRank | undefined {
    const known = this.#ranks.get(nameOf(key));
    return known?.registration.incarnation === key.incarnation ? known : undefined;
  }

  get size(): number {
    return this.#ranks.size;
  }

  /** Notes a registration that the view has. */
  written(registration: Registration, nowMs: number): void {
    const name = nameOf(registration);
    this.#ranks.delete(name);
    for (const oldest of this.#ranks.keys()) {
      if (this.#ranks.size < MAX_RANKS) break;
      this.#ranks.delete(oldest);
    }
    const text = JSON.stringify(registration);
    this.#ranks.set(name, { registration, text, writtenAtMs: nowMs, heardAtMs: nowMs });
  }

  delete(key: IncarnationKey): void {
    if (this.get(key) !== undefined) this.#ranks.delete(nameOf(key));
  }

  dropSilent(beforeMs: number): void {
    for (const [name, { heardAtMs }] of this.#ranks) if (heardAtMs < beforeMs) this.#ranks.delete(name);
  }

  [Symbol.iterator](): IterableIterator<KnownRank> {
    return this.#ranks.values();
  }

  clear(): void {
    this.#ranks.clear();
  }
}

export function nameOf({ worker, rank }: Pick<IncarnationKey, "worker" | "rank">): string {
  return JSON.stringify([worker, rank]);
}
