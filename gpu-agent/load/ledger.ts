/** All ranks' load at this node: the ingress's ledger on one side, load reports on the other (design D6). */

import type { IncarnationKey, LoadReport } from "../../src/fleet/types.ts";
import type { Plan } from "../../src/plan/index.ts";
import { RankLoad, type Scrape } from "./rank-load.ts";
import type { RequestLedger } from "./types.ts";

/** One-shot timers; injected so that tests own time. */
export interface Timers {
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

/** What a report says of the rank besides its load. */
export interface ReportedRank {
  /** The rank's present incarnation. */
  readonly key: IncarnationKey;
  /** Number of its last KV batch. */
  readonly sequence: number;
}

export interface LedgerOptions {
  readonly publish: (report: LoadReport) => void;
  readonly timers: Timers;
  /** A change waits at most this long for others, in milliseconds; default 5. */
  readonly coalesceMs?: number;
  /** Reports are sent at least so often; default 1 s. */
  readonly heartbeatMs?: number;
}

export interface LedgerRank {
  readonly worker: string;
  readonly rank: number;
  readonly blockSize: number;
  /** False: the engine has no metrics to be scraped. */
  readonly scraped: boolean;
  /** Asked at each report; incarnations change. */
  readonly describe: () => ReportedRank;
}

interface Rank extends LedgerRank {
  readonly load: RankLoad;
  incarnation: string;
  sequence: number;
}

/** Counts requests per rank and publishes a report soon after each change, and each second. */
export class LoadLedger implements RequestLedger {
  readonly #options: LedgerOptions;
  readonly #ranks = new Map<string, Rank>();
  /** Rank that carries a request. */
  readonly #carriers = new Map<string, Rank>();
  readonly #changed = new Set<Rank>();
  #flushTimer: unknown = null;
  #heartbeatTimer: unknown = null;
  #stopped = false;

  constructor(options: LedgerOptions) {
    this.#options = options;
    this.#beat();
  }

  /** Adds a rank, or replaces the one of that name; requests that it carries stay counted. */
  addRank(added: LedgerRank): void {
    const name = nameOf(added.worker, added.rank);
    const load = this.#ranks.get(name)?.load ?? new RankLoad(added.blockSize, added.scraped);
    const rank: Rank = { ...added, load, incarnation: "", sequence: 0 };
    this.#ranks.set(name, rank);
    for (const [requestId, carrier] of this.#carriers) {
      if (nameOf(carrier.worker, carrier.rank) === name) this.#carriers.set(requestId, rank);
    }
    this.#note(rank);
  }

  removeRank(worker: string, number: number): void {
    const rank = this.#ranks.get(nameOf(worker, number));
    if (rank === undefined) return;
    this.#ranks.delete(nameOf(worker, number));
    this.#changed.delete(rank);
  }

  /** The rank has a new incarnation, whose load nobody knows before it is reported. */
  renewed(worker: string, number: number): void {
    const rank = this.#ranks.get(nameOf(worker, number));
    if (rank !== undefined) this.#note(rank);
  }

  admitted(plan: Plan): void {
    this.finished(plan.requestId);
    const rank = this.#ranks.get(nameOf(plan.worker, plan.rank));
    if (rank === undefined) return;
    this.#carriers.set(plan.requestId, rank);
    rank.load.admitted(plan);
    this.#note(rank);
  }

  firstData(requestId: string): void {
    const rank = this.#carriers.get(requestId);
    if (rank === undefined) return;
    rank.load.firstData(requestId);
    this.#note(rank);
  }

  progressed(requestId: string, tokens: number): void {
    const rank = this.#carriers.get(requestId);
    if (rank?.load.progressed(requestId, tokens)) this.#note(rank);
  }

  finished(requestId: string): void {
    const rank = this.#carriers.get(requestId);
    if (rank === undefined) return;
    this.#carriers.delete(requestId);
    rank.load.finished(requestId);
    this.#note(rank);
  }

  /** `scrape`: what the engine's metrics say; null: they have failed for long. */
  scraped(worker: string, number: number, scrape: Scrape | null): void {
    const rank = this.#ranks.get(nameOf(worker, number));
    if (rank === undefined) return;
    const before = JSON.stringify(rank.load.current());
    if (scrape === null) rank.load.unscraped();
    else rank.load.scraped(scrape);
    if (JSON.stringify(rank.load.current()) !== before) this.#note(rank);
  }

  /** Requests under way at this node. */
  get carried(): number {
    return this.#carriers.size;
  }

  /** Publishes what has changed now. */
  flush(): void {
    if (this.#flushTimer !== null) this.#options.timers.clearTimeout(this.#flushTimer);
    this.#flushTimer = null;
    for (const rank of this.#changed) this.#report(rank);
    this.#changed.clear();
  }

  stop(): void {
    this.#stopped = true;
    this.#options.timers.clearTimeout(this.#flushTimer);
    this.#options.timers.clearTimeout(this.#heartbeatTimer);
  }

  /** A rank that was removed has no one to report for, though its requests may still come to their ends. */
  #note(rank: Rank): void {
    if (this.#ranks.get(nameOf(rank.worker, rank.rank)) !== rank) return;
    this.#changed.add(rank);
    if (this.#flushTimer !== null || this.#stopped) return;
    this.#flushTimer = this.#options.timers.setTimeout(() => {
      this.#flushTimer = null;
      this.flush();
    }, this.#options.coalesceMs ?? 5);
  }

  #beat(): void {
    this.#heartbeatTimer = this.#options.timers.setTimeout(() => {
      for (const rank of this.#ranks.values()) this.#changed.add(rank);
      this.flush();
      this.#beat();
    }, this.#options.heartbeatMs ?? 1_000);
  }

  #report(rank: Rank): void {
    const { key, sequence: publishedSequence } = rank.describe();
    if (rank.incarnation !== key.incarnation) {
      rank.incarnation = key.incarnation;
      rank.sequence = 0;
    }
    rank.sequence++;
    const admitted = rank.load.takeAdmitted();
    this.#options.publish({
      ...key,
      sequence: rank.sequence,
      ...rank.load.current(),
      admitted,
      publishedSequence,
    });
  }
}

function nameOf(worker: string, rank: number): string {
  return `${rank} ${worker}`;
}
