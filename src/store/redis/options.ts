/** What the Redis store is told by its host. */

import type { KedgeConfig } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import type { LivenessSettings } from "../../fleet/rules.ts";
import type { StoreClock } from "./deadline.ts";
import type { SendPipeline } from "./scripts.ts";

export interface RedisStoreOptions {
  /** Upstash REST endpoint, or that of `kedge redis-rest`. */
  readonly url: string;
  readonly token: string;
  /** Names the view within the database. */
  readonly view: string;
  /** Parts of the index; the same for all processes of a view. */
  readonly shards: number;
  /** Upstash lets scripts that touch declared keys only run side by side; Redis and Valkey do not know the flag. */
  readonly backend: "redis" | "upstash";
  /** A read that takes longer fails, all round trips included. */
  readonly deadlineMs: number;
  /** How old the copy of a fleet with more than 64 ranks of a model may be. */
  readonly fleetMaxAgeMs: number;
  /** Life of a confirmed holder. */
  readonly horizonMs: number;
  readonly clock: StoreClock;
  /** Uniform in [0, 1): names epochs. */
  readonly random: () => number;
  /** False: reservations are not written to the view; each process counts its own for a second. */
  readonly replicaSync?: boolean;
  readonly liveness?: LivenessSettings;
  /** Takes the place of Redis' clock, for tests: milliseconds since the Unix epoch. */
  readonly viewNowMs?: () => number;
  /** Takes the place of the REST client, for tests. */
  readonly send?: SendPipeline;
}

/** The part of the options that the configuration holds. Errors: `config_invalid` without URL or token. */
export function redisStoreOptions(
  config: KedgeConfig,
): Omit<RedisStoreOptions, "clock" | "random" | "viewNowMs" | "send" | "liveness"> {
  const { url, token, view, shards, backend, deadlineMs, fleetMaxAgeMs } = config.store;
  if (url === null || token === null) {
    throw new KedgeError(
      "config_invalid",
      "The view in Redis needs an address and a token: set KEDGE_REDIS_URL and KEDGE_REDIS_TOKEN.",
      { param: url === null ? "store.url" : "store.token" },
    );
  }
  return {
    url,
    token,
    view,
    shards,
    backend: backend === "auto" ? backendOf(url) : backend,
    deadlineMs,
    fleetMaxAgeMs,
    horizonMs: config.feed.horizonMs,
    replicaSync: config.router.replicaSync,
  };
}

function backendOf(url: string): "redis" | "upstash" {
  return /(^|\.)upstash\.io$/.test(new URL(url).hostname) ? "upstash" : "redis";
}
