/** The view in Redis as this process's hosts and tools open it. */

import type { KedgeConfig } from "../config/index.ts";
import { RedisStore, redisStoreOptions } from "../store/redis/index.ts";
import { monotonicClock } from "./clock.ts";

/** For tools and hosts whose reads no request waits for. */
const DEADLINE_MS = 2_000;

/** `deadlineMs`: the least time that a read gets. Errors: `config_invalid` without address or token. */
export function openStore(config: KedgeConfig, deadlineMs = DEADLINE_MS): RedisStore {
  const options = redisStoreOptions(config);
  return new RedisStore({
    ...options,
    deadlineMs: Math.max(options.deadlineMs, deadlineMs),
    clock: monotonicClock,
    random: Math.random,
  });
}
