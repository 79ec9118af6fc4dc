/** What the indexer knows of each incarnation's stream of batches: how far the view is, and what waits for something. */

import type { IncarnationKey } from "../fleet/types.ts";
import type { KvBatch } from "../store/types.ts";

/** A batch and whom to tell when it is in the view or refused for good. */
export interface Held {
  readonly batch: KvBatch;
  readonly done: () => void;
}

/** Why batches of a feed are kept back, and these batches. */
export interface Hold {
  /** What they wait for. */
  reason: "registration" | "snapshot";
  readonly sinceMs: number;
  readonly buffer: Held[];
}

/** One incarnation's stream of batches. */
export interface Feed {
  readonly key: IncarnationKey;
  /** Highest sequence known to be in the view; null: not known to this indexer yet. */
  applied: number | null;
  /** Highest sequence that its agent said to have published. */
  published: number;
  /** A published batch that is not in the view, 0: none, and since when. */
  missing: number;
  missingSinceMs: number;
  /** `applied` when a report last said that more was published; −1: no such report since. */
  behindAt: number;
  behindSinceMs: number;
  requestedAtMs: number;
  /** Snapshot requests that failed in a row. */
  failures: number;
  heardAtMs: number;
  hold: Hold | null;
}

export interface FeedLag {
  readonly key: IncarnationKey;
  readonly lagEvents: number;
  readonly lagMs: number;
}

/** A feed that was silent for so long is forgotten; if it comes back, it is learnt anew. */
const FORGET_MS = 3_600_000;
/** More feeds than any fleet has: whoever makes up incarnations must not fill the memory. */
const MAX_FEEDS = 16_384;
/** Batches kept back without having been acknowledged, of all feeds together: a log delivers only so many before it waits. */
const MAX_UNACKNOWLEDGED = 256;

const nothing = (): void => undefined;

export class FeedTable {
  readonly #feeds = new Map<string, Feed>();
  readonly #now: () => number;
  readonly #maxBuffered: number;
  #unacknowledged = 0;

  constructor(now: () => number, maxBuffered: number) {
    this.#now = now;
    this.#maxBuffered = maxBuffered;
  }

  get(key: IncarnationKey): Feed | undefined {
    return this.#feeds.get(idOf(key));
  }

  /** The feed of an incarnation that was just heard of. */
  heard(key: IncarnationKey): Feed {
    const id = idOf(key);
    const known = this.#feeds.get(id);
    const heardAtMs = this.#now();
    if (known !== undefined) {
      known.heardAtMs = heardAtMs;
      return known;
    }
    if (this.#feeds.size >= MAX_FEEDS) this.#dropFirst();
    const { worker, rank, incarnation } = key;
    const feed: Feed = {
      key: { worker, rank, incarnation },
      applied: null,
      published: 0,
      missing: 0,
      missingSinceMs: 0,
      behindAt: -1,
      behindSinceMs: 0,
      requestedAtMs: Number.NEGATIVE_INFINITY,
      failures: 0,
      heardAtMs,
      hold: null,
    };
    this.#feeds.set(id, feed);
    return feed;
  }

  /** False: the feed was dropped or replaced meanwhile. */
  has(feed: Feed): boolean {
    return this.#feeds.get(idOf(feed.key)) === feed;
  }

  [Symbol.iterator](): IterableIterator<Feed> {
    return this.#feeds.values();
  }

  /** Notes what the view has applied. */
  applied(feed: Feed, sequence: number): void {
    feed.applied = Math.max(feed.applied ?? 0, sequence);
    feed.published = Math.max(feed.published, sequence);
    if (feed.missing > 0 && feed.applied >= feed.missing) this.#noteMissing(feed);
  }

  /** Notes what an agent says to have published. */
  published(feed: Feed, sequence: number): void {
    feed.published = Math.max(feed.published, sequence);
    if (feed.missing === 0) this.#noteMissing(feed);
  }

  /** Keeps a batch back. False: there is no room. */
  keep(feed: Feed, reason: Hold["reason"], held: Held): boolean {
    feed.hold ??= { reason, sinceMs: this.#now(), buffer: [] };
    if (feed.hold.buffer.length >= this.#maxBuffered) return false;
    if (held.done === nothing) {
      // Kept back before, and acknowledged then.
      feed.hold.buffer.push(held);
    } else if (this.#unacknowledged < MAX_UNACKNOWLEDGED) {
      this.#unacknowledged += 1;
      feed.hold.buffer.push(held);
    } else {
      // What is lost with this process shows as a hole in the view, which a snapshot fills.
      held.done();
      feed.hold.buffer.push({ batch: held.batch, done: nothing });
    }
    return true;
  }

  /** Ends the hold; what was kept back, in the order of its numbers (a log's second delivery may come late). */
  release(feed: Feed): Held[] {
    const kept = feed.hold?.buffer ?? [];
    feed.hold = null;
    for (const { done } of kept) if (done !== nothing) this.#unacknowledged -= 1;
    return kept.sort((a, b) => a.batch.sequence - b.batch.sequence);
  }

  /** Forgets the feed; its batches are of no use any more. */
  drop(feed: Feed): void {
    for (const { done } of this.release(feed)) done();
    if (this.has(feed)) this.#feeds.delete(idOf(feed.key));
  }

  /** Forgets the feeds of other lives of the same rank. */
  dropOtherLives(key: IncarnationKey): void {
    for (const feed of [...this.#feeds.values()]) {
      const same = feed.key.worker === key.worker && feed.key.rank === key.rank;
      if (same && feed.key.incarnation !== key.incarnation) this.drop(feed);
    }
  }

  dropSilent(): void {
    const silentMs = this.#now() - FORGET_MS;
    for (const feed of [...this.#feeds.values()]) if (feed.heardAtMs < silentMs) this.drop(feed);
  }

  /** Forgets all without a word to anybody: whoever delivered the batches delivers them again, to the next in charge. */
  clear(): void {
    this.#feeds.clear();
    this.#unacknowledged = 0;
  }

  /** How far the view is behind each feed. */
  lags(): FeedLag[] {
    const nowMs = this.#now();
    return [...this.#feeds.values()].map((feed) => ({
      key: feed.key,
      lagEvents: feed.applied === null ? 0 : Math.max(0, feed.published - feed.applied),
      lagMs: feed.applied === null || feed.missing === 0 ? 0 : nowMs - feed.missingSinceMs,
    }));
  }

  #noteMissing(feed: Feed): void {
    feed.missing = feed.published > (feed.applied ?? 0) ? feed.published : 0;
    feed.missingSinceMs = this.#now();
  }

  #dropFirst(): void {
    for (const feed of this.#feeds.values()) {
      this.drop(feed);
      return;
    }
  }
}

export function idOf(key: IncarnationKey): string {
  return JSON.stringify([key.worker, key.rank, key.incarnation]);
}
