/** What every implementation of the view must guarantee, whatever it is made of. Call it with a factory. */

import { afterEach, describe, expect, it } from "vitest";
import { SUCCESSOR_SILENT_MS } from "../../src/fleet/rules.ts";
import type { IncarnationKey } from "../../src/fleet/types.ts";
import type { KvOp } from "../../src/store/types.ts";
import {
  History,
  HORIZON_MS,
  randomKey,
  type StoreSettings,
  type StoreUnderTest,
  seeded,
} from "./store-histories.ts";
import { MODEL, registrationOf, removeKeys, reportOf, storeKeys } from "./view-samples.ts";

export type StoreFactory = (settings: StoreSettings) => StoreUnderTest | Promise<StoreUnderTest>;

const FIRST: IncarnationKey = { worker: "w", rank: 0, incarnation: "first" };
const SECOND: IncarnationKey = { worker: "w", rank: 0, incarnation: "second" };
const OTHER: IncarnationKey = { worker: "x", rank: 0, incarnation: "only" };

export function storeContract(
  name: string,
  make: StoreFactory,
  histories = Number(process.env.KEDGE_HISTORIES ?? 300),
): void {
  describe(`${name} store`, () => {
    const open: StoreUnderTest[] = [];
    const view = async () => {
      const tested = await make({ horizonMs: HORIZON_MS });
      open.push(tested);
      return new View(tested);
    };
    afterEach(async () => {
      for (const tested of open.splice(0)) await tested.close();
    });

    it(`answers as a naive model does, on ${histories} random histories`, async () => {
      for (let seed = 1; seed <= histories; seed++) {
        const tested = await make({ horizonMs: HORIZON_MS });
        try {
          await new History(seed, tested).run(60);
        } catch (thrown) {
          throw new Error(`history of seed ${seed}: ${String(thrown)}`, { cause: thrown });
        } finally {
          await tested.close();
        }
      }
    });

    leases(view);
    lives(view);
    reservations(view);
    feeds(view);
  });
}

type Open = () => Promise<View>;

