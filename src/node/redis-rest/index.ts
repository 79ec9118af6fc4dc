/** Upstash's REST protocol in front of one's own Redis or Valkey, single or Cluster, for @upstash/redis and plain HTTP. */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { isLoopback } from "../../config/index.ts";
import { KedgeError, toKedgeError } from "../../errors/index.ts";
import { PROMETHEUS_CONTENT_TYPE } from "../../telemetry/registry.ts";
import { type Access, Tokens } from "./auth.ts";
import { type Backend, DEFAULT_REDIS_TIMEOUT_MS, type RedisTarget, ServerBackend } from "./backend.ts";
import { BodyBudget, readBody } from "./body.ts";
import { ClusterBackend } from "./cluster.ts";
import { RestMetrics, type RestStats, type Route } from "./metrics.ts";
import {
  decodeSegment,
  jsonError,
  jsonOutcome,
  type Outcome,
  parseCommand,
  parsePath,
  parsePipeline,
  type RestCommand,
  respOutcome,
} from "./protocol.ts";
import { Subscriptions } from "./subscribe.ts";

export type { RedisTarget } from "./backend.ts";
export type { RestStats } from "./metrics.ts";

export interface RedisRestLimits {
  /** Largest request body; default 10 MiB, as Upstash. */
  readonly maxBodyBytes: number;
  /** Most commands of one pipeline or transaction; default 1,000, which is what @upstash/redis sends at most. */
  readonly maxPipelineLength: number;
  /** Request bodies held in memory at once; default 256 MiB. */
  readonly maxBodyBytesInFlight: number;
  /** Command requests under way at once; default 4,096. */
  readonly maxRequestsInFlight: number;
  /** Open subscriptions, each a connection to Redis; default 1,000. */
  readonly maxSubscribers: number;
  /** Longest silence of Redis, with answers outstanding, before they fail; default 5,000. */
  readonly redisTimeoutMs: number;
}

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
const DRAIN_MS = 5_000;
const POLL_MS = 10;
const HEALTH_TIMEOUT_MS = 1_000;
const RETRY_AFTER_SECONDS = "1";
/** Read-your-writes holds with one primary; the header is there for clients that hand it on. */
const SYNC_TOKEN = "kedge";

/**
 * Starts listening; Redis may come later, until then commands are answered with 503. Waits for Redis up to its timeout, so
 * that a Redis that is there is usable at once. Errors: `config_invalid`, and what listening gives, e.g. EADDRINUSE.
 */
export async function startRedisRest(options: RedisRestOptions): Promise<RestServer> {
  const { token, readOnlyToken, host = "127.0.0.1", port } = options;
  checkTokens(token, readOnlyToken, host);
  const limits = { ...DEFAULT_LIMITS, ...options.limits };
  const backend = connect(withSchemes(options.redis), limits.redisTimeoutMs);
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
  try {
    await listen(server, host, port);
  } catch (error) {
    backend.close();
    throw error;
  }
  const address = server.address() as AddressInfo;
  const name = address.family === "IPv6" ? `[${address.address}]` : address.address;
  await until(() => backend.ready, limits.redisTimeoutMs);
  let closing: Promise<void> | null = null;
  return {
    url: `http://${name}:${address.port}`,
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

function connect(target: RedisTarget, timeoutMs: number): Backend {
  return typeof target === "object" && "cluster" in target
    ? new ClusterBackend(target.cluster, timeoutMs)
    : new ServerBackend(target, timeoutMs);
}

function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, () => {
      server.off("error", reject);
      resolve();
    });
  });
}

async function until(isTrue: () => boolean, timeoutMs: number): Promise<void> {
  const endMs = performance.now() + timeoutMs;
  while (!isTrue() && performance.now() < endMs) await new Promise((resolve) => setTimeout(resolve, POLL_MS));
}

/** Connections end once no answer is under way. Not by `closeIdleConnections`: it spares those that never had a request. */
async function closeAll(server: Server, front: Front, backend: Backend): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  front.subscriptions.close();
  await until(() => front.underWay === 0, DRAIN_MS);
  server.closeAllConnections();
  await closed;
  backend.close();
}

interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly path: string;
  readonly query: string;
  readonly access: Access;
  readonly startMs: number;
}

/** The requests of one server. */
class Front {
  readonly metrics = new RestMetrics();
  readonly subscriptions: Subscriptions;
  private readonly backend: Backend;
  private readonly tokens: Tokens;
  private readonly limits: RedisRestLimits;
  private readonly budget: BodyBudget;
  private inFlight = 0;
  /** Answers that have not left yet, streams included. */
  underWay = 0;

