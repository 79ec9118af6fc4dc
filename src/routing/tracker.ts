/** What is running where, as an in-process router counts it (Dynamo's active sequences): blocks by hash, prefill tokens. */

import type { CandidateLoad } from "./types.ts";

/** A sequence hash, or a private symbol for a block that no other request can share. */
type BlockId = bigint | symbol;

interface Block {
  holders: number;
  /** What the block counts for; output decay lowers it. */
  fraction: number;
}

interface Running {
  readonly rank: Rank;
  readonly blocks: BlockId[];
  readonly startedMs: number;
  prefillTokens: number;
}

interface Rank {
  readonly blocks: Map<BlockId, Block>;
  prefillTokens: number;
  requests: number;
  /** Σ fractions over `blocks`. */
  weight: number;
}

export interface TrackerOptions {
  /** False: blocks count for nothing. Default true. */
  readonly trackActiveBlocks?: boolean;
  /** False: identical prompts share no active blocks; every request counts in full. Default true. */
  readonly assumeKvReuse?: boolean;
  /** False: prompts not yet computed count for nothing. Default true. */
  readonly trackPrefillTokens?: boolean;
}

/** A request as it is booked on a rank. */
export interface Booking {
  readonly requestId: string;
  readonly worker: string;
  readonly rank: number;
  /** Sequence hashes of the prompt's full blocks. */
  readonly hashes: readonly bigint[];
  /** Prompt tokens that the rank has to compute: max(0, prompt − cached). */
  readonly prefillTokens: number;
  /** The caller's clock, for `expire`. */
  readonly nowMs: number;
  /** Per-request settings; absent: the tracker's. */
  readonly assumeKvReuse?: boolean;
  readonly trackPrefillTokens?: boolean;
}

/** Active load per (worker, rank). No clock and no timer of its own; unknown requests are ignored. */
export class LoadTracker {
  readonly #options: Required<TrackerOptions>;
  readonly #ranks = new Map<string, Map<number, Rank>>();
  /** In order of booking, which is the order of expiry. */
  readonly #running = new Map<string, Running>();

  constructor(options: TrackerOptions = {}) {
    this.#options = { trackActiveBlocks: true, assumeKvReuse: true, trackPrefillTokens: true, ...options };
  }

  /** A known rank without requests is idle; an unknown one has no load at all. */
  addRank(worker: string, rank: number): void {
    this.#rank(worker, rank);
  }

  /** Forgets a worker with all its requests. */
  removeWorker(worker: string): void {
    const ranks = new Set(this.#ranks.get(worker)?.values());
    this.#ranks.delete(worker);
    for (const [requestId, running] of this.#running) {
      if (ranks.has(running.rank)) this.#running.delete(requestId);
    }
  }

  /** The rank's load and the blocks that a prompt with these hashes would add there; null: unknown rank. */
  load(
    worker: string,
    rank: number,
    hashes: readonly bigint[],
    assumeKvReuse = this.#options.assumeKvReuse,
  ): CandidateLoad | null {
    const state = this.#ranks.get(worker)?.get(rank);
    if (state === undefined) return null;
    return {
      activePrefillTokens: state.prefillTokens,
      activeDecodeBlocks: Math.round(state.weight),
      activeRequests: state.requests,
      newBlocks: this.#options.trackActiveBlocks ? countNew(state, hashes, assumeKvReuse) : 0,
    };
  }

  /** Books a request before its prefill. A second booking of the same id replaces the first. */
  add(booking: Booking): void {
    this.free(booking.requestId);
    const rank = this.#rank(booking.worker, booking.rank);
    const tracksPrefill = booking.trackPrefillTokens ?? this.#options.trackPrefillTokens;
    const running: Running = {
      rank,
      blocks: this.#blockIds(booking),
      startedMs: booking.nowMs,
      prefillTokens: tracksPrefill ? booking.prefillTokens : 0,
    };
    for (const id of running.blocks) hold(rank, id);
    rank.prefillTokens += running.prefillTokens;
    rank.requests += 1;
    this.#running.set(booking.requestId, running);
  }

  markPrefillCompleted(requestId: string): void {
    const running = this.#running.get(requestId);
    if (running === undefined) return;
    running.rank.prefillTokens -= running.prefillTokens;
    running.prefillTokens = 0;
  }

  /**
   * The output has grown by a block. `decayFraction` = max(0, 1 − generated / expected) is then what every block that
   * only this request holds counts for; null: no expectation, nothing decays. A block that another request joins later
   * keeps its fraction.
   */
  addOutputBlock(requestId: string, decayFraction: number | null): void {
    const running = this.#running.get(requestId);
    if (running === undefined || !this.#options.trackActiveBlocks) return;
    const id = Symbol();
    running.blocks.push(id);
    hold(running.rank, id);
    if (decayFraction !== null) decaySoleBlocks(running, decayFraction);
  }

  /** Ended, failed or aborted. */
  free(requestId: string): void {
    const running = this.#running.get(requestId);
    if (running === undefined) return;
    this.#running.delete(requestId);
    const { rank } = running;
    for (const id of running.blocks) release(rank, id);
    rank.prefillTokens -= running.prefillTokens;
    rank.requests -= 1;
  }

  /** Frees the requests booked before `beforeMs` of the caller's clock; returns their ids. */
  expire(beforeMs: number): string[] {
    const expired: string[] = [];
    for (const [requestId, running] of this.#running) {
      if (running.startedMs >= beforeMs) break;
      expired.push(requestId);
    }
    for (const requestId of expired) this.free(requestId);
    return expired;
  }

  #rank(worker: string, rank: number): Rank {
    let ranks = this.#ranks.get(worker);
    if (ranks === undefined) {
      ranks = new Map();
      this.#ranks.set(worker, ranks);
    }
    let state = ranks.get(rank);
    if (state === undefined) {
      state = { blocks: new Map(), prefillTokens: 0, requests: 0, weight: 0 };
      ranks.set(rank, state);
    }
    return state;
  }

  #blockIds({ hashes, assumeKvReuse }: Booking): BlockId[] {
    if (!this.#options.trackActiveBlocks) return [];
    return (assumeKvReuse ?? this.#options.assumeKvReuse) ? [...hashes] : hashes.map(() => Symbol());
  }
}

function countNew(rank: Rank, hashes: readonly bigint[], assumeKvReuse: boolean): number {
  if (!assumeKvReuse) return hashes.length;
  let count = 0;
  for (const hash of hashes) if (!rank.blocks.has(hash)) count += 1;
  return count;
}

function hold(rank: Rank, id: BlockId): void {
  const block = rank.blocks.get(id);
  if (block !== undefined) {
    block.holders += 1;
    return;
  }
  rank.blocks.set(id, { holders: 1, fraction: 1 });
  rank.weight += 1;
}

function release(rank: Rank, id: BlockId): void {
  const block = rank.blocks.get(id);
  if (block === undefined || --block.holders > 0) return;
  rank.blocks.delete(id);
  // An empty rank starts again at exactly 0, so that rounding errors of fractions never pile up.
  rank.weight = rank.blocks.size === 0 ? 0 : rank.weight - block.fraction;
}

function decaySoleBlocks({ rank, blocks }: Running, fraction: number): void {
  for (const id of blocks) {
    const block = rank.blocks.get(id);
    if (block === undefined || block.holders !== 1) continue;
    rank.weight += fraction - block.fraction;
    block.fraction = fraction;
  }
}