function leases(open: Open): void {
  const chain = chainOf(40);

  it("knows nobody for an unknown or an empty prompt", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    expect(await view.depth(FIRST, chainOf(10, 2))).toEqual([0, 0]);
    expect(await view.depth(FIRST, new BigUint64Array(0))).toEqual([0, 0]);
  });

  it("reads keys that are a window of a larger buffer", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    const wide = BigUint64Array.of(1n, ...chain, 2n);
    expect(await view.depth(FIRST, wide.subarray(1, 41))).toEqual([40, 0]);
  });

  it("ends a confirmed lease at the horizon, and extends it when it is asserted again from the root", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    view.advance(HORIZON_MS - 1_000);
    await view.write(FIRST, 2, storeKeys(chain, 0, 30));
    view.advance(1_000);
    expect(await view.depth(FIRST, chain)).toEqual([30, 0]);
    view.advance(HORIZON_MS - 1_000);
    expect(await view.depth(FIRST, chain)).toEqual([0, 0]);
  });

  it("never lets a child outlive its parent", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain, 0, 20));
    view.advance(HORIZON_MS / 2);
    await view.write(FIRST, 2, storeKeys(chain, 20));
    expect(await view.depth(FIRST, chain)).toEqual([40, 0]);
    view.advance(HORIZON_MS / 2);
    await view.write(FIRST, 3, storeKeys(chain, 0, 20));
    expect(await view.depth(FIRST, chain)).toEqual([20, 0]);
  });

  it("refuses keys below a parent that the slot does not hold", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain, 0, 20), removeKeys(chain, 10, 20), storeKeys(chain, 20));
    await view.write(FIRST, 2, storeKeys(chain, 0, 20));
    expect(await view.depth(FIRST, chain)).toEqual([20, 0]);
  });

  it("neither shortens nor replaces a confirmed lease by a prediction, nor removes a prediction with it", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    await view.predict(FIRST, chain, 5_000);
    expect(await view.depth(FIRST, chain)).toEqual([40, 40]);
    await view.write(FIRST, 2, removeKeys(chain, 0));
    expect(await view.depth(FIRST, chain)).toEqual([0, 40]);
    await view.write(FIRST, 3, storeKeys(chain));
    view.advance(5_000);
    expect(await view.depth(FIRST, chain)).toEqual([40, 0]);
  });

  it("never shortens a prediction by a later one", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.predict(FIRST, chain, 50_000);
    await view.predict(FIRST, chain.slice(0, 10), 1_000);
    view.advance(40_000);
    expect(await view.depth(FIRST, chain)).toEqual([0, 40]);
  });

  it("predicts long prompts at boundaries: never more than the prompt, at most an eighth less", async () => {
    const view = await open();
    await view.begin(FIRST);
    const long = chainOf(1_999);
    await view.predict(FIRST, long, 5_000);
    const [, predicted] = await view.depth(FIRST, long);
    expect(predicted).toBeLessThanOrEqual(1_999);
    expect(predicted).toBeGreaterThan(1_999 * (7 / 8));
  });

  it("answers a lower bound and says so when the probes run out, the deepest holders exact", async () => {
    const view = await open();
    const long = chainOf(8_192);
    const depths = Array.from({ length: 60 }, (_, i) => 100 + 130 * i);
    for (const [i, depth] of depths.entries()) {
      const key = { worker: `w${i}`, rank: 0, incarnation: "only" };
      await view.begin(key);
      await view.write(key, 1, storeKeys(long, 0, depth));
    }
    const { lookup, fleet } = await view.store.read(MODEL, long);
    expect(lookup.truncated).toBe(true);
    expect(lookup.probes).toBeLessThanOrEqual(128);
    const slots = [...lookup.slots.subarray(0, lookup.count)];
    for (const [i, depth] of depths.entries()) {
      const row = fleet.find((other) => other.worker === `w${i}`);
      const claimed = lookup.confirmedDepth[slots.indexOf(row!.slots.device)];
      expect(claimed).toBeGreaterThan(0);
      expect(claimed).toBeLessThanOrEqual(depth);
      if (i >= 56) expect(claimed).toBe(depth);
    }
  });

  it("refuses a malformed batch whole", async () => {
    const view = await open();
    await view.begin(FIRST);
    const bad = { ...storeKeys(chain), tokens: new Uint32Array(3) };
    const batch = { ...FIRST, model: MODEL, sequence: 1, ops: [storeKeys(chain), bad] };
    await expect((async () => view.store.apply([batch]))()).rejects.toMatchObject({
      code: "invalid_request",
    });
    expect(await view.depth(FIRST, chain)).toEqual([0, 0]);
    expect(await view.apply(FIRST, 1, storeKeys(chain))).toBe("applied");
  });
}