  constructor(backend: Backend, tokens: Tokens, limits: RedisRestLimits) {
    this.backend = backend;
    this.tokens = tokens;
    this.limits = limits;
    this.budget = new BodyBudget(limits.maxBodyBytesInFlight);
    this.subscriptions = new Subscriptions(backend, this.metrics, limits.maxSubscribers);
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const startMs = performance.now();
    this.underWay++;
    response.on("close", () => this.underWay--);
    const url = request.url ?? "/";
    const at = url.indexOf("?");
    const path = at < 0 ? url : url.slice(0, at);
    const query = at < 0 ? "" : url.slice(at + 1);
    const route = routeOf(path);
    try {
      if (path === "/health") return await this.health(response);
      if (path === "/metrics") return this.exposition(response);
      checkMethod(request, route);
      const access = this.tokens.access(request, query);
      if (access === null) throw new KedgeError("unauthorized", "WRONGPASS invalid or missing auth token");
      const call = { request, response, path, query, access, startMs };
      await (route === "subscribe" ? this.subscribe(call) : this.commands(route, call));
    } catch (thrown) {
      this.fail(response, route, startMs, thrown);
    }
  }

  private async commands(route: Route, call: Call): Promise<void> {
    if (this.inFlight >= this.limits.maxRequestsInFlight)
      throw new KedgeError("overloaded", "ERR too many requests under way; try again later");
    this.inFlight++;
    let bodyBytes = 0;
    try {
      const body = await readBody(call.request, this.limits.maxBodyBytes, this.budget);
      if (body === null) return;
      bodyBytes = body.length;
      this.metrics.received(bodyBytes);
      await this.answer(route, call, body);
    } finally {
      this.budget.give(bodyBytes);
      this.inFlight--;
    }
  }

  private async answer(route: Route, call: Call, body: Buffer): Promise<void> {
    const { headers } = call.request;
    const base64 = headers["upstash-encoding"]?.toString().toLowerCase() === "base64";
    const resp2 = headers["upstash-response-format"]?.toString().toLowerCase() === "resp2";
    if (resp2 && (base64 || route === "multi-exec"))
      throw new KedgeError(
        "invalid_request",
        "ERR Upstash-Response-Format: resp2 goes neither with base64 encoding nor with /multi-exec",
      );
    const result = await this.execute(route, call, body);
    const outcomes = Array.isArray(result) ? result : [result];
    // Upstash has no word for it, but a client must not take an unreachable Redis for an answer.
    const isLost = outcomes.every(({ kind }) => kind === "lost");
    const isSingle = !Array.isArray(result);
    const status = isLost ? 503 : isSingle && isError(result) ? 400 : 200;
    if (resp2 && !isLost) {
      this.send(call, route, status, Buffer.concat(outcomes.map(respOutcome)), "application/octet-stream");
    } else if (isSingle || isLost) {
      this.send(call, route, status, jsonOutcome(outcomes[0]!, base64), JSON_TYPE);
    } else {
      this.send(
        call,
        route,
        status,
        `[${outcomes.map((outcome) => jsonOutcome(outcome, base64)).join(",")}]`,
        JSON_TYPE,
      );
    }
  }

  private async execute(route: Route, call: Call, body: Buffer): Promise<Outcome[] | Outcome> {
    const { maxPipelineLength } = this.limits;
    switch (route) {
      case "pipeline":
        return this.run(parsePipeline(body, maxPipelineLength), call.access);
      case "multi-exec":
        return this.transaction(parsePipeline(body, maxPipelineLength), call.access);
      case "command":
        return (await this.run([parseCommand(body)], call.access))[0]!;
      default:
        return (await this.run([parsePath(call.path, call.query, body)], call.access))[0]!;
    }
  }

  private async run(commands: readonly RestCommand[], access: Access): Promise<Outcome[]> {
    const outcomes = new Array<Outcome>(commands.length);
    const allowed: RestCommand[] = [];
    const places: number[] = [];
    for (let i = 0; i < commands.length; i++) {
      const refusal = this.refusal(commands[i]!, access);
      if (refusal !== null) outcomes[i] = refusal;
      else places.push(allowed.push(commands[i]!) && i);
    }
    this.count(allowed);
    const results = await this.backend.run(allowed);
    for (let i = 0; i < places.length; i++) outcomes[places[i]!] = this.noted(results[i]!);
    return outcomes;
  }

  private async transaction(commands: readonly RestCommand[], access: Access): Promise<Outcome[] | Outcome> {
    for (const command of commands) {
      const refusal = this.refusal(command, access);
      if (refusal !== null) return refusal;
    }
    this.count(commands);
    const result = await this.backend.transaction(commands);
    for (const outcome of Array.isArray(result) ? result : [result]) this.noted(outcome);
    return result;
  }

  private refusal(command: RestCommand, access: Access): Outcome | null {
    const message = this.backend.table.refusal(command, access === "read-only");
    if (message === null) return null;
    this.metrics.error("refused");
    return { kind: "error", message };
  }

