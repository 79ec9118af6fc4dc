/** One rank's voice: numbered batches of bounded size, leases refreshed in time, snapshots, new incarnations. */

import { beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { KedgeError } from "../../src/errors/index.ts";
import { InProcessBus } from "../../src/events/in-process.ts";
import type { IncarnationKey, Registration } from "../../src/fleet/types.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import { createTokensKeyer } from "../../src/prefix/token-scheme.ts";
import type { KvBatch } from "../../src/store/types.ts";
import type { BlockStored, EngineEvent } from "../engines/events.ts";
import { MAX_KEYS_PER_BATCH, RankPublisher } from "./publisher.ts";

const BLOCK = 4;
const REASSERT_MS = 60_000;

let hasher: Hasher;
beforeAll(async () => {
  hasher = await createHasher();
});

let bus: InProcessBus;
let batches: KvBatch[];
let registrations: Registration[];
let retirements: IncarnationKey[];
let mismatches: KedgeError[];
let nowMs: number;

beforeEach(() => {
  bus = new InProcessBus({
    onHandlerError: (thrown) => {
      throw thrown;
    },
  });
  batches = [];
  registrations = [];
  retirements = [];
  mismatches = [];
  nowMs = 0;
  bus.onKv((batch) => batches.push(batch));
  bus.onRegistration((registration) => registrations.push(registration));
  bus.onRetirement((key) => retirements.push(key));
});

function publisher({ maxBlocks }: { maxBlocks?: number } = {}): RankPublisher {
  let lives = 0;
  const card = { version: 1, model: "m", scheme: "tokens", unitSize: BLOCK } as Registration["card"];
  return new RankPublisher({
    bus,
    registration: {
      worker: "w",
      rank: 0,
      agent: null,
      model: "m",
      servedNames: ["m"],
      adapters: [],
      card,
      role: "aggregated",
      region: "r",
      cluster: "c",
      node: "n",
      engine: "test",
      dpSize: 1,
      blockSize: BLOCK,
      totalBlocks: null,
      maxNumBatchedTokens: null,
      maxNumSeqs: null,
      maxModelLen: null,
      kvEvents: true,
      saltInEvents: true,
      taints: [],
    },
    mirror: {
      keyer: createTokensKeyer(hasher, BLOCK),
      model: "m",
      blockSize: BLOCK,
      ...(maxBlocks !== undefined && { maxBlocks }),
    },
    now: () => nowMs,
    newIncarnation: () => `life-${++lives}`,
    reassertMs: REASSERT_MS,
    registerMs: 10_000,
    onMismatch: (error) => mismatches.push(error),
  });
}

function stored(hashes: bigint[], parent: bigint | null, more: Partial<BlockStored> = {}): BlockStored {
  const tokenIds = hashes.flatMap((hash) =>
    Array.from({ length: BLOCK }, (_, i) => Number(hash) * BLOCK + i),
  );
  const rest = {
    loraName: null,
    tier: "device",
    extraKeys: null,
    group: 0,
    specKind: null,
    slidingWindow: null,
  } as const;
  return { type: "stored", hashes, parent, tokenIds, blockSize: BLOCK, ...rest, ...more };
}

const batchOf = (...events: EngineEvent[]) => ({ timestampSeconds: 1, events, rank: 0, skipped: [] });
const hashes = (count: number): bigint[] => Array.from({ length: count }, (_, i) => BigInt(i + 1));
const keysOf = (published: readonly KvBatch[]): bigint[] =>
  published.flatMap(({ ops }) => ops.flatMap((op) => [...op.keys]));

describe("batches", () => {
  test("are numbered from 1 per incarnation and hold at most five hundred keys, cut along the chain", () => {
    publisher().apply(batchOf(stored(hashes(1_250), null)));
    expect(batches.map(({ sequence }) => sequence)).toEqual([1, 2, 3]);
    expect(batches.map((batch) => keysOf([batch]).length)).toEqual([500, 500, 250]);
    for (const [i, { ops }] of batches.entries()) {
      const [op] = ops;
      const before = i === 0 ? null : batches[i - 1]!.ops[0]!.keys.at(-1);
      expect(op).toMatchObject({ op: "store", parent: before });
    }
  });

  test("removals are cut so that the deepest keys go first", () => {
    const rank = publisher();
    rank.apply(batchOf(stored(hashes(750), null)));
    const chain = keysOf(batches);
    batches = [];
    rank.apply(batchOf({ type: "removed", hashes: [1n], tier: "device", group: 0 }));
    expect(batches.map((batch) => keysOf([batch]).length)).toEqual([500, 250]);
    expect(keysOf(batches)).toEqual(chain.reverse());
  });

  test("an engine batch that changes nothing is not published", () => {
    const rank = publisher();
    rank.apply(batchOf(stored([2n], 1n)));
    expect([batches, rank.sequence]).toEqual([[], 0]);
  });
});

describe("incarnations", () => {
  test("a clearing inside a batch voids what was, and what follows it belongs to the next life", () => {
    const rank = publisher();
    rank.apply(batchOf(stored(hashes(3), null)));
    rank.apply(batchOf(stored([9n], 3n), { type: "cleared" }, { type: "cleared" }, stored([1n], null)));
    expect(batches.map(({ incarnation, sequence }) => `${incarnation} ${sequence}`)).toEqual([
      "life-1 1",
      "life-2 1",
    ]);
    expect(registrations.map(({ incarnation }) => incarnation)).toEqual(["life-1", "life-2"]);
    expect(keysOf([batches[1]!])).toHaveLength(1);
  });

  test("a life that has neither said nor heard anything is not ended", () => {
    const rank = publisher();
    rank.apply(batchOf({ type: "cleared" }));
    rank.reset("restart");
    expect([rank.key.incarnation, [...rank.voided]]).toEqual(["life-1", []]);
  });

  test("an engine that never announces removals begins a new life when the mirror is full", () => {
    const rank = publisher({ maxBlocks: 10 });
    for (let i = 0; i < 30; i++) rank.apply(batchOf(stored([BigInt(i + 1)], null, { tier: "host" })));
    expect([...rank.voided]).toEqual([["overflow", 2]]);
    expect(rank.mirror.blockCount()).toBeLessThanOrEqual(10);
  });

  test("snapshots are of the present life only and contain all batches up to their number", async () => {
    const rank = publisher();
    bus.serveSnapshots((key) => rank.snapshot(key));
    rank.apply(batchOf(stored(hashes(3), null), stored([7n], 1n)));
    const old = rank.key;
    const snapshot = await bus.requestSnapshot(old);
    expect(snapshot).toMatchObject({ ...old, sequence: 1 });
    expect(snapshot!.ops.flatMap((op) => [...op.keys]).sort()).toEqual(keysOf(batches).sort());
    rank.reset("gap");
    expect(await bus.requestSnapshot(old)).toBeNull();
  });

  test("stopping retires the rank, once, and silences it", () => {
    const rank = publisher();
    rank.stop();
    rank.stop();
    rank.apply(batchOf(stored([1n], null)));
    rank.reset("restart");
    rank.tick();
    expect([retirements.length, batches.length, registrations.length]).toEqual([1, 0, 1]);
  });
});

describe("time", () => {
  test("every held key is asserted again within twice the walk, in even portions, parents before children", () => {
    const rank = publisher();
    const held = 4_000;
    rank.apply(batchOf(stored(hashes(held), null)));
    const lastMs = new Map<bigint, number>(keysOf(batches).map((key) => [key, 0]));
    const position = new Map<bigint, number>(keysOf(batches).map((key, i) => [key, i]));
    let most = 0;
    let oldest = 0;
    for (nowMs = 1_000; nowMs <= 10 * REASSERT_MS; nowMs += 1_000) {
      batches = [];
      rank.tick();
      most = Math.max(most, keysOf(batches).length);
      const positions = keysOf(batches).map((key) => position.get(key)!);
      expect(positions).toEqual([...positions].sort((a, b) => a - b));
      for (const key of keysOf(batches)) lastMs.set(key, nowMs);
      oldest = Math.max(oldest, nowMs - [...lastMs.values()].reduce((least, at) => Math.min(least, at)));
    }
    expect(lastMs.size).toBe(held);
    expect(oldest).toBeLessThanOrEqual(2 * REASSERT_MS);
    expect(most).toBeLessThanOrEqual(MAX_KEYS_PER_BATCH);
  });

  test.each([0.05, 0.5, 0.95])(
    "no lease grows older than two walks in chains that grow once per walk, at %d of it",
    (phase) => {
      const rank = publisher();
      /** When the lease of a key began: a child inherits its parent's. */
      const began = new Map<bigint, number>();
      bus.onKv(({ ops }) => {
        for (const op of ops) {
          if (op.op === "remove") continue;
          const parents = op.parent === null ? nowMs : (began.get(op.parent) ?? Number.NEGATIVE_INFINITY);
          for (const key of op.keys) began.set(key, Math.max(began.get(key) ?? 0, Math.min(nowMs, parents)));
        }
      });
      const chains = 20;
      const hashAt = (chain: number, depth: number) => BigInt(1 + chain * 1_000 + depth);
      let depth = 200;
      for (let chain = 0; chain < chains; chain++) {
        const first = Array.from({ length: depth }, (_, i) => hashAt(chain, i));
        rank.apply(batchOf(stored(first, null)));
      }
      let oldest = 0;
      for (nowMs = 1_000; nowMs <= 12 * REASSERT_MS; nowMs += 1_000) {
        rank.tick();
        if (nowMs % REASSERT_MS === phase * REASSERT_MS) {
          for (let chain = 0; chain < chains; chain++)
            rank.apply(batchOf(stored([hashAt(chain, depth)], hashAt(chain, depth - 1))));
          depth++;
        }
        for (const at of began.values()) oldest = Math.max(oldest, nowMs - at);
      }
      expect(began.size).toBe(chains * depth);
      expect(oldest).toBeLessThanOrEqual(2 * REASSERT_MS);
    },
  );

  test("what was evicted while a walk is under way is not asserted", () => {
    const rank = publisher();
    rank.apply(batchOf(stored(hashes(3_000), null)));
    nowMs = REASSERT_MS;
    rank.tick();
    rank.apply(batchOf({ type: "removed", hashes: [1n], tier: "device", group: 0 }));
    batches = [];
    nowMs = 3 * REASSERT_MS;
    rank.tick();
    expect(batches).toEqual([]);
  });

  test("the registration is repeated, and at once when names change", () => {
    const rank = publisher();
    nowMs = 9_999;
    rank.tick();
    expect(registrations).toHaveLength(1);
    nowMs = 10_000;
    rank.tick();
    expect(registrations).toHaveLength(2);
    rank.update({ adapters: ["a"], servedNames: ["m", "a"] });
    rank.update({ adapters: ["a"], servedNames: ["m", "a"] });
    expect(registrations.map(({ adapters }) => adapters)).toEqual([[], [], ["a"]]);
  });
});

describe("block size", () => {
  test("a first block of another size is an error that says what to set, and its events are not used", () => {
    const rank = publisher();
    rank.apply(
      batchOf(stored(hashes(2), null, { blockSize: 8, tokenIds: Array.from({ length: 16 }, (_, i) => i) })),
    );
    expect(mismatches).toHaveLength(1);
    expect(mismatches[0]).toMatchObject({ code: "engine_mismatch", param: "blockSize" });
    expect(mismatches[0]!.message).toContain("--block-size 4");
    rank.apply(batchOf(stored([1n], null)));
    expect([batches.length, rank.registration.kvEvents, registrations.at(-1)?.kvEvents]).toEqual([
      0,
      false,
      false,
    ]);
  });
});

describe("a plan made for an earlier life", () => {
  test("stands while the engine's process is the same, and no longer after a restart of it", () => {
    const rank = publisher();
    expect(rank.stands("life-1")).toBe(true);
    expect(rank.stands("another")).toBe(false);
    for (const reason of ["cleared", "gap"] as const) {
      rank.apply(batchOf(stored([1n], null)));
      rank.reset(reason);
    }
    expect(["life-1", "life-2", "life-3"].map((life) => rank.stands(life))).toEqual([true, true, true]);
    rank.apply(batchOf(stored([1n], null)));
    rank.reset("restart");
    expect(["life-1", "life-3", "life-4"].map((life) => rank.stands(life))).toEqual([false, false, true]);
  });

  test("is remembered for a bounded number of lives", () => {
    const rank = publisher();
    for (let i = 0; i < 20; i++) {
      rank.apply(batchOf(stored([1n], null)));
      rank.reset("cleared");
    }
    expect(rank.stands("life-1")).toBe(false);
    expect(rank.stands("life-20")).toBe(true);
  });
});
