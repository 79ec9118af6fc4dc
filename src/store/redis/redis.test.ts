/** What only the Redis store promises: budgets, deadlines, an emptied view, copies that are never older than the view allows. */

import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Redis } from "ioredis";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { randomKey, seeded } from "../../../test/contract/store-histories.ts";
import {
  MODEL,
  registrationOf,
  removeKeys,
  reportOf,
  storeKeys,
} from "../../../test/contract/view-samples.ts";
import { connect, directPipeline, redisStore } from "../../../test/support/redis-store.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../../../test/support/servers.ts";
import { defineConfig } from "../../config/index.ts";
import type { IncarnationKey } from "../../fleet/types.ts";
import { startRedisRest } from "../../node/redis-rest/index.ts";
import { boundaryAt, boundaryCount } from "../../prefix/boundaries.ts";
import type { KvOp } from "../types.ts";
import { type RedisStore, type RedisStoreOptions, redisStoreOptions } from "./index.ts";

const NO_KEYS = new BigUint64Array(0);
const BASE_MS = 1_800_000_000_000;

/** Timers that fire when the test says so. */
class ManualClock {
  nowMs = 0;
  private readonly timers = new Map<number, { atMs: number; callback: () => void }>();
  private serial = 0;

  now = () => this.nowMs;
  setTimeout = (callback: () => void, delayMs: number): unknown => {
    this.timers.set(++this.serial, { atMs: this.nowMs + delayMs, callback });
    return this.serial;
  };
  clearTimeout = (handle: unknown) => void this.timers.delete(handle as number);

  get pending(): number {
    return this.timers.size;
  }

  advance(ms: number): void {
    this.nowMs += ms;
    for (const [handle, { atMs, callback }] of [...this.timers]) {
      if (atMs > this.nowMs) continue;
      this.timers.delete(handle);
      callback();
    }
  }
}

