/** Holes filled: asks an agent for all that a rank holds and writes it, for a few ranks at a time (design D5). */

import { type KedgeError, toKedgeError } from "../errors/index.ts";
import type { EventBus } from "../events/bus.ts";
import type { ApplyOutcome, KvSnapshot, ViewStore } from "../store/types.ts";
import type { Feed, FeedTable, Held, Hold } from "./feeds.ts";
import type { IndexerFigures } from "./figures.ts";
import { after, finallyDo, guarded } from "./maybe.ts";

export interface SnapshotsOptions {
  readonly bus: Pick<EventBus, "requestSnapshot">;
  readonly store: Pick<ViewStore, "applySnapshot">;
  readonly feeds: FeedTable;
  readonly now: () => number;
  readonly figures: IndexerFigures;
  /** Least time between two requests for one incarnation; it doubles with each that fails. */
  readonly intervalMs: number;
  /** An answer that has not come by then is given up. */
  readonly timeoutMs: number;
  /** Batches that were kept back; the view is ready for them. */
  readonly onReleased: (held: readonly Held[]) => void;
  /** What became of a snapshot that was not applied. */
  readonly onRefused: (feed: Feed, outcome: Exclude<ApplyOutcome, "applied">) => void;
  readonly onError: (error: KedgeError, doing: string) => void;
}

/** Snapshots asked for at a time: an emptied view wants everybody's at once, and each may be megabytes. */
const AT_A_TIME = 8;
const MAX_DOUBLINGS = 5;

export class Snapshots {
  readonly #options: SnapshotsOptions;
  /** Under way, with the hold that began with them: a later one is another request's. */
  readonly #asked = new Map<Feed, { readonly hold: Hold; answered: boolean }>();
  readonly #waiting = new Set<Feed>();
  /** To be written, one after the other: readers of the view would wait behind several. */
  #answers: { readonly feed: Feed; readonly snapshot: KvSnapshot }[] = [];
  #writing = false;

  constructor(options: SnapshotsOptions) {
    this.#options = options;
  }

  /** Requested or waiting for their turn. */
  get pending(): number {
    return this.#asked.size + this.#waiting.size;
  }

  /** False: the last request is too recent. One at a time per incarnation; batches that come meanwhile are to be kept back. */
  want(feed: Feed, force = false): boolean {
    if (this.#asked.has(feed) || this.#waiting.has(feed)) return true;
    const { now, intervalMs } = this.#options;
    const doublings = Math.min(Math.max(0, feed.failures - 1), MAX_DOUBLINGS);
    if (!force && now() - feed.requestedAtMs < intervalMs * 2 ** doublings) return false;
    if (feed.hold === null) feed.hold = { reason: "snapshot", sinceMs: now(), buffer: [] };
    else feed.hold.reason = "snapshot";
    this.#waiting.add(feed);
    this.#next();
    return true;
  }

  /** Gives up what is overdue, and what nobody waits for any more. */
  tick(): void {
    const overdueMs = this.#options.now() - this.#options.timeoutMs;
    for (const [feed, { hold, answered }] of [...this.#asked]) {
      if (feed.hold !== hold || !this.#options.feeds.has(feed)) this.#end(feed);
      else if (!answered && feed.requestedAtMs <= overdueMs) this.#fail(feed);
    }
  }

  clear(): void {
    this.#asked.clear();
    this.#waiting.clear();
    this.#answers = [];
  }

  #next(): void {
    const { feeds } = this.#options;
    for (const feed of this.#waiting) {
      if (this.#asked.size >= AT_A_TIME) return;
      this.#waiting.delete(feed);
      if (feeds.has(feed) && feed.hold !== null) this.#ask(feed, feed.hold);
    }
  }

  #ask(feed: Feed, hold: Hold): void {
    const { bus, now, figures, onError } = this.#options;
    const request = { hold, answered: false };
    this.#asked.set(feed, request);
    feed.requestedAtMs = now();
    figures.snapshotsRequested += 1;
    const answered = (snapshot: KvSnapshot | null): void => {
      // Given up, retired or stopped meanwhile.
      if (this.#asked.get(feed) !== request) return;
      if (feed.hold !== hold || !this.#options.feeds.has(feed)) this.#end(feed);
      else if (snapshot === null) this.#fail(feed);
      else {
        request.answered = true;
        this.#answers.push({ feed, snapshot });
        this.#writeNext();
      }
    };
    bus.requestSnapshot(feed.key).then(answered, (thrown) => {
      onError(toKedgeError(thrown), "snapshot request");
      answered(null);
    });
  }

  #writeNext(): void {
    const next = this.#writing ? undefined : this.#answers.shift();
    if (next === undefined) return;
    const { feed, snapshot } = next;
    const { store, figures, onError } = this.#options;
    this.#writing = true;
    figures.otherCalls += 1;
    let written = false;
    const done = guarded(
      () =>
        after(store.applySnapshot(snapshot), (outcome) => {
          written = true;
          this.#written(feed, snapshot, outcome);
        }),
      (thrown) => {
        figures.storeErrors += 1;
        onError(toKedgeError(thrown), "snapshot");
        if (!written) this.#fail(feed);
      },
    );
    finallyDo(done, () => {
      this.#writing = false;
      this.#writeNext();
    });
  }

  #written(feed: Feed, snapshot: KvSnapshot, outcome: ApplyOutcome): void {
    const { feeds, figures } = this.#options;
    const stillWanted = feeds.has(feed) && this.#asked.has(feed);
    this.#asked.delete(feed);
    if (outcome === "applied") {
      figures.snapshotsApplied += 1;
      feed.failures = 0;
      feeds.applied(feed, snapshot.sequence);
    } else {
      figures.snapshotsFailed += 1;
      feed.failures += 1;
    }
    if (stillWanted) {
      if (outcome !== "applied") this.#options.onRefused(feed, outcome);
      if (outcome === "applied" || outcome === "duplicate") this.#options.onReleased(feeds.release(feed));
    }
    this.#next();
  }

  /** The hole stays until the next batch or report finds it; what was kept back is of no use without the snapshot. */
  #fail(feed: Feed): void {
    this.#asked.delete(feed);
    this.#options.figures.snapshotsFailed += 1;
    feed.failures += 1;
    for (const { done } of this.#options.feeds.release(feed)) done();
    this.#next();
  }

  #end(feed: Feed): void {
    this.#asked.delete(feed);
    this.#next();
  }
}
