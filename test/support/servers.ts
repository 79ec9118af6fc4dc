/** Real redis-server and nats-server for suites, which are skipped aloud where the servers are missing, and fail there in CI. */

import { describe } from "vitest";
import { NATS_SERVERS, REDIS_SERVER } from "./server-processes.ts";

export * from "./server-processes.ts";

/** A suite that needs redis-server: without it, it fails in CI and is skipped with a word elsewhere. */
export const describeWithRedis = needing("redis-server", REDIS_SERVER !== null);
/** The same for nats-server. */
export const describeWithNats = needing("nats-server", NATS_SERVERS.length > 0);
/** The same for both. */
export const describeWithServers = needing(
  "redis-server and nats-server",
  REDIS_SERVER !== null && NATS_SERVERS.length > 0,
);

function needing(what: string, isHere: boolean): typeof describe | typeof describe.skip {
  if (isHere) return describe;
  const told = `${what} is not installed (Debian: apt-get install redis-server nats-server)`;
  if (process.env.CI) throw new Error(`${told}; in CI these suites must run.`);
  console.warn(`SKIPPED: ${told}.`);
  return describe.skip;
}