describeWithRedis("the view in Redis", () => {
  let server: RunningServer;
  let redis: Redis;
  let viewMs = BASE_MS;
  beforeAll(async () => {
    server = await startRedis();
    redis = connect(server.port);
  });
  afterAll(async () => {
    redis.disconnect();
    await server.stop();
  });

  const open = (options: Partial<RedisStoreOptions> = {}) =>
    redisStore({ send: directPipeline(redis), viewNowMs: () => viewMs, ...options });

  /** Commands that scripts ran while `act` did. */
  async function innerCommands(act: () => Promise<unknown>): Promise<number> {
    await redis.call("CONFIG", "RESETSTAT");
    await act();
    let count = 0;
    for (const [, name, calls] of (await redis.info("commandstats")).matchAll(/cmdstat_(\S+):calls=(\d+)/g)) {
      if (!["evalsha", "eval", "config|resetstat", "info"].includes(name)) count += Number(calls);
    }
    return count;
  }

  describe("budgets", () => {
    it("asks once per decision and writes once per request, load tick and batch of events", async () => {
      const store = open();
      const workers = await begin(store, 16);
      const chain = chainOf(64, 1);
      // Redis learns each script once.
      await store.read(MODEL, chain);
      await predict(store, workers[0], chain, 5_000);
      await store.report([]);
      await write(store, workers[0], 1);
      const spent = async (act: () => Promise<unknown>) => {
        const before = store.figures;
        await act();
        return [store.figures.requests - before.requests, store.figures.commands - before.commands];
      };
      expect(await spent(() => store.read(MODEL, chain))).toEqual([1, 1]);
      expect(await spent(() => predict(store, workers[0], chain, 5_000))).toEqual([1, 1]);
      const reports = workers.map((key) => reportOf(key));
      expect(await spent(() => store.report(reports, true))).toEqual([1, 1]);
      const batches = workers.map((key, i) => batch(key, i === 0 ? 2 : 1, storeKeys(chain, 0, 20)));
      expect(await spent(() => store.apply(batches))).toEqual([1, 1]);
    });

    it("reads registrations in the round trip of the first decision, once however many ask", async () => {
      const writer = open({ view: "cold" });
      await begin(writer, 3);
      const reader = open({ view: "cold" });
      const reads = await Promise.all(Array.from({ length: 20 }, () => reader.read(MODEL, NO_KEYS)));
      for (const { fleet } of reads) expect(fleet).toHaveLength(3);
      expect([reader.figures.requests, reader.figures.commands]).toEqual([20, 21]);
    });

    it("runs at most 128 commands for a lookup and 256 for a prediction of 8,192 keys", async () => {
      const store = open();
      const chain = chainOf(8_192, 2);
      const workers = await begin(store, 40);
      for (const [i, key] of workers.entries()) {
        await write(store, key, 1, storeKeys(chain, 0, 8_000 - 197 * i));
        await predict(store, key, chain.subarray(0, 8_100 - 201 * i), 100_000, 1_000);
      }
      await store.read(MODEL, chain);
      viewMs += 2_000;
      // All reservations have ended: what it costs to sum them up anew comes on top.
      expect(await innerCommands(() => store.read(MODEL, chain))).toBeLessThanOrEqual(128);
      expect(await innerCommands(() => predict(store, workers[0], chain, 100_000))).toBeLessThanOrEqual(256);
      viewMs += 40_000;
      expect(await innerCommands(() => predict(store, workers[0], chain, 100_000))).toBeLessThanOrEqual(256);
    });

    it("answers in at most 64 bytes per worker, asks in 11 per key and 2 KB", async () => {
      const chain = chainOf(8_192, 3);
      const bytes = async (workers: number) => {
        const store = open();
        const keys = await begin(store, workers);
        for (const [i, key] of keys.entries()) {
          const depth = 400 + 13 * (i % 8);
          await write(store, key, 1, storeKeys(chain, 0, depth));
          await predict(store, key, chain.subarray(0, depth + 100), 100_000);
        }
        const loads = { activeBlocks: 12_345, prefillTokens: 81_920, running: 128, waiting: 12 };
        await store.report(keys.map((key) => reportOf(key, { ...loads, publishedSequence: 1 })));
        viewMs += 250;
        await store.read(MODEL, chain);
        const before = store.figures;
        expect((await store.read(MODEL, chain)).lookup.count).toBe(workers);
        return {
          up: store.figures.bytesUp - before.bytesUp,
          down: store.figures.bytesDown - before.bytesDown,
        };
      };
      const [few, many] = [await bytes(4), await bytes(64)];
      expect((many.down - few.down) / 60).toBeLessThanOrEqual(64);
      expect(many.up).toBeLessThanOrEqual(11 * 8_192 + 2_048);
    });

    it("keeps an entry with two holders in at most 150 bytes", async () => {
      const store = open({ horizonMs: 3_600_000 });
      const workers = await begin(store, 2);
      const used = async () => Number(/used_memory:(\d+)/.exec(await redis.info("memory"))![1]);
      await redis.call("SCRIPT", "FLUSH");
      const before = await used();
      for (let i = 0; i < 25; i++) {
        const chain = chainOf(4_000, 100 + i);
        const ops = Array.from({ length: 8 }, (_, part) => storeKeys(chain, 500 * part, 500 * (part + 1)));
        await Promise.all(
          workers.map((key) => store.apply(ops.map((op, part) => batch(key, 8 * i + part + 1, op)))),
        );
      }
      expect(((await used()) - before) / 100_000).toBeLessThanOrEqual(150);
    });

    it("drops expired entries while others are written, so that they never pile up", async () => {
      const store = open({ view: "dead", horizonMs: 10_000 });
      const [key] = await begin(store, 1);
      const counts: number[] = [];
      // A hundred writes of 200 keys live within the horizon.
      for (let i = 1; i <= 400; i++) {
        viewMs += 100;
        await write(store, key, i, storeKeys(chainOf(200, 1_000 + i)));
        if (i % 100 === 0) counts.push(await fieldsOf("{dead.1}e*"));
      }
      expect(counts[0]).toBeLessThanOrEqual(20_000);
      expect(Math.max(...counts)).toBeLessThanOrEqual(2 * 20_000);
    });
  });

  async function fieldsOf(pattern: string): Promise<number> {
    const lengths = await Promise.all((await redis.keys(pattern)).map((key) => redis.hlen(key)));
    return lengths.reduce((sum, length) => sum + length, 0);
  }

  describe("predictions", () => {
    it("reach the deepest boundary of a prompt of any length, with the tokens of that depth", async () => {
      const store = open();
      const [key] = await begin(store, 1);
      for (const length of [1, 64, 65, 127, 1_023, 1_024, 1_087, 1_500, 4_097, 8_191, 8_192, 9_000]) {
        const chain = chainOf(length, 2_000 + length);
        await predict(store, key, chain, 30_000);
        const { predictedDepth, predictedTokens } = (await store.read(MODEL, chain)).lookup;
        const depth = boundaryAt(boundaryCount(length) - 1);
        expect([predictedDepth[0], predictedTokens[0]]).toEqual([depth, Math.round(depth * 15.7)]);
      }
    });

    it("keep the tokens of a boundary between two that look the same", async () => {
      const store = open();
      const [one, other] = await begin(store, 2);
      const chain = chainOf(200, 15);
      const predicted = (key: IncarnationKey, length: number, tokensPerKey: number) => {
        const prediction = { keys: chain.subarray(0, length), tokensPerKey, ttlMs: 50_000 };
        const load = { requestId: `between-${length}`, blocks: 0, prefillTokens: 0, reservationTtlMs: 1 };
        return store.reserve({ ...key, ...load, prediction });
      };
      await predicted(one, 200, 1);
      await predicted(one, 10, 2);
      await predicted(one, 5, 1);
      await predicted(other, 200, 3);
      const { fleet, lookup } = await store.read(MODEL, chain.subarray(0, 8));
      const at = lookup.slots.indexOf(fleet[0].slots.device);
      expect([lookup.predictedDepth[at], lookup.predictedTokens[at]]).toEqual([8, 16]);
    });

    it("keep each worker's depth and its newest tokens at every boundary, though few of them are read", async () => {
      const store = open();
      const workers = await begin(store, 3);
      const chain = chainOf(3_000, 13);
      const random = seeded(14);
      /** Newest tokens per key at each boundary. */
      const rates = new Map(workers.map(({ worker }) => [worker, [] as number[]]));
      for (let i = 0; i < 200; i++) {
        const key = workers[i % 3];
        const length = 1 + Math.floor(random() * (i % 7 < 2 ? 3_000 : 100));
        const tokensPerKey = 1 + Math.floor(3 * random());
        const prediction = { keys: chain.subarray(0, length), tokensPerKey, ttlMs: 50_000 };
        const load = { requestId: `newest-${i}`, blocks: 0, prefillTokens: 0, reservationTtlMs: 1 };
        await store.reserve({ ...key, ...load, prediction });
        rates
          .get(key.worker)!
          .splice(0, boundaryCount(length), ...Array(boundaryCount(length)).fill(tokensPerKey));
        const window = chain.subarray(0, 1 + Math.floor(random() * (i % 8 === 0 ? 3_000 : 100)));
        const { fleet, lookup } = await store.read(MODEL, window);
        expect(lookup.truncated).toBe(false);
        for (const { worker, slots } of fleet) {
          const held = rates.get(worker)!;
          const boundaries = Math.min(held.length, boundaryCount(window.length));
          const depth = boundaries === 0 ? 0 : boundaryAt(boundaries - 1);
          const at = lookup.slots.indexOf(slots.device);
          const found = at < 0 ? [0, 0] : [lookup.predictedDepth[at], lookup.predictedTokens[at]];
          expect(found).toEqual([depth, boundaries === 0 ? 0 : depth * held[boundaries - 1]]);
        }
      }
    });
  });

  describe("failures", () => {
    it("sends scripts again that Redis has forgotten", async () => {
      const store = open();
      const [key] = await begin(store, 1);
      const chain = chainOf(10, 4);
      await write(store, key, 1, storeKeys(chain));
      await redis.call("SCRIPT", "FLUSH");
      await write(store, key, 2, removeKeys(chain, 5));
      await redis.call("SCRIPT", "FLUSH");
      expect([...(await store.read(MODEL, chain)).lookup.confirmedDepth]).toEqual([5]);
    });

    it("fails a reading at its deadline and a write at two seconds, and drops what comes later", async () => {
      const clock = new ManualClock();
      const signals: AbortSignal[] = [];
      const late: (() => void)[] = [];
      const store = redisStore({
        clock,
        deadlineMs: 50,
        send: (_, signal) => {
          signals.push(signal);
          return new Promise((resolve) => late.push(() => resolve([])));
        },
      });
      for (const [limitMs, act] of [
        [50, () => store.read(MODEL, NO_KEYS)],
        [50, () => store.fleet()],
        [2_000, () => store.retire({ worker: "w", rank: 0, incarnation: "one" })],
      ] as const) {
        let failed: unknown = null;
        const sent = signals.length;
        const done = act().then(
          () => undefined,
          (error: unknown) => {
            failed = error;
          },
        );
        while (signals.length === sent) await new Promise(setImmediate);
        clock.advance(limitMs - 1);
        await new Promise(setImmediate);
        expect(failed).toBeNull();
        clock.advance(1);
        await done;
        expect(failed).toMatchObject({ code: "view_unavailable" });
        // The roster, which came along, may take as long as a write.
        clock.advance(2_000);
        expect(signals.at(-1)!.aborted).toBe(true);
        late.at(-1)!();
        await new Promise(setImmediate);
        expect(clock.pending).toBe(0);
      }
    });

    it("gives up a door that never answers, by its own timers, and ends the connection", async () => {
      const clock = new ManualClock();
      let gone = 0;
      let asked = 0;
      const silent = await listening((request) => {
        asked += 1;
        request.socket.once("close", () => {
          gone += 1;
        });
      });
      const store = redisStore({ clock, deadlineMs: 50, send: undefined, url: silent.url, token: "t" });
      const reading = store.read(MODEL, NO_KEYS).catch((error: unknown) => error);
      while (asked === 0) await new Promise(setImmediate);
      clock.advance(50);
      expect(await reading).toMatchObject({ code: "view_unavailable" });
      clock.advance(2_000);
      while (gone === 0) await new Promise(setImmediate);
      silent.server.close();
    });

    it("aborts a reading whose time is over", async () => {
      const clock = new ManualClock();
      const direct = directPipeline(redis);
      let isHeld = false;
      const signals: AbortSignal[] = [];
      const store = open({
        clock,
        deadlineMs: 50,
        send: (commands, signal) => {
          signals.push(signal);
          return isHeld ? new Promise(() => undefined) : direct(commands, signal);
        },
      });
      await begin(store, 1);
      await store.read(MODEL, NO_KEYS);
      isHeld = true;
      const sent = signals.length;
      const reading = store.read(MODEL, NO_KEYS).catch((error: unknown) => error);
      while (signals.length === sent) await new Promise(setImmediate);
      clock.advance(50);
      expect(await reading).toMatchObject({ code: "view_unavailable" });
      expect(signals.at(-1)!.aborted).toBe(true);
    });

    it("learns a fleet that takes longer to read than any reading may", async () => {
      const clock = new ManualClock();
      const direct = directPipeline(redis);
      const writer = open({ view: "slow" });
      await begin(writer, 2);
      const gate = Promise.withResolvers<void>();
      let sent = 0;
      const store = open({
        view: "slow",
        clock,
        deadlineMs: 50,
        send: async (commands, signal) => {
          sent += 1;
          const outcomes = await direct(commands, signal);
          if (commands.length === 2) await gate.promise;
          return outcomes;
        },
      });
      const first = store.read(MODEL, NO_KEYS).catch((error: unknown) => error);
      while (sent === 0) await new Promise(setImmediate);
      clock.advance(50);
      expect(await first).toMatchObject({ code: "view_unavailable" });
      gate.resolve();
      expect((await store.read(MODEL, NO_KEYS)).fleet).toHaveLength(2);
    });

    it("never tells what it sent: neither the client's words nor Redis' reach the error", async () => {
      const rest = await startRedisRest({
        redis: { host: "127.0.0.1", port: server.port },
        token: "right",
        port: 0,
      });
      const stores = [
        redisStore({ url: rest.url, token: "wrong" }),
        redisStore({ url: "http://127.0.0.1:9", token: "t" }),
        redisStore({ send: () => Promise.reject(new Error("command was: secret")) }),
        redisStore({ send: async (commands) => commands.map(() => ({ error: "OOM near 'secret'" })) }),
      ];
      for (const store of stores) {
        const error = await store
          .reserve({
            ...rank(0),
            requestId: "secret",
            blocks: 1,
            prefillTokens: 1,
            reservationTtlMs: 1_000,
            prediction: null,
          })
          .catch((thrown: unknown) => thrown);
        expect(error).toMatchObject({ code: "view_unavailable" });
        const { message, cause } = error as Error;
        expect(`${message} ${String(cause)}`).not.toMatch(/secret|EVALSHA/);
      }
      await rest.close();
    });

    it("finds an emptied view empty, refuses writes as unknown, and fills it again under another epoch", async () => {
      const own = await startRedis();
      const client = connect(own.port);
      const chain = chainOf(30, 5);
      for (const shards of [1, 3]) {
        const store = open({ send: directPipeline(client), shards });
        const other = open({ send: directPipeline(client), shards, view: viewOf(store) });
        const [key] = await begin(store, 1);
        await write(store, key, 1, storeKeys(chain));
        expect((await other.read(MODEL, chain)).lookup.count).toBe(1);
        const { epoch } = other;
        await client.flushall();
        expect(await other.read(MODEL, chain)).toMatchObject({ epoch: "", fleet: [], lookup: { count: 0 } });
        expect(await store.apply([batch(key, 2, storeKeys(chain))])).toEqual(["unknown"]);
        expect(await store.report([reportOf(key)])).toEqual(["unknown"]);
        await store.register(registrationOf(key));
        expect(await store.apply([batch(key, 2, storeKeys(chain))])).toEqual(["gap"]);
        const snapshot = { ...key, model: MODEL, sequence: 2, ops: [storeKeys(chain, 0, 12)] };
        expect(await store.applySnapshot(snapshot)).toBe("applied");
        const after = await other.read(MODEL, chain);
        expect([...after.lookup.confirmedDepth]).toEqual([12]);
        expect(after.fleet).toHaveLength(1);
        expect(after.epoch).not.toBe(epoch);
        expect(other.epoch).toBe(after.epoch);
      }
      client.disconnect();
      await own.stop();
    });

    it("asks for a snapshot when one of several shards has lost its data", async () => {
      const store = open({ view: "lost", shards: 3 });
      const [key] = await begin(store, 1);
      const chains = Array.from({ length: 9 }, (_, i) => chainOf(10, 50 + i));
      await write(store, key, 1, ...chains.map((chain) => storeKeys(chain)));
      const depths = async () => {
        const found = await Promise.all(chains.map((chain) => store.read(MODEL, chain)));
        return found.map(({ lookup }) => (lookup.count === 0 ? 0 : lookup.confirmedDepth[0]));
      };
      expect(await depths()).toEqual(chains.map(() => 10));
      const gone = await redis.keys("{lost.1.1}*");
      expect(gone.length).toBeGreaterThan(1);
      await redis.del(...gone);
      expect(await store.apply([batch(key, 2, storeKeys(chains[0]))])).toEqual(["gap"]);
      const ops = chains.map((chain) => storeKeys(chain));
      expect(await store.applySnapshot({ ...key, model: MODEL, sequence: 2, ops })).toBe("applied");
      expect(await depths()).toEqual(chains.map(() => 10));
      expect(await store.apply([batch(key, 3, removeKeys(chains[0], 4))])).toEqual(["applied"]);
    });
  });

  describe("copies", () => {
    it("shows a restart at once to those who had read the fleet before", async () => {
      const store = open({ view: "restart" });
      const other = open({ view: "restart" });
      const [key] = await begin(store, 1);
      const chain = chainOf(10, 6);
      await write(store, key, 1, storeKeys(chain));
      expect((await other.read(MODEL, chain)).lookup.count).toBe(1);
      await store.register(registrationOf({ ...key, incarnation: "two" }));
      const { lookup, fleet } = await other.read(MODEL, chain);
      expect(lookup.count).toBe(0);
      expect(fleet.map((row) => row.incarnation)).toEqual(["two"]);
      await store.retire({ ...key, incarnation: "two" });
      expect((await other.read(MODEL, chain)).fleet).toEqual([]);
    });

    it("finds live holders exactly, however many snapshots and lives have ended in the same chain", async () => {
      const chain = chainOf(2_000, 9);
      for (const shards of [1, 3]) {
        const store = open({ shards });
        const [deep, shallow, busy] = await begin(store, 3);
        await write(store, deep, 1, storeKeys(chain, 0, 500));
        await write(store, shallow, 1, storeKeys(chain, 0, 123));
        for (let sequence = 1; sequence <= 60; sequence++) {
          const ops = [storeKeys(chain, 0, 100 + ((sequence * 389) % 1_800))];
          expect(await store.applySnapshot({ ...busy, model: MODEL, sequence, ops })).toBe("applied");
        }
        const { lookup } = await store.read(MODEL, chain);
        expect([...lookup.confirmedDepth].sort((a, b) => b - a)).toEqual([
          100 + ((60 * 389) % 1_800),
          500,
          123,
        ]);
        expect(lookup.truncated).toBe(false);
        expect(lookup.probes).toBeLessThan(60);
      }
    });

    it("never shows half of a snapshot", async () => {
      const store = open();
      const [key] = await begin(store, 1);
      const [old, fresh] = [chainOf(40, 7), chainOf(2_000, 8)];
      await write(store, key, 1, storeKeys(old));
      const snapshot = { ...key, model: MODEL, sequence: 1, ops: [storeKeys(fresh)] };
      const done = store.applySnapshot(snapshot);
      let readings = 0;
      for (let applied = false; !applied; readings++) {
        const depth = async (keys: BigUint64Array) => {
          const { lookup } = await store.read(MODEL, keys);
          return lookup.count === 0 ? 0 : lookup.confirmedDepth[0];
        };
        const after = await depth(fresh);
        applied = after > 0;
        if (applied) expect([after, await depth(old)]).toEqual([2_000, 0]);
      }
      expect(readings).toBeGreaterThan(1);
      expect(await done).toBe("applied");
    });

    it("gives each reading its own result", async () => {
      const store = open();
      const [key] = await begin(store, 1);
      const chains = Array.from({ length: 8 }, (_, i) => chainOf(10 + i, 60 + i));
      await write(store, key, 1, ...chains.map((chain) => storeKeys(chain)));
      const reads = await Promise.all(chains.map((chain) => store.read(MODEL, chain)));
      expect(reads.map(({ lookup }) => lookup.confirmedDepth[0])).toEqual(
        chains.map((chain) => chain.length),
      );
    });

    it("takes rows of a large fleet from a copy, in which only others' reservations are missing", async () => {
      const clock = new ManualClock();
      const store = open({ view: "large", clock, fleetMaxAgeMs: 250 });
      const other = open({ view: "large" });
      const workers = await begin(store, 70);
      const chain = chainOf(10, 9);
      await write(store, workers[69], 1, storeKeys(chain));
      const first = await store.read(MODEL, chain);
      expect([first.fleet.length, first.lookup.count]).toEqual([70, 1]);
      await predict(store, workers[3], NO_KEYS, 0);
      await predict(other, workers[4], NO_KEYS, 0);
      const commands = async () => {
        const before = store.figures;
        const { fleet } = await store.read(MODEL, chain);
        const reserved = [3, 4].map((i) => fleet.find(({ worker }) => worker === name(i))!.reserved.requests);
        const { requests, commands: all } = store.figures;
        return [requests - before.requests, all - before.commands, ...reserved];
      };
      expect(await commands()).toEqual([1, 1, 1, 0]);
      clock.advance(251);
      expect(await commands()).toEqual([1, 2, 1, 1]);
      expect(await commands()).toEqual([1, 1, 1, 1]);
      // A restart is not for the copy to hide.
      await other.register(registrationOf({ ...workers[69], incarnation: "two" }));
      const { fleet, lookup } = await store.read(MODEL, chain);
      expect(lookup.count).toBe(0);
      expect(fleet.filter(({ incarnation }) => incarnation === "two")).toHaveLength(1);
    });

    it("answers for the fleet from a copy no older than asked for", async () => {
      const clock = new ManualClock();
      const store = open({ view: "aged", clock });
      const other = open({ view: "aged" });
      await begin(other, 2);
      expect(await store.fleet(1_000)).toHaveLength(2);
      await other.retire(rank(0));
      clock.advance(1_000);
      expect(await store.fleet(1_000)).toHaveLength(2);
      clock.advance(1);
      expect(await store.fleet(1_000)).toHaveLength(1);
    });

    it("counts only its own reservations, for a second, without replica sync", async () => {
      const clock = new ManualClock();
      const store = open({ view: "alone", clock, replicaSync: false });
      const other = open({ view: "alone" });
      const [key] = await begin(store, 1);
      const chain = chainOf(5, 10);
      await predict(store, key, chain, 60_000);
      const seen = async (by: RedisStore) => {
        const { fleet, lookup } = await by.read(MODEL, chain);
        return [fleet[0].reserved.requests, lookup.predictedDepth[0]];
      };
      expect(await seen(store)).toEqual([1, 5]);
      expect(await seen(other)).toEqual([0, 5]);
      clock.advance(1_000);
      expect(await seen(store)).toEqual([0, 5]);
    });
  });

  describe("fleet", () => {
    it("forgets a rank that was silent past the horizon, and takes it back under new slots", async () => {
      for (const shards of [1, 3]) {
        const store = open({ shards });
        const [key] = await begin(store, 1);
        const chain = chainOf(5, 11);
        await write(store, key, 1, storeKeys(chain));
        viewMs += 60_001;
        expect(await store.report([], true)).toEqual([]);
        expect(await store.fleet()).toEqual([]);
        expect(await store.apply([batch(key, 2)])).toEqual(["unknown"]);
        await store.register(registrationOf(key));
        expect((await store.read(MODEL, chain)).lookup.count).toBe(0);
      }
    });

    it("begins a new epoch empty, with old entries inert and thresholds kept", async () => {
      for (const shards of [1, 3]) {
        const store = open({ shards });
        const [key] = await begin(store, 1);
        const chain = chainOf(5, 12);
        await write(store, key, 1, storeKeys(chain));
        await predict(store, key, chain, 30_000);
        await store.setThresholds(MODEL, {
          activeDecodeBlocksThreshold: 0.5,
          activePrefillTokensThreshold: null,
          activePrefillTokensThresholdFrac: null,
        });
        const { epoch } = await store.read(MODEL, chain);
        await store.reset();
        const after = await store.read(MODEL, chain);
        expect(after).toMatchObject({ fleet: [], lookup: { count: 0 } });
        expect(after.thresholds.activeDecodeBlocksThreshold).toBe(0.5);
        expect([after.epoch === epoch, after.epoch === store.epoch]).toEqual([false, true]);
        await store.register(registrationOf(key));
        expect((await store.read(MODEL, chain)).lookup.count).toBe(0);
      }
    });

    it("carries any names and cards over REST", async () => {
      const rest = await startRedisRest({
        redis: { host: "127.0.0.1", port: server.port },
        token: "t",
        port: 0,
      });
      const store = redisStore({ url: rest.url, token: "t", viewNowMs: () => viewMs });
      const base = registrationOf({ worker: 'wörker "1"\\', rank: 3, incarnation: "née\n2 \u{1f600}" });
      const model = "模型/ü|,;:";
      const registration = { ...base, model, card: { ...base.card, model, chatTemplate: "{{ 'é\u2028' }}" } };
      await store.register(registration);
      const { fleet } = await store.read(model, NO_KEYS);
      expect(fleet).toHaveLength(1);
      expect(fleet[0]).toMatchObject(registration);
      expect(await store.register(registration)).toEqual(fleet[0].slots);
      await rest.close();
    });

    it("lets one process lead until it gives up or its lease ends", async () => {
      const store = open({ viewNowMs: undefined });
      const [one, two] = ["one", "two"].map((holder) => store.lease("indexer", holder, 60_000));
      expect([await one.renew(), await two.renew(), await one.renew()]).toEqual([true, false, true]);
      await two.release();
      expect(await two.renew()).toBe(false);
      await one.release();
      expect(await two.renew()).toBe(true);
      const ttlMs = await redis.pttl(`{${viewOf(store)}.1}lindexer`);
      expect(ttlMs).toBeGreaterThan(0);
      expect(ttlMs).toBeLessThanOrEqual(60_000);
    });
  });
});

