/** What only the memory store promises: bounded space, answers that do not depend on what was asked before, slot safety. */

import { describe, expect, it } from "vitest";
import { randomKey, seeded } from "../../../test/contract/store-histories.ts";
import { MODEL, registrationOf, removeKeys, storeKeys } from "../../../test/contract/view-samples.ts";
import type { IncarnationKey } from "../../fleet/types.ts";
import type { KvOp } from "../types.ts";
import { MemoryStore, type MemoryStoreOptions } from "./index.ts";

class Bench {
  nowMs = 0;
  readonly random = seeded(7);
  readonly store: MemoryStore;
  private readonly sequences = new Map<string, number>();

  constructor(options: Partial<MemoryStoreOptions> = {}) {
    this.store = new MemoryStore({ now: () => this.nowMs, random: this.random, ...options });
  }

  begin(worker: string, incarnation = "one"): IncarnationKey {
    const key = { worker, rank: 0, incarnation };
    this.store.register(registrationOf(key));
    return key;
  }

  write(key: IncarnationKey, ...ops: KvOp[]): void {
    const id = `${key.worker} ${key.incarnation}`;
    const sequence = (this.sequences.get(id) ?? 0) + 1;
    this.sequences.set(id, sequence);
    expect(this.store.apply([{ ...key, model: MODEL, sequence, ops }])).toEqual(["applied"]);
  }

  predict(key: IncarnationKey, keys: BigUint64Array, ttlMs: number): void {
    const prediction = { root: 1n, keys, tokensPerKey: 16, ttlMs };
    const load = { requestId: "r", blocks: 0, prefillTokens: 0, reservationTtlMs: 0 };
    this.store.reserve({ ...key, ...load, prediction });
  }

  chain(length: number): BigUint64Array {
    return BigUint64Array.from({ length }, () => randomKey(this.random));
  }

  /** Confirmed depth by worker, in the device tier. */
  depths(keys: BigUint64Array): Record<string, number> {
    const { fleet, lookup } = this.store.read(MODEL, keys);
    const slots = [...lookup.slots.subarray(0, lookup.count)];
    const found = fleet.map(({ worker, slots: { device } }) => {
      const row = slots.indexOf(device);
      return [worker, row < 0 ? 0 : lookup.confirmedDepth[row]] as const;
    });
    return Object.fromEntries(found);
  }
}

describe("space", () => {
  it("stays bounded under endless new prompts, for what has expired makes room", () => {
    const bench = new Bench({ horizonMs: 10_000 });
    const key = bench.begin("a");
    const bytes: number[] = [];
    for (let i = 0; i < 6_000; i++) {
      bench.nowMs += 10;
      bench.write(key, storeKeys(bench.chain(32)));
      if (i % 1_000 === 999) bytes.push(bench.store.figures().bytes);
    }
    // 1,000 writes of 32 keys live within the horizon.
    expect(bench.store.figures().entries).toBeLessThan(2 * 32_000);
    expect(bytes.at(-1)).toBeLessThanOrEqual(1.25 * bytes[2]);
  });

  it("gives entries back as soon as their last holder is removed", () => {
    const bench = new Bench();
    const key = bench.begin("a");
    const chains = Array.from({ length: 50 }, () => bench.chain(100));
    for (const chain of chains) bench.write(key, storeKeys(chain));
    for (const chain of chains) bench.write(key, removeKeys(chain, 0));
    expect(bench.store.figures()).toMatchObject({ entries: 0, holders: 0 });
  });

  it("forgets what retired incarnations held while others write", () => {
    const bench = new Bench();
    for (let life = 0; life < 40; life++) {
      const key = bench.begin("a", `life-${life}`);
      for (let i = 0; i < 10; i++) bench.write(key, storeKeys(bench.chain(100)));
    }
    // Each life holds 1,000 keys; without a sweep there would be 40,000.
    expect(bench.store.figures().entries).toBeLessThan(8_000);
  });

  it("tells 70,000 lives within one horizon apart, and gives their slots out again after it", () => {
    const horizonMs = 3_600_000;
    const bench = new Bench({ horizonMs });
    const chain = bench.chain(32);
    const live = (era: string) => {
      for (let life = 0; life < 70_000; life++) {
        bench.nowMs += 10;
        const key = bench.begin("a", `${era}-${life}`);
        const depth = life % 10 === 0 ? life % 33 : 0;
        if (depth > 0) bench.write(key, storeKeys(chain.subarray(0, depth)));
        if (life % 100 === 0) expect(bench.depths(chain)).toEqual({ a: depth });
      }
    };
    live("first");
    const { slots } = bench.store.figures();
    bench.nowMs += horizonMs + 1_000;
    live("second");
    // The last life of the first era still has its own when the second begins.
    expect(bench.store.figures().slots).toBeLessThanOrEqual(slots + 3);
  });

  it("bounds predictions, and the newest stay", () => {
    const bench = new Bench({ maxPredictedEntries: 1_000 });
    const key = bench.begin("a");
    const chains = Array.from({ length: 200 }, () => bench.chain(40));
    for (const chain of chains) bench.predict(key, chain, 100_000);
    expect(bench.store.figures().predictedHolders).toBeLessThanOrEqual(1_000);
    const depth = (keys: BigUint64Array) => {
      const lookup = bench.store.depths(keys);
      return lookup.count === 0 ? 0 : lookup.predictedDepth[0];
    };
    for (const chain of chains.slice(-12)) expect(depth(chain)).toBe(40);
    expect(depth(chains[0])).toBe(0);
  });

  it("holds two workers' entries in less than 100 bytes each", () => {
    const bench = new Bench();
    const workers = [bench.begin("a"), bench.begin("b")];
    for (let i = 0; i < 500; i++) {
      const chain = bench.chain(400);
      for (const key of workers) bench.write(key, storeKeys(chain));
    }
    const { bytes, entries, holders } = bench.store.figures();
    expect([entries, holders]).toEqual([200_000, 400_000]);
    expect(bytes / entries).toBeLessThan(100);
  });
});

