/** Upstash's REST protocol in front of one's own Redis or Valkey, single or Cluster, for @upstash/redis and plain HTTP. */

import { createServer, type Server } from "node:http";
import { isLoopback } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import { listenAt } from "../listen.ts";
import { Tokens } from "./auth.ts";
import {
  type Backend,
  DEFAULT_REDIS_TIMEOUT_MS,
  type Log,
  type RedisTarget,
  ServerBackend,
} from "./backend.ts";
import { ClusterBackend } from "./cluster.ts";
import { Front, type RedisRestLimits } from "./front.ts";
import type { RestStats } from "./metrics.ts";

export type { RedisTarget } from "./backend.ts";
export type { RedisRestLimits } from "./front.ts";
export type { RestStats } from "./metrics.ts";

const DEFAULT_LIMITS: RedisRestLimits = {
  maxBodyBytes: 10 * 1024 * 1024,
  maxPipelineLength: 1_000,
  maxBodyBytesInFlight: 256 * 1024 * 1024,
  maxRequestsInFlight: 4_096,
  maxSubscribers: 1_000,
  redisTimeoutMs: DEFAULT_REDIS_TIMEOUT_MS,
};

export interface RedisRestOptions {
  /** `redis://…` or `rediss://…`, host and port, or nodes of a cluster as URLs. */
  readonly redis: RedisTarget;
  /** Bearer token for all commands; null only on loopback: then programs of this machine need none. */
  readonly token: string | null;
  /** Bearer token for commands that Redis calls read-only. */
  readonly readOnlyToken?: string;
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** 0: any free one. */
  readonly port: number;
  readonly limits?: Partial<RedisRestLimits>;
  /** Hears why Redis is away, and that it is back; default: nobody. */
  readonly log?: Log;
}

export interface RestServer {
  readonly url: string;
  /** Whether Redis is connected now. */
  readonly ready: boolean;
  stats(): RestStats;
  /** Accepts no more, lets requests under way finish, then leaves Redis. Safe to call twice. */
  close(): Promise<void>;
}

/** Above the usual idle time of load balancers, so that they close first. */
const KEEP_ALIVE_MS = 75_000;
const MAX_HEADER_BYTES = 64 * 1024;
const REQUEST_TIMEOUT_MS = 60_000;
/** Whoever neither sends nor reads for so long is gone. Streams have their heartbeat. */
const SILENCE_MS = 120_000;
const DRAIN_MS = 5_000;
const POLL_MS = 10;

/**
 * Starts listening; Redis may come later, until then commands are answered with 503. Waits for Redis up to its timeout, so
 * that a Redis that is there is usable at once. Errors: `config_invalid`, and what listening gives, e.g. EADDRINUSE.
 */
export async function startRedisRest(options: RedisRestOptions): Promise<RestServer> {
  const { token, readOnlyToken, host = "127.0.0.1", port } = options;
  checkTokens(token, readOnlyToken, host);
  const limits = { ...DEFAULT_LIMITS, ...options.limits };
  const backend = connect(
    withSchemes(options.redis),
    limits.redisTimeoutMs,
    options.log ?? (() => undefined),
  );
  const front = new Front(backend, new Tokens(token, readOnlyToken ?? null), limits);
  const server = createServer(
    {
      noDelay: true,
      keepAlive: true,
      keepAliveTimeout: KEEP_ALIVE_MS,
      maxHeaderSize: MAX_HEADER_BYTES,
      requestTimeout: REQUEST_TIMEOUT_MS,
    },
    (request, response) => void front.handle(request, response),
  );
  server.setTimeout(SILENCE_MS);
  const url = await listenAt(server, host, port).catch((error) => {
    backend.close();
    throw error;
  });
  await until(() => backend.ready, limits.redisTimeoutMs);
  let closing: Promise<void> | null = null;
  return {
    url,
    get ready() {
      return backend.ready;
    },
    stats: () => front.metrics.stats(),
    close: () => {
      closing ??= closeAll(server, front, backend);
      return closing;
    },
  };
}

function checkTokens(token: string | null, readOnlyToken: string | undefined, host: string): void {
  const invalid = (message: string): KedgeError => new KedgeError("config_invalid", message);
  if (token === null && !isLoopback(host))
    throw invalid(`Listening on ${host} needs a token: set --token or KEDGE_REST_TOKEN.`);
  for (const given of [token, readOnlyToken]) {
    if (typeof given === "string" && !/^\S+$/.test(given))
      throw invalid("A token may neither be empty nor hold spaces.");
  }
  if (token !== null && token === readOnlyToken)
    throw invalid("Token and read-only token must differ: the same one cannot be both.");
}

/** Addresses as URLs; `host:port` is short for `redis://host:port`. Errors: `config_invalid`. */
function withSchemes(target: RedisTarget): RedisTarget {
  if (typeof target === "string") return withScheme(target);
  if (!("cluster" in target)) return target;
  if (target.cluster.length === 0)
    throw new KedgeError("config_invalid", "A cluster needs at least one node's address.");
  return { cluster: target.cluster.map(withScheme) };
}

function withScheme(address: string): string {
  const url = address.includes("://") ? address : `redis://${address}`;
  const isRedis =
    URL.canParse(url) && /^rediss?:$/.test(new URL(url).protocol) && new URL(url).hostname !== "";
  // Addresses hold passwords: the message shows none.
  if (!isRedis)
    throw new KedgeError(
      "config_invalid",
      "The Redis address must look like redis://host:6379 or rediss://user:password@host:6379/0.",
    );
  return url;
}

function connect(target: RedisTarget, timeoutMs: number, log: Log): Backend {
  return typeof target === "object" && "cluster" in target
    ? new ClusterBackend(target.cluster, timeoutMs, log)
    : new ServerBackend(target, timeoutMs, log);
}

async function until(isTrue: () => boolean, timeoutMs: number): Promise<void> {
  const endMs = performance.now() + timeoutMs;
  while (!isTrue() && performance.now() < endMs) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
}

/** Connections end once no answer is under way. Not by `closeIdleConnections`: it spares those that never had a request. */
async function closeAll(server: Server, front: Front, backend: Backend): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  front.subscriptions.close();
  await until(() => front.idle, DRAIN_MS);
  server.closeAllConnections();
  await closed;
  backend.close();
}
