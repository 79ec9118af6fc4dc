/** Batches kept back: bounded without an acknowledgement, in order, and counted right however often they are kept. */

import { describe, expect, it } from "vitest";
import { MODEL } from "../../test/contract/view-samples.ts";
import { FeedTable } from "./feeds.ts";

const KEY = { worker: "w", rank: 0, incarnation: "one" };
/** Kept back without an acknowledgement, at most. */
const MOST = 256;

function setUp() {
  const feeds = new FeedTable(() => 0, 4_096);
  const feed = feeds.heard(KEY);
  const acknowledged: number[] = [];
  const held = (sequence: number) => ({
    batch: { ...KEY, model: MODEL, sequence, ops: [] },
    done: () => {
      acknowledged.push(sequence);
    },
  });
  return { feeds, feed, acknowledged, held };
}

describe("batches kept back", () => {
  it("come out in the order of their numbers", () => {
    const { feeds, feed, held } = setUp();
    for (const sequence of [3, 1, 2]) feeds.keep(feed, "snapshot", held(sequence));
    expect(feeds.release(feed).map(({ batch }) => batch.sequence)).toEqual([1, 2, 3]);
    expect(feed.hold).toBeNull();
  });

  it("use up no room for good, though the same are kept back again and again", () => {
    const { feeds, feed, acknowledged, held } = setUp();
    for (let sequence = 1; sequence <= 2 * MOST; sequence++) feeds.keep(feed, "registration", held(sequence));
    expect(acknowledged).toHaveLength(MOST);
    for (let round = 0; round < 3; round++) {
      for (const each of feeds.release(feed)) feeds.keep(feed, "snapshot", each);
    }
    // What can still be delivered again has been written; the others are kept back once more.
    const released = feeds.release(feed);
    for (const each of released.slice(MOST)) feeds.keep(feed, "snapshot", each);
    for (let sequence = 1_001; sequence <= 1_000 + MOST; sequence++)
      feeds.keep(feed, "snapshot", held(sequence));
    expect(acknowledged).toHaveLength(MOST);
  });
});
