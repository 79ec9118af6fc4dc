/** Redis stores for tests: over the real REST door or, where a test makes very many calls, by a pipeline of its own. */

import { Redis } from "ioredis";
import { RedisStore, type RedisStoreOptions, type SendPipeline } from "../../src/store/redis/index.ts";
import { seeded } from "../contract/store-histories.ts";

/** Sends pipelines to Redis itself, without the REST door. */
export function directPipeline(redis: Redis): SendPipeline {
  return (commands) =>
    Promise.all(
      commands.map(([name, ...args]) =>
        redis.call(name, ...args).then(
          (result) => ({ result }),
          (error: Error) => ({ error: error.message }),
        ),
      ),
    );
}

export const realClock = {
  now: () => performance.now(),
  setTimeout: (callback: () => void, delayMs: number) => setTimeout(callback, delayMs),
  clearTimeout: (handle: unknown) => clearTimeout(handle as NodeJS.Timeout),
};

export function connect(port: number): Redis {
  return new Redis({ host: "127.0.0.1", port, maxRetriesPerRequest: 0, disableClientInfo: true });
}

let views = 0;

/** A store with a view of its own. The time limit is generous: these tests are about answers. */
export function redisStore(options: Partial<RedisStoreOptions> = {}): RedisStore {
  return new RedisStore({
    url: "http://127.0.0.1:1",
    token: "none",
    view: `v${++views}`,
    shards: 1,
    backend: "redis",
    deadlineMs: 10_000,
    fleetMaxAgeMs: 250,
    horizonMs: 60_000,
    clock: realClock,
    random: seeded(views),
    ...options,
  });
}
