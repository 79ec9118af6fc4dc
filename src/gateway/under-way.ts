/** How many requests this gateway has under way at each rank: all the load that it knows of while the view is out of reach. */

import type { IncarnationKey } from "../fleet/types.ts";

/** Of a request that never ends (an edge host may drop one without a word) the count lets go after this long. */
const LONGEST_MS = 3_600_000;

interface Ticket {
  readonly rank: string;
  readonly sinceMs: number;
}

type Rank = Pick<IncarnationKey, "worker" | "rank">;

export class UnderWay {
  private readonly counts = new Map<string, number>();
  /** Oldest first. */
  private readonly tickets = new Set<Ticket>();

  of(rank: Rank): number {
    return this.counts.get(nameOf(rank)) ?? 0;
  }

  /** Counts one more until the returned function is called. */
  begin(rank: Rank, nowMs: number): () => void {
    for (const old of this.tickets) {
      if (nowMs - old.sinceMs <= LONGEST_MS) break;
      this.end(old);
    }
    const ticket = { rank: nameOf(rank), sinceMs: nowMs };
    this.tickets.add(ticket);
    this.counts.set(ticket.rank, (this.counts.get(ticket.rank) ?? 0) + 1);
    return () => this.end(ticket);
  }

  private end(ticket: Ticket): void {
    if (!this.tickets.delete(ticket)) return;
    const left = (this.counts.get(ticket.rank) ?? 0) - 1;
    if (left > 0) this.counts.set(ticket.rank, left);
    else this.counts.delete(ticket.rank);
  }
}

const nameOf = ({ worker, rank }: Rank): string => `${rank}:${worker}`;