describe("leases", () => {
  it("counts the keys that it refuses for want of their parent, and keeps nothing of them", () => {
    const bench = new Bench();
    const chain = bench.chain(10);
    bench.write(bench.begin("a"), storeKeys(chain, 4));
    expect(bench.store.figures()).toMatchObject({ orphanedKeys: 6, entries: 0 });
  });

  it("lets no prediction outlast the horizon, after which its slot is another's", () => {
    const bench = new Bench({ horizonMs: 10_000 });
    const chain = bench.chain(10);
    const key = bench.begin("a");
    bench.predict(key, chain, 100_000);
    bench.store.retire(key);
    bench.nowMs = 10_000;
    const slots = bench.store.register(registrationOf({ worker: "b", rank: 0, incarnation: "one" }));
    expect(slots?.device).toBe(0);
    expect(bench.store.depths(chain).count).toBe(0);
  });

  it("finds the deeper of two predictions, whichever is the newer", () => {
    for (const [first, second] of [
      [40, 10],
      [10, 40],
    ]) {
      const bench = new Bench({ maxPredictedEntries: 100 });
      const key = bench.begin("a");
      const chain = bench.chain(40);
      bench.predict(key, chain.slice(0, first), 100_000);
      // Fills the younger generation, so that the next prediction goes to another.
      bench.predict(bench.begin("b"), bench.chain(50 - first), 100_000);
      bench.predict(key, chain.slice(0, second), 100_000);
      expect([...bench.store.depths(chain).predictedDepth.subarray(0, 1)]).toEqual([40]);
    }
  });
});