function lives(open: Open): void {
  const chain = chainOf(40);

  it("voids all that was said of the life before when a new one registers", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    await view.predict(FIRST, chain, 50_000);
    await view.begin(SECOND);
    expect(await view.depth(SECOND, chain)).toEqual([0, 0]);
    expect((await view.store.read(MODEL, chain)).lookup.count).toBe(0);
    await view.write(SECOND, 1, storeKeys(chain, 0, 5));
    expect(await view.depth(SECOND, chain)).toEqual([5, 0]);
  });

  it("refuses every write of a retired life", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.begin(SECOND);
    expect(await view.store.register(registrationOf(FIRST))).toBeNull();
    expect(await view.apply(FIRST, 1, storeKeys(chain))).toBe("retired");
    expect(await view.store.applySnapshot({ ...FIRST, model: MODEL, sequence: 9, ops: [] })).toBe("retired");
    await view.predict(FIRST, chain, 50_000);
    await view.store.report([reportOf(FIRST, { activeBlocks: 77 })]);
    const { lookup, fleet } = await view.store.read(MODEL, chain);
    expect(lookup.count).toBe(0);
    expect(fleet.map((row) => [row.incarnation, row.load.activeBlocks, row.reserved.requests])).toEqual([
      ["second", null, 0],
    ]);
  });

  it("takes a life back whose successor turns out to have been a late message", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.begin(SECOND);
    view.advance(SUCCESSOR_SILENT_MS);
    expect(await view.store.register(registrationOf(FIRST))).toBeNull();
    view.advance(1_000);
    expect(await view.store.register(registrationOf(FIRST))).not.toBeNull();
    expect(await view.apply(SECOND, 1, storeKeys(chain))).toBe("retired");
    await view.write(FIRST, 1, storeKeys(chain));
    expect(await view.depth(FIRST, chain)).toEqual([40, 0]);
  });

  it("takes a retired rank out of the fleet and refuses one that was retired before it was known", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.store.retire(FIRST);
    await view.store.retire(OTHER);
    expect(await view.store.register(registrationOf(OTHER))).toBeNull();
    expect(await view.store.fleet()).toEqual([]);
  });

  it("does not know an incarnation that never registered", async () => {
    const view = await open();
    expect(await view.apply(FIRST, 1, storeKeys(chain))).toBe("unknown");
  });

  it("reuses slots only after the horizon, and nothing of the former holder shines through", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    const before = await view.slots(FIRST);
    await view.store.retire(FIRST);
    view.advance(HORIZON_MS - 1_000);
    await view.begin(SECOND);
    expect(await view.slots(SECOND)).not.toContain(before[0]);
    view.advance(2_000);
    await view.begin(OTHER);
    expect(await view.slots(OTHER)).toEqual(before);
    expect(await view.depth(OTHER, chain)).toEqual([0, 0]);
  });

  it("sets a rank's keys to exactly the snapshot's and goes on from its sequence", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.write(FIRST, 1, storeKeys(chain));
    expect(await view.apply(FIRST, 4, removeKeys(chain, 10))).toBe("gap");
    const ops = [storeKeys(chain, 0, 12)];
    expect(await view.store.applySnapshot({ ...FIRST, model: MODEL, sequence: 4, ops })).toBe("applied");
    expect(await view.depth(FIRST, chain)).toEqual([12, 0]);
    expect(await view.apply(FIRST, 4, removeKeys(chain, 0))).toBe("duplicate");
    expect(await view.apply(FIRST, 5, storeKeys(chain, 12, 14))).toBe("applied");
    expect(await view.depth(FIRST, chain)).toEqual([14, 0]);
  });
}

function reservations(open: Open): void {
  const reserve = (view: View, requestId: string) =>
    view.store.reserve({
      ...FIRST,
      requestId,
      blocks: 10,
      prefillTokens: 160,
      reservationTtlMs: 30_000,
      prediction: null,
    });

  it("adds reservations to the row until a report covers exactly them", async () => {
    const view = await open();
    await view.begin(FIRST);
    await reserve(view, "one");
    await reserve(view, "two");
    expect((await view.row(FIRST)).reserved).toEqual({ requests: 2, blocks: 20, prefillTokens: 320 });
    await view.store.report([reportOf(FIRST, { activeBlocks: 10, prefillTokens: 160, admitted: ["one"] })]);
    const row = await view.row(FIRST);
    expect(row.reserved).toEqual({ requests: 1, blocks: 10, prefillTokens: 160 });
    expect(row.load.activeBlocks).toBe(10);
  });

  it("keeps no ghost of a reservation that arrives after the report that covers it", async () => {
    const view = await open();
    await view.begin(FIRST);
    await view.store.report([reportOf(FIRST, { admitted: ["late"] })]);
    await reserve(view, "late");
    expect((await view.row(FIRST)).reserved).toEqual({ requests: 0, blocks: 0, prefillTokens: 0 });
  });

  it("ends a reservation by its expiry or its release", async () => {
    const view = await open();
    await view.begin(FIRST);
    await reserve(view, "one");
    await reserve(view, "two");
    await view.store.release(FIRST, "two");
    await view.store.release(FIRST, "two");
    expect((await view.row(FIRST)).reserved.requests).toBe(1);
    view.advance(30_000);
    expect((await view.row(FIRST)).reserved).toEqual({ requests: 0, blocks: 0, prefillTokens: 0 });
  });

  it("ignores the load of a report that comes late, but not the admissions", async () => {
    const view = await open();
    await view.begin(FIRST);
    await reserve(view, "one");
    await view.store.report([reportOf(FIRST, { sequence: 2, activeBlocks: 20 })]);
    await view.store.report([reportOf(FIRST, { sequence: 1, activeBlocks: 10, admitted: ["one"] })]);
    const row = await view.row(FIRST);
    expect([row.load.activeBlocks, row.reserved.requests]).toEqual([20, 0]);
  });
}