describe("settings", () => {
  it("choose the backend by the host and name what is missing", () => {
    const config = (store: object) => defineConfig({ store });
    const upstash = { url: "https://eu1-x.upstash.io", token: "t" };
    expect(redisStoreOptions(config(upstash)).backend).toBe("upstash");
    expect(redisStoreOptions(config({ ...upstash, url: "https://redis.example" })).backend).toBe("redis");
    expect(redisStoreOptions(config({ ...upstash, backend: "redis" })).backend).toBe("redis");
    expect(() => redisStoreOptions(config({ url: upstash.url }))).toThrow(/KEDGE_REDIS_TOKEN/);
  });

  it("promise declared keys only to Upstash, and only for scripts that keep the promise", async () => {
    const sent: (readonly string[])[] = [];
    const send = async (commands: readonly (readonly string[])[]) => {
      sent.push(...commands);
      return commands.map(([name]) => (name === "EVALSHA" ? { error: "NOSCRIPT" } : { result: 1 }));
    };
    const store = redisStore({ backend: "upstash", send });
    await store.lease("l", "h", 1_000).renew();
    await store.release(rank(0), "r");
    const [lease, release] = sent.filter(([name]) => name === "EVAL").map(([, text]) => text);
    expect(lease).toMatch(/^#!lua flags=allow-key-locking\n/);
    expect(release).not.toMatch(/^#!/);
  });
});

function chainOf(length: number, seed: number): BigUint64Array {
  const random = seeded(seed);
  return BigUint64Array.from({ length }, () => randomKey(random));
}

const name = (index: number) => `w${String(index).padStart(2, "0")}`;

function rank(index: number): IncarnationKey {
  return { worker: name(index), rank: 0, incarnation: "one" };
}

async function begin(store: RedisStore, count: number): Promise<IncarnationKey[]> {
  const keys = Array.from({ length: count }, (_, index) => rank(index));
  for (const key of keys) expect(await store.register(registrationOf(key))).not.toBeNull();
  return keys;
}

function batch(key: IncarnationKey, sequence: number, ...ops: KvOp[]) {
  return { ...key, model: MODEL, sequence, ops };
}

async function write(
  store: RedisStore,
  key: IncarnationKey,
  sequence: number,
  ...ops: KvOp[]
): Promise<void> {
  expect(await store.apply([batch(key, sequence, ...ops)])).toEqual(["applied"]);
}

let requests = 0;

function predict(
  store: RedisStore,
  key: IncarnationKey,
  keys: BigUint64Array,
  ttlMs: number,
  reservationTtlMs = 30_000,
): Promise<void> {
  const prediction = keys.length === 0 ? null : { keys, tokensPerKey: 15.7, ttlMs };
  const load = { blocks: 40, prefillTokens: 640, reservationTtlMs };
  return store.reserve({ ...key, requestId: `request-${++requests}`, ...load, prediction });
}

/** The name of a store's view. */
function viewOf(store: RedisStore): string {
  return (store as unknown as { options: RedisStoreOptions }).options.view;
}

async function listening(
  handle: Parameters<typeof createServer>[1],
): Promise<{ server: Server; url: string }> {
  const server = createServer(handle as never);
  await new Promise<void>((resolve) => {
    server.listen(0, "127.0.0.1", resolve);
  });
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}
