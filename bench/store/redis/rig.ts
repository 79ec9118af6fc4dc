/** A real redis-server with the REST proxy in front of it, and what both count: the ground of all measurements here. */

import { Redis } from "ioredis";
import { startRedisRest } from "../../../src/node/redis-rest/index.ts";
import { RedisStore } from "../../../src/store/redis/index.ts";
import { startRedis } from "../../../test/support/server-processes.ts";
import { registration, workerName } from "../population.ts";

type RedisRest = Awaited<ReturnType<typeof startRedisRest>>;

const TOKEN = "bench";

/** Longer than any hiccup of the machine: what is measured here is work, not deadlines. */
const DEADLINE_MS = 10_000;

/** What was spent between two moments; divide by the calls made. */
export interface Spent {
  /** Billed: top-level commands that came to the proxy. */
  readonly commands: number;
  /** Bodies of requests to the proxy and of its answers; headers are not counted. */
  readonly bytesUp: number;
  readonly bytesDown: number;
  /** Commands that scripts ran. */
  readonly inner: number;
  /** Time that the top-level commands held Redis, as it counts it. */
  readonly heldUs: number;
  /** Processor time of Redis's main thread, with reading, parsing and answering. */
  readonly cpuUs: number;
}

export interface Rig {
  readonly redis: Redis;
  readonly url: string;
  readonly token: string;
  readonly rest: RedisRest;
  /** A store with a clock that stands still until it is moved, so that what is fresh stays fresh. */
  openStore(view: string): { store: RedisStore; advance(ms: number): void };
  /** What `act` costs Redis and the proxy. */
  spend(act: () => Promise<void>): Promise<Spent>;
  /** `used_memory` of the server. */
  usedBytes(): Promise<number>;
  close(): Promise<void>;
}

export async function startRig(): Promise<Rig> {
  const server = await startRedis();
  const address = { host: "127.0.0.1", port: server.port };
  const redis = new Redis({ ...address, lazyConnect: false });
  const rest = await startRedisRest({ redis: address, token: TOKEN, port: 0 });
  return {
    redis,
    rest,
    url: rest.url,
    token: TOKEN,
    openStore: (view) => openStore(rest.url, view),
    spend: (act) => spend(redis, rest, act),
    usedBytes: async () => numberIn(await redis.info("memory"), "used_memory"),
    close: async () => {
      await rest.close();
      redis.disconnect();
      await server.stop();
    },
  };
}

function openStore(url: string, view: string): ReturnType<Rig["openStore"]> {
  let nowMs = 1_000_000;
  const store = new RedisStore({
    url,
    token: TOKEN,
    view,
    shards: 1,
    backend: "redis",
    deadlineMs: DEADLINE_MS,
    fleetMaxAgeMs: 250,
    horizonMs: 3_600_000,
    clock: {
      now: () => nowMs,
      setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
      clearTimeout: (timer) => clearTimeout(timer as NodeJS.Timeout),
    },
    random: Math.random,
  });
  return {
    store,
    advance: (ms) => {
      nowMs += ms;
    },
  };
}

export async function registerWorkers(store: RedisStore, workers: number): Promise<void> {
  for (let i = 0; i < workers; i++) await store.register(registration(workerName(i)));
}

/** Commands that are called from outside; every other one in the statistics was called by a script. */
const TOP_LEVEL =
  /^(eval|evalsha|eval_ro|evalsha_ro|smembers|sadd|ping|info|hello|client|config|command|script)(\||$)/;
/** Those of them that are the measured work. */
const MEASURED = /^(eval|evalsha|eval_ro|evalsha_ro|smembers|sadd)$/;

async function spend(redis: Redis, rest: RedisRest, act: () => Promise<void>): Promise<Spent> {
  const before = rest.stats();
  await redis.config("RESETSTAT");
  const cpuBefore = await mainThreadUs(redis);
  await act();
  const cpuUs = (await mainThreadUs(redis)) - cpuBefore;
  const after = rest.stats();
  const statistics = commandStatistics(await redis.info("commandstats"));
  const sum = (names: RegExp, wanted: boolean, of: "calls" | "usec") =>
    statistics.filter(({ name }) => names.test(name) === wanted).reduce((total, each) => total + each[of], 0);
  return {
    commands: after.commands - before.commands,
    bytesUp: after.bytesIn - before.bytesIn,
    bytesDown: after.bytesOut - before.bytesOut,
    inner: sum(TOP_LEVEL, false, "calls"),
    heldUs: sum(MEASURED, true, "usec"),
    cpuUs,
  };
}

interface CommandStatistics {
  readonly name: string;
  readonly calls: number;
  readonly usec: number;
}

function commandStatistics(info: string): CommandStatistics[] {
  return [...info.matchAll(/^cmdstat_([^:]+):calls=(\d+),usec=(\d+)/gm)].map(
    ([, name = "", calls, usec]) => ({
      name,
      calls: Number(calls),
      usec: Number(usec),
    }),
  );
}

async function mainThreadUs(redis: Redis): Promise<number> {
  const info = await redis.info("cpu");
  const seconds = numberIn(info, "used_cpu_user_main_thread") + numberIn(info, "used_cpu_sys_main_thread");
  return seconds * 1e6;
}

function numberIn(info: string, name: string): number {
  const found = new RegExp(`^${name}:([\\d.]+)`, "m").exec(info);
  if (found === null) throw new Error(`redis-server says no ${name}: version 6.2 or newer is needed`);
  return Number(found[1]);
}