describe("lookup", () => {
  it("answers the same whatever was looked up before", () => {
    // The search remembers where runs end; events, divergent prompts and windows of them must not make it wrong.
    const bench = new Bench({ probeLimit: 1_024 });
    const trunk = bench.chain(300);
    const prompts = Array.from({ length: 12 }, () => {
      const prompt = bench.chain(600);
      prompt.set(trunk.subarray(0, Math.floor(bench.random() * 300)));
      return prompt;
    });
    const workers = Array.from({ length: 20 }, (_, i) => bench.begin(`w${String(i).padStart(2, "0")}`));
    const held = new Map(workers.map((key) => [key.worker, new Set<bigint>()]));
    for (let step = 0; step < 3_000; step++) {
      const key = workers[Math.floor(bench.random() * workers.length)];
      const prompt = prompts[Math.floor(bench.random() * prompts.length)];
      const keys = held.get(key.worker)!;
      if (step % 3 === 0) {
        const op = storeKeys(prompt, 0, 1 + Math.floor(bench.random() * 600));
        for (const each of op.keys) keys.add(each);
        bench.write(key, op);
      }
      const window = prompt.subarray(0, 1 + Math.floor(bench.random() * 600));
      const expected = [...held].map(([worker, set]) => {
        const missing = window.findIndex((each) => !set.has(each));
        return [worker, missing < 0 ? window.length : missing];
      });
      expect(bench.depths(window)).toEqual(Object.fromEntries(expected));
    }
  });

  it("spends two probes for a run of keys with the same holders once it knows the prompt", () => {
    const bench = new Bench();
    const chain = bench.chain(8_192);
    for (const [i, depth] of [8_000, 5_000, 700, 3].entries()) {
      bench.write(bench.begin(`w${i}`), storeKeys(chain, 0, depth));
    }
    expect(bench.store.depths(chain).probes).toBeLessThanOrEqual(4 * 14);
    expect(bench.store.depths(chain).probes).toBeLessThanOrEqual(1 + 2 * 4);
  });

  it("spends a logarithm of the prompt's length on a prompt that it sees first", () => {
    const probes = [64, 512, 4_096, 32_768].map((length) => {
      const bench = new Bench();
      const chain = bench.chain(length);
      bench.write(bench.begin("a"), storeKeys(chain, 0, Math.floor(length * 0.7)));
      return bench.store.depths(chain).probes;
    });
    for (const [i, count] of probes.entries()) expect(count).toBeLessThanOrEqual(6 + 3 * i + 2);
  });

  it("costs one probe when nobody has the first key", () => {
    const bench = new Bench();
    bench.write(bench.begin("a"), storeKeys(bench.chain(10)));
    expect(bench.store.depths(bench.chain(5_000))).toMatchObject({ probes: 1, count: 0 });
  });

  it("sees keys whose words collide as different", () => {
    const bench = new Bench();
    const one = BigUint64Array.of(0n, 1n << 32n, 0xffffffffffffffffn);
    const other = BigUint64Array.of(0n, 1n, 0xffffffff00000000n);
    bench.write(bench.begin("a"), storeKeys(one));
    expect(bench.depths(one)).toEqual({ a: 3 });
    expect(bench.depths(other)).toEqual({ a: 1 });
  });
});

describe("fleet rows", () => {
  it("are the same objects until something changes, and show changes at once", () => {
    const bench = new Bench();
    const a = bench.begin("a");
    bench.begin("b");
    const none = new BigUint64Array(0);
    const before = bench.store.read(MODEL, none).fleet;
    expect(bench.store.read(MODEL, none).fleet).toBe(before);
    bench.predict(a, none, 0);
    const after = bench.store.read(MODEL, none).fleet;
    expect(after[0]).not.toBe(before[0]);
    expect(after[1]).toBe(before[1]);
    bench.nowMs += 100;
    expect(bench.store.read(MODEL, none).fleet[1].feed.lagMs).toBe(100);
  });

  it("show the end of a reservation at once", () => {
    const bench = new Bench();
    const key = bench.begin("a");
    const load = { blocks: 3, prefillTokens: 40, reservationTtlMs: 30, prediction: null };
    bench.store.reserve({ ...key, requestId: "r", ...load });
    expect(bench.store.fleet()[0].reserved.requests).toBe(1);
    bench.nowMs = 30;
    expect(bench.store.fleet()[0].reserved.requests).toBe(0);
  });

  it("forget a rank that was silent past the horizon, and take it back under new slots", () => {
    const bench = new Bench({ horizonMs: 10_000 });
    const key = bench.begin("a");
    const chain = bench.chain(5);
    bench.write(key, storeKeys(chain));
    bench.nowMs = 10_001;
    bench.store.report([], true);
    expect(bench.store.fleet()).toEqual([]);
    expect(bench.store.apply([{ ...key, model: MODEL, sequence: 2, ops: [] }])).toEqual(["unknown"]);
    bench.begin("a");
    expect(bench.depths(chain)).toEqual({ a: 0 });
  });
});

describe("clock", () => {
  it("ignores steps backwards", () => {
    const bench = new Bench({ horizonMs: 10_000 });
    const chain = bench.chain(5);
    bench.nowMs = 9_000;
    bench.write(bench.begin("a"), storeKeys(chain));
    bench.nowMs = 0;
    bench.write(bench.begin("b"), storeKeys(chain));
    bench.nowMs = 18_900;
    expect(bench.depths(chain)).toEqual({ a: 5, b: 5 });
    bench.nowMs = 19_000;
    expect(bench.depths(chain)).toEqual({ a: 0, b: 0 });
  });
});
