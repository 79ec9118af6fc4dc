/** The view in Redis as tools and hosts that are on nobody's request path open it. */

import type { KedgeConfig } from "../config/index.ts";
import { RedisStore, redisStoreOptions } from "../store/redis/index.ts";
import { monotonicClock } from "./clock.ts";

/** Nobody waits for these reads as a request does. */
const DEADLINE_MS = 2_000;

/** Errors: `config_invalid` without address or token. */
export function openStore(config: KedgeConfig): RedisStore {
  const options = redisStoreOptions(config);
  return new RedisStore({
    ...options,
    deadlineMs: Math.max(options.deadlineMs, DEADLINE_MS),
    clock: monotonicClock,
    random: Math.random,
  });
}
