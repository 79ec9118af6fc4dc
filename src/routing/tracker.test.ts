/** The load tracker counts what is active, each shared block once, and forgets nothing and nobody by accident. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { LoadTracker } from "./tracker.ts";

const big = (...values: number[]): bigint[] => values.map(BigInt);

function book(
  tracker: LoadTracker,
  requestId: string,
  hashes: readonly bigint[],
  prefillTokens: number,
  nowMs = 0,
): void {
  tracker.add({ requestId, worker: "w", rank: 0, hashes, prefillTokens, nowMs });
}

const active = (tracker: LoadTracker): [number | undefined, number | undefined] => {
  const load = tracker.load("w", 0, []);
  return [load?.activeDecodeBlocks, load?.activePrefillTokens];
};

describe("active load", () => {
  it("follows requests in and out", () => {
    const tracker = new LoadTracker();
    book(tracker, "r1", big(1, 2, 3), 12);
    expect(active(tracker)).toEqual([3, 12]);
    book(tracker, "r2", big(5), 4);
    expect(active(tracker)).toEqual([4, 16]);
    book(tracker, "r3", big(1, 2, 3, 4), 0);
    expect(active(tracker)).toEqual([5, 16]);
    expect(tracker.load("w", 0, big(1, 2, 9))).toMatchObject({ newBlocks: 1, activeRequests: 3 });
    tracker.free("r2");
    expect(active(tracker)).toEqual([4, 12]);
    tracker.free("r3");
    expect(active(tracker)).toEqual([3, 12]);
    tracker.markPrefillCompleted("r1");
    expect(active(tracker)).toEqual([3, 0]);
    tracker.free("r1");
    expect(active(tracker)).toEqual([0, 0]);
  });

  it("knows the difference between idle and unknown", () => {
    const tracker = new LoadTracker();
    expect(tracker.load("w", 0, big(1))).toBeNull();
    tracker.addRank("w", 0);
    expect(tracker.load("w", 0, big(1))).toEqual({
      activePrefillTokens: 0,
      activeDecodeBlocks: 0,
      activeRequests: 0,
      newBlocks: 1,
    });
    expect(tracker.load("w", 1, [])).toBeNull();
  });

  it("shares nothing between identical prompts if reuse is not assumed", () => {
    const tracker = new LoadTracker({ assumeKvReuse: false });
    book(tracker, "r1", big(1, 2), 0);
    expect(tracker.load("w", 0, big(1, 2))).toMatchObject({ activeDecodeBlocks: 2, newBlocks: 2 });
    book(tracker, "r2", big(1, 2), 0);
    expect(active(tracker)[0]).toBe(4);
    tracker.free("r1");
    expect(active(tracker)[0]).toBe(2);
  });

  it("counts no blocks, no prefill, if told so", () => {
    const blind = new LoadTracker({ trackActiveBlocks: false, trackPrefillTokens: false });
    book(blind, "r1", big(1, 2), 32);
    blind.addOutputBlock("r1", null);
    expect(blind.load("w", 0, big(7))).toEqual({
      activePrefillTokens: 0,
      activeDecodeBlocks: 0,
      activeRequests: 1,
      newBlocks: 0,
    });
  });

  it("output decay lowers what only this request holds, and what another joins keeps its fraction", () => {
    const tracker = new LoadTracker();
    book(tracker, "r1", big(1, 2, 3), 0);
    tracker.addOutputBlock("r1", 0.5);
    expect(active(tracker)[0]).toBe(2);
    book(tracker, "r2", big(1, 2), 0);
    expect(active(tracker)[0]).toBe(2);
    tracker.addOutputBlock("r1", 0);
    expect(active(tracker)[0]).toBe(1);
    tracker.addOutputBlock("r2", null);
    expect(active(tracker)[0]).toBe(2);
  });

  it("expires what was booked before a time, and nothing else", () => {
    const tracker = new LoadTracker();
    book(tracker, "old", big(1, 2), 10, 100);
    book(tracker, "new", big(2, 3), 10, 200);
    expect(tracker.expire(100)).toEqual([]);
    expect(tracker.expire(150)).toEqual(["old"]);
    expect(active(tracker)).toEqual([2, 10]);
  });

  it("forgets a worker with all its requests", () => {
    const tracker = new LoadTracker();
    book(tracker, "r1", big(1), 10);
    tracker.removeWorker("w");
    expect(tracker.load("w", 0, [])).toBeNull();
    tracker.addRank("w", 0);
    tracker.free("r1");
    expect(active(tracker)).toEqual([0, 0]);
  });
});

describe("whatever happens", () => {
  it("counts equal those of a recount from scratch", () => {
    const step = fc.record({
      op: fc.constantFrom("add", "free", "prefilled", "output"),
      id: fc.nat(5),
      hashes: fc.uniqueArray(fc.nat(12), { maxLength: 6 }),
      tokens: fc.nat(50),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const tracker = new LoadTracker();
        tracker.addRank("w", 0);
        const model = new Map<number, { hashes: number[]; tokens: number; outputs: number }>();
        for (const { op, id, hashes, tokens } of steps) {
          const request = model.get(id);
          if (op === "add") {
            book(tracker, `${id}`, big(...hashes), tokens);
            model.set(id, { hashes, tokens, outputs: 0 });
          } else if (op === "free") {
            tracker.free(`${id}`);
            model.delete(id);
          } else if (op === "prefilled") {
            tracker.markPrefillCompleted(`${id}`);
            if (request) request.tokens = 0;
          } else {
            tracker.addOutputBlock(`${id}`, null);
            if (request) request.outputs += 1;
          }
          const all = [...model.values()];
          const shared = new Set(all.flatMap((one) => one.hashes));
          expect(tracker.load("w", 0, big(3))).toEqual({
            activePrefillTokens: all.reduce((sum, one) => sum + one.tokens, 0),
            activeDecodeBlocks: shared.size + all.reduce((sum, one) => sum + one.outputs, 0),
            activeRequests: all.length,
            newBlocks: shared.has(3) ? 0 : 1,
          });
        }
      }),
    );
  });
});