  private count(commands: readonly RestCommand[]): void {
    if (!this.backend.ready) return;
    for (const command of commands) this.metrics.command(this.backend.table.label(command));
  }

  private noted(outcome: Outcome): Outcome {
    if (isError(outcome)) this.metrics.error(outcome.kind === "lost" ? "lost" : "redis");
    return outcome;
  }

  private async subscribe(call: Call): Promise<void> {
    const [, kind, name] = /^\/(p?subscribe)\/([^/]+)$/.exec(call.path) ?? [];
    if (name === undefined)
      throw new KedgeError(
        "invalid_request",
        "ERR name one channel: /subscribe/<channel> or /psubscribe/<pattern>",
      );
    if (this.subscriptions.full)
      throw new KedgeError("overloaded", "ERR too many subscriptions are open; try again later");
    if (!this.backend.ready) throw unreachable();
    call.request.resume();
    try {
      await this.subscriptions.start(call.response, {
        kind: kind as "subscribe" | "psubscribe",
        channel: decodeSegment(name),
      });
    } catch (error) {
      throw (error as Error).name === "ReplyError"
        ? new KedgeError("invalid_request", (error as Error).message)
        : unreachable();
    }
    this.metrics.answered("subscribe", 200, (performance.now() - call.startMs) / 1000);
  }

  private async health(response: ServerResponse): Promise<void> {
    const ping = this.backend.run([{ name: "PING", args: [] }]);
    const late = new Promise<null>((resolve) => setTimeout(resolve, HEALTH_TIMEOUT_MS, null).unref());
    const answer = await Promise.race([ping, late]);
    const isUp = answer !== null && answer[0]!.kind === "reply";
    const body = isUp ? '{"status":"ok"}' : '{"status":"unavailable","error":"Redis is not reachable"}';
    write(response, isUp ? 200 : 503, body, JSON_TYPE);
  }

  private exposition(response: ServerResponse): void {
    write(response, 200, this.metrics.encode(this.backend.ready), PROMETHEUS_CONTENT_TYPE);
  }

  private send(call: Call, route: Route, status: number, body: string | Buffer, type: string): void {
    this.metrics.answered(route, status, (performance.now() - call.startMs) / 1000);
    const token = call.request.headers["upstash-sync-token"]?.toString() || SYNC_TOKEN;
    this.metrics.sent(write(call.response, status, body, type, token));
  }

  private fail(response: ServerResponse, route: Route, startMs: number, thrown: unknown): void {
    const error = toKedgeError(thrown);
    if (response.headersSent || response.destroyed) return void response.destroy();
    const { status } = error.kind;
    this.metrics.answered(route, status, (performance.now() - startMs) / 1000);
    if (error.code === "method_not_allowed") response.setHeader("allow", METHODS[route].join(", "));
    if (error.code === "payload_too_large" || error.code === "overloaded")
      response.setHeader("connection", "close");
    this.metrics.sent(write(response, status, jsonError(error.message), JSON_TYPE));
  }
}

const JSON_TYPE = "application/json";

const METHODS: Readonly<Record<Route, readonly string[]>> = {
  command: ["POST", "PUT"],
  pipeline: ["POST", "PUT"],
  "multi-exec": ["POST", "PUT"],
  path: ["GET", "HEAD", "POST", "PUT"],
  subscribe: ["GET", "POST"],
};

function routeOf(path: string): Route {
  if (path === "/") return "command";
  if (path === "/pipeline") return "pipeline";
  if (path === "/multi-exec") return "multi-exec";
  return /^\/p?subscribe(\/|$)/.test(path) ? "subscribe" : "path";
}

function checkMethod({ method = "" }: IncomingMessage, route: Route): void {
  const allowed = METHODS[route];
  if (!allowed.includes(method))
    throw new KedgeError(
      "method_not_allowed",
      `ERR ${method} is not allowed here; use ${allowed.join(" or ")}`,
    );
}

function unreachable(): KedgeError {
  return new KedgeError("view_unavailable", "ERR Redis is not reachable; nothing was run");
}

function isError(outcome: Outcome): boolean {
  return outcome.kind !== "reply" || outcome.reply instanceof Error;
}

/** Returns the body's bytes. */
function write(
  response: ServerResponse,
  status: number,
  body: string | Buffer,
  type: string,
  syncToken: string | null = null,
): number {
  const bytes = Buffer.byteLength(body);
  const headers: Record<string, string | number> = { "content-type": type, "content-length": bytes };
  if (status === 503) headers["retry-after"] = RETRY_AFTER_SECONDS;
  if (syncToken !== null) headers["upstash-sync-token"] = syncToken;
  response.writeHead(status, headers);
  response.end(body);
  return bytes;
}