function feeds(open: Open): void {
  const chain = chainOf(4);

  it("measures a feed's lag in batches and in ms, silence included", async () => {
    const view = await open();
    await view.begin(FIRST);
    view.advance(3_000);
    expect((await view.row(FIRST)).feed).toEqual({ lagEvents: 0, lagMs: 3_000 });
    await view.store.report([reportOf(FIRST, { publishedSequence: 3 })]);
    await view.write(FIRST, 1, storeKeys(chain));
    view.advance(1_000);
    await view.store.report([reportOf(FIRST, { sequence: 2, publishedSequence: 3 })]);
    expect((await view.row(FIRST)).feed).toEqual({ lagEvents: 2, lagMs: 1_000 });
    await view.write(FIRST, 2, storeKeys(chain));
    await view.write(FIRST, 3, storeKeys(chain));
    expect((await view.row(FIRST)).feed).toEqual({ lagEvents: 0, lagMs: 0 });
  });

  it("drops a silent rank from the fleet only while the bus is known to work, and takes it back when heard", async () => {
    const view = await open();
    await view.begin(FIRST);
    view.advance(20_000);
    expect(await view.store.fleet()).toHaveLength(1);
    await view.store.report([], true);
    view.advance(1_000);
    expect(await view.store.fleet()).toHaveLength(0);
    await view.store.report([reportOf(FIRST)]);
    expect(await view.store.fleet()).toHaveLength(1);
    view.advance(20_000);
    expect(await view.store.fleet()).toHaveLength(1);
  });

  it("keeps thresholds per model", async () => {
    const view = await open();
    const unset = {
      activeDecodeBlocksThreshold: null,
      activePrefillTokensThreshold: null,
      activePrefillTokensThresholdFrac: null,
    };
    await view.store.setThresholds(MODEL, { ...unset, activeDecodeBlocksThreshold: 0.85 });
    expect((await view.store.read(MODEL, chain)).thresholds.activeDecodeBlocksThreshold).toBe(0.85);
    expect(await view.store.getThresholds("another")).toEqual(unset);
  });
}

/** A store under test with shorthands. */
class View {
  private readonly tested: StoreUnderTest;

  constructor(tested: StoreUnderTest) {
    this.tested = tested;
  }

  get store() {
    return this.tested.store;
  }

  advance(ms: number): void {
    this.tested.advance(ms);
  }

  async begin(key: IncarnationKey): Promise<void> {
    expect(await this.store.register(registrationOf(key))).not.toBeNull();
  }

  async apply(key: IncarnationKey, sequence: number, ...ops: KvOp[]) {
    return (await this.store.apply([{ ...key, model: MODEL, sequence, ops }]))[0];
  }

  async write(key: IncarnationKey, sequence: number, ...ops: KvOp[]): Promise<void> {
    expect(await this.apply(key, sequence, ...ops)).toBe("applied");
  }

  async predict(key: IncarnationKey, keys: BigUint64Array, ttlMs: number): Promise<void> {
    const prediction = { keys, tokensPerKey: 16, ttlMs };
    await this.store.reserve({
      ...key,
      requestId: "predicting",
      blocks: 0,
      prefillTokens: 0,
      reservationTtlMs: 0,
      prediction,
    });
  }

  async row(key: IncarnationKey) {
    const row = (await this.store.fleet()).find(
      (other) => other.worker === key.worker && other.rank === key.rank,
    );
    if (row === undefined) throw new Error(`${key.worker} is not in the fleet`);
    return row;
  }

  async slots(key: IncarnationKey): Promise<number[]> {
    return Object.values((await this.row(key)).slots);
  }

  /** Confirmed and predicted depth in the device tier. */
  async depth(key: IncarnationKey, keys: BigUint64Array): Promise<[number, number]> {
    const { slots } = await this.row(key);
    const { lookup } = await this.store.read(MODEL, keys);
    const at = lookup.slots.subarray(0, lookup.count).indexOf(slots.device);
    return at < 0 ? [0, 0] : [lookup.confirmedDepth[at], lookup.predictedDepth[at]];
  }
}

function chainOf(length: number, seed = 1): BigUint64Array {
  const random = seeded(seed);
  return BigUint64Array.from({ length }, () => randomKey(random));
}
