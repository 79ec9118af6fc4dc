/** Whatever of the view answers later is seen through, failed or not, and comes back unchanged. */

import { expect, it } from "vitest";
import { MemoryStore } from "../../src/store/memory/index.ts";
import type { ViewStore } from "../../src/store/types.ts";
import { keepAlive } from "../../workers/gateway/keep-alive.ts";
import { registration } from "../e2e/gateway-fleet.ts";

const NO_KEYS = new BigUint64Array(0);
const LOAD = {
  activeBlocks: 0,
  prefillTokens: 0,
  running: 0,
  waiting: 0,
  admitted: [],
  publishedSequence: 0,
};

/** The same store, answering later or not at all. */
function remote(inner: ViewStore, error: Error | null): ViewStore {
  return new Proxy(inner, {
    get: (target, name) => {
      const member = Reflect.get(target, name);
      if (typeof member !== "function") return member;
      return async (...args: unknown[]) => {
        if (error !== null) throw error;
        return Reflect.apply(member, target, args);
      };
    },
  });
}

const memory = () => new MemoryStore({ now: () => 0, random: Math.random });
const rank = { worker: "w", rank: 0, incarnation: "1" };
const calls: Record<string, (store: ViewStore) => unknown> = {
  register: (store) => store.register(registration("w")),
  read: (store) => store.read("m", NO_KEYS),
  fleet: (store) => store.fleet(),
  report: (store) => store.report([{ ...rank, sequence: 1, ...LOAD }]),
  reserve: (store) =>
    store.reserve({
      ...rank,
      requestId: "r",
      blocks: 1,
      prefillTokens: 1,
      reservationTtlMs: 1,
      prediction: null,
    }),
  release: (store) => store.release(rank, "r"),
  apply: (store) => store.apply([]),
  applySnapshot: (store) => store.applySnapshot({ ...rank, model: "m", sequence: 1, ops: [] }),
  getThresholds: (store) => store.getThresholds("m"),
  retire: (store) => store.retire(rank),
  reset: (store) => store.reset(),
};

it.each(Object.entries(calls))("%s", async (_name, call) => {
  const works: Promise<unknown>[] = [];
  const kept = keepAlive(remote(memory(), null), (work) => works.push(work));
  const expected = await call(memory());
  expect(typeof (await call(kept))).toEqual(typeof expected);
  expect(works).toHaveLength(1);
  await works[0];

  const failing = keepAlive(remote(memory(), new Error("away")), (work) => works.push(work));
  await expect(call(failing)).rejects.toThrow("away");
  expect(works).toHaveLength(2);
  await works[1];
});

it("what answers at once needs no seeing through", () => {
  const works: Promise<unknown>[] = [];
  const kept = keepAlive(memory(), (work) => works.push(work));
  expect(kept.fleet()).toEqual([]);
  expect(works).toHaveLength(0);
});
