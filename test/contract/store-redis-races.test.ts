/** Two indexers at once over a bad line, and writes that are lost, repeated or overtaken: no group of slots has two owners, no hole is silent. */

import type { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { IncarnationKey } from "../../src/fleet/types.ts";
import type { RedisStore, SendPipeline } from "../../src/store/redis/index.ts";
import type { KvBatch, KvSnapshot } from "../../src/store/types.ts";
import { connect, directPipeline, redisStore } from "../support/redis-store.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { seeded } from "./store-histories.ts";
import { MODEL, registrationOf, removeKeys, reportOf, storeKeys } from "./view-samples.ts";

const SEEDS = 40;
const CHAINS = 6;
const CHAIN_KEYS = 12;

function chainOf(n: number): BigUint64Array {
  return BigUint64Array.from({ length: CHAIN_KEYS }, (_, i) =>
    BigInt.asUintN(64, BigInt(n * 1_000_003 + i + 1) * 0x9e3779b97f4a7c15n),
  );
}

/** One life of a rank: what it holds, and all that it has published. */
class Life {
  readonly key: IncarnationKey;
  readonly depths: number[] = Array.from({ length: CHAINS }, () => 0);
  readonly log: KvBatch[] = [];
  private readonly chains: readonly BigUint64Array[];

  constructor(worker: string, number: number, chains: readonly BigUint64Array[]) {
    this.key = { worker, rank: 0, incarnation: `life-${number}` };
    this.chains = chains;
  }

  step(random: () => number): void {
    const i = Math.floor(random() * CHAINS);
    const depth = this.depths[i];
    const grows = depth === 0 || (random() < 0.55 && depth < CHAIN_KEYS);
    const next = grows
      ? Math.min(CHAIN_KEYS, depth + 1 + Math.floor(random() * 4))
      : Math.floor(random() * depth);
    this.depths[i] = next;
    const op = grows ? storeKeys(this.chains[i], depth, next) : removeKeys(this.chains[i], next, depth);
    this.log.push({ ...this.key, model: MODEL, sequence: this.log.length + 1, ops: [op] });
  }

  snapshot(): KvSnapshot {
    const ops = this.depths.flatMap((depth, i) => (depth > 0 ? [storeKeys(this.chains[i], 0, depth)] : []));
    return { ...this.key, model: MODEL, sequence: this.log.length, ops };
  }
}

describeWithRedis("the view in Redis over a bad line", () => {
  let server: RunningServer;
  let redis: Redis;
  beforeAll(async () => {
    server = await startRedis();
    redis = connect(server.port);
  });
  afterAll(async () => {
    redis.disconnect();
    await server.stop();
  });

  /** A world of its own: ranks that live, and indexers that carry what they say into one view. */
  class Race {
    readonly random: () => number;
    readonly chains: readonly BigUint64Array[];
    readonly ranks: Life[];
    readonly view: string;
    isOver = false;
    private readonly registered = new Set<Life>();
    private readonly shards: number;
    private lives = 0;

    constructor(seed: number, shards: number) {
      this.random = seeded(seed);
      this.shards = shards;
      this.view = `race-${shards}-${seed}`;
      this.chains = Array.from({ length: CHAINS }, (_, i) => chainOf(seed * 100 + i));
      this.ranks = ["w0", "w1"].map((worker) => new Life(worker, ++this.lives, this.chains));
    }

    store(send: SendPipeline): RedisStore {
      return redisStore({ view: this.view, shards: this.shards, send });
    }

    async turns(): Promise<void> {
      for (let n = Math.floor(this.random() * 6); n > 0; n--) await new Promise(setImmediate);
    }

    /** Slow both ways; one request in thirty does not arrive, one is sent twice, of one the answer is lost. */
    readonly badLine: SendPipeline = async (commands, signal) => {
      const direct = directPipeline(redis);
      const fate = this.random();
      await this.turns();
      if (fate < 0.03) throw new Error("lost on its way");
      const outcomes = await direct(commands, signal);
      await this.turns();
      if (outcomes.some(({ error }) => error)) return outcomes;
      if (fate < 0.06) return direct(commands, signal);
      if (fate < 0.09) throw new Error("lost on its way back");
      return outcomes;
    };

    async live(): Promise<void> {
      for (let round = 0; round < 40; round++) {
        for (const [i, life] of this.ranks.entries()) {
          life.step(this.random);
          if (this.random() < 0.02 && this.registered.has(life))
            this.ranks[i] = new Life(life.key.worker, ++this.lives, this.chains);
        }
        for (let n = 0; n < 6; n++) await this.turns();
      }
      this.isOver = true;
    }

    /** Registers lives, writes their batches (now and then some again, or not all), heals gaps. */
    async index(): Promise<void> {
      const store = this.store(this.badLine);
      const positions = new Map<Life, number>();
      // A life that began last may have said nothing yet; it is registered all the same.
      const isBehind = (life: Life) => (positions.get(life) ?? -1) < life.log.length;
      for (let rounds = 0; !this.isOver || this.ranks.some(isBehind); rounds++) {
        expect(rounds).toBeLessThan(10_000);
        await this.turns();
        for (const life of this.ranks) {
          if (!positions.has(life)) {
            await this.again(() => store.register(registrationOf(life.key)));
            positions.set(life, 0);
            this.registered.add(life);
          }
          await this.carry(store, life, positions);
        }
      }
    }

    private async carry(store: RedisStore, life: Life, positions: Map<Life, number>): Promise<void> {
      const from = Math.max(
        0,
        positions.get(life)! + [-2, -1, 1, 0, 0, 0, 0, 0][Math.floor(this.random() * 8)],
      );
      const batches = life.log.slice(from, from + 1 + Math.floor(this.random() * 3));
      const outcomes = batches.length > 0 ? await this.again(() => store.apply(batches)) : [];
      for (const [i, outcome] of outcomes.entries()) {
        if (outcome === "applied" || outcome === "duplicate")
          positions.set(life, Math.max(positions.get(life)!, batches[i].sequence));
      }
      if (!outcomes.includes("gap") && this.random() > 0.08) return;
      const snapshot = life.snapshot();
      const outcome = await this.again(() => store.applySnapshot(snapshot));
      if (outcome === "applied") positions.set(life, snapshot.sequence);
    }

    private async again<T>(write: () => Promise<T>): Promise<T> {
      for (let tries = 1; ; tries++) {
        try {
          return await write();
        } catch (thrown) {
          if (tries === 20) throw thrown;
        }
      }
    }

    /** Depth of each rank's device slot for each chain, as a gateway reads them. */
    async depths(): Promise<number[][]> {
      const store = this.store(directPipeline(redis));
      for (const { key, log } of this.ranks)
        await store.report([reportOf(key, { publishedSequence: log.length })]);
      const fleet = await store.fleet();
      const found: number[][] = [];
      for (const { key } of this.ranks) {
        const row = fleet.find(({ worker }) => worker === key.worker);
        expect(row).toMatchObject({ incarnation: key.incarnation, feed: { lagEvents: 0 } });
        const depths: number[] = [];
        for (const chain of this.chains) {
          const { lookup } = await store.read(MODEL, chain);
          const at = lookup.slots.subarray(0, lookup.count).indexOf(row!.slots.device);
          depths.push(at < 0 ? 0 : lookup.confirmedDepth[at]);
        }
        found.push(depths);
      }
      return found;
    }

    /** Groups that wait to be used again and groups that are in use. */
    async groups(): Promise<{ free: string[]; used: string[] }> {
      const rows = Object.values(await redis.hgetall(`{${this.view}.1}d${MODEL}`));
      return {
        free: await redis.zrange(`{${this.view}.1}f`, 0, -1),
        used: rows.map((row) => row.split(",")[0]),
      };
    }
  }

  describe.each([1, 3])("with %i shards", (shards) => {
    it(`holds what ranks hold after ${SEEDS} races of two indexers, and no slots that are in use are free`, async () => {
      for (let seed = 1; seed <= SEEDS; seed++) {
        const race = new Race(seed, shards);
        await Promise.all([race.live(), race.index(), race.index()]);
        expect(await race.depths(), `seed ${seed}`).toEqual(race.ranks.map(({ depths }) => depths));
        const { free, used } = await race.groups();
        expect(used).toHaveLength(2);
        expect(free, `seed ${seed}`).not.toEqual(expect.arrayContaining([used[0]]));
        expect(free, `seed ${seed}`).not.toEqual(expect.arrayContaining([used[1]]));
      }
    }, 60_000);
  });

  it("gives a rank's slots to no other though the end of its snapshot was sent twice", async () => {
    let nowMs = 1_800_000_000_000;
    const direct = directPipeline(redis);
    const send: SendPipeline = async (commands, signal) => {
      const first = await direct(commands, signal);
      return first.some(({ error }) => error) ? first : direct(commands, signal);
    };
    const horizonMs = 60_000;
    const store = redisStore({ horizonMs, viewNowMs: () => nowMs, send });
    const keys = ["a", "b", "c", "d", "e", "f"].map((worker) => ({ worker, rank: 0, incarnation: "1" }));
    await store.register(registrationOf(keys[0]));
    const snapshot = { ...keys[0], model: MODEL, sequence: 3, ops: [storeKeys(chainOf(1))] };
    expect(await store.applySnapshot(snapshot)).toBe("applied");
    nowMs += horizonMs + 1_000;
    await store.report([reportOf(keys[0], { publishedSequence: 3 })]);
    for (const key of keys.slice(1)) await store.register(registrationOf(key));
    const slots = (await store.fleet()).map((row) => row.slots.device);
    expect(new Set(slots).size).toBe(keys.length);
  });

  it("calls a batch a gap that was written under slots whose place a snapshot takes meanwhile", async () => {
    const view = "overtaken";
    const direct = directPipeline(redis);
    const key = { worker: "w", rank: 0, incarnation: "1" };
    const chain = chainOf(7);
    const stored = { ...key, model: MODEL, sequence: 1, ops: [storeKeys(chain)] };
    // The snapshot of the other indexer comes between this one's look at the watermark and its writes, its last call after them.
    let overtake: (() => Promise<void>) | null = null;
    const late = Promise.withResolvers<void>();
    const isWrite = ([name, , , at]: readonly string[]) => name.startsWith("EVAL") && at.endsWith(".1.0}w");
    const one = redisStore({
      view,
      shards: 3,
      send: async (commands, signal) => {
        if (isWrite(commands[0])) await overtake?.();
        return direct(commands, signal);
      },
    });
    const held = Promise.withResolvers<void>();
    const other = redisStore({
      view,
      shards: 3,
      send: async (commands, signal) => {
        if (commands[0][0] === "HDEL") {
          held.resolve();
          await late.promise;
        }
        return direct(commands, signal);
      },
    });
    await one.register(registrationOf(key));
    await one.apply([stored]);
    let snapshot: Promise<unknown> = Promise.resolve();
    overtake = async () => {
      overtake = null;
      snapshot = other.applySnapshot({ ...stored, ops: [storeKeys(chain)] });
      await held.promise;
    };
    const removal = { ...key, model: MODEL, sequence: 2, ops: [removeKeys(chain, 2)] };
    expect(await one.apply([removal])).toEqual(["gap"]);
    late.resolve();
    expect(await snapshot).toBe("applied");
    await one.report([reportOf(key, { publishedSequence: 2 })]);
    expect((await one.fleet())[0].feed.lagEvents).toBe(1);
    expect(await one.apply([removal])).toEqual(["applied"]);
    expect([...(await one.read(MODEL, chain)).lookup.confirmedDepth]).toEqual([2]);
  });

  it("predicts for a rank without events though its registration reached only a part of the view at first", async () => {
    const direct = directPipeline(redis);
    let isCut = true;
    const store = redisStore({
      shards: 3,
      send: (commands, signal) =>
        isCut && commands[0][0] === "HSET" ? Promise.reject(new Error("cut")) : direct(commands, signal),
    });
    const key = { worker: "w", rank: 0, incarnation: "1" };
    const registration = registrationOf(key, { kvEvents: false });
    await expect(store.register(registration)).rejects.toMatchObject({ code: "view_unavailable" });
    isCut = false;
    expect(await store.register(registration)).not.toBeNull();
    const keys = chainOf(9);
    const prediction = { keys, tokensPerKey: 16, ttlMs: 30_000 };
    await store.reserve({
      ...key,
      requestId: "r",
      blocks: 1,
      prefillTokens: 1,
      reservationTtlMs: 30_000,
      prediction,
    });
    expect([...(await store.read(MODEL, keys)).lookup.predictedDepth]).toEqual([CHAIN_KEYS]);
  });

  it("takes no copy of the fleet for a later one when Redis has lost its latest writes", async () => {
    let nowMs = 1_800_000_000_000;
    const options = { view: "failover", viewNowMs: () => nowMs, send: directPipeline(redis) };
    const indexer = redisStore(options);
    const gateway = redisStore(options);
    const [a, b, c] = ["a", "b", "c"].map((worker) => ({ worker, rank: 0, incarnation: "1" }));
    await indexer.register(registrationOf(a));
    const dump = await Promise.all(
      (await redis.keys("{failover.1}*")).map(async (name) => [name, await redis.dumpBuffer(name)] as const),
    );
    nowMs += 1_000;
    for (const key of [b, c]) await indexer.register(registrationOf(key));
    expect((await gateway.read(MODEL, chainOf(1))).fleet).toHaveLength(3);
    // The replica that takes over had not got these two; they come again in another order.
    await redis.del(...(await redis.keys("{failover.1}*")));
    for (const [name, value] of dump) await redis.restore(name, 0, value);
    nowMs += 1_000;
    for (const key of [c, b]) await indexer.register(registrationOf(key));
    await indexer.apply([{ ...b, model: MODEL, sequence: 1, ops: [storeKeys(chainOf(1))] }]);
    const { fleet, lookup } = await gateway.read(MODEL, chainOf(1));
    expect(
      fleet.filter(({ slots }) => lookup.slots.includes(slots.device)).map(({ worker }) => worker),
    ).toEqual(["b"]);
  });
});
