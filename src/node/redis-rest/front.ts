/** The requests of one server: routes, tokens and limits around the commands, and what goes back. */

import type { IncomingMessage, ServerResponse } from "node:http";
import { KedgeError, toKedgeError } from "../../errors/index.ts";
import { PROMETHEUS_CONTENT_TYPE } from "../../telemetry/registry.ts";
import type { Access, Tokens } from "./auth.ts";
import type { Backend } from "./backend.ts";
import { BodyBudget, readBody } from "./body.ts";
import { RestMetrics, type Route } from "./metrics.ts";
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

const HEALTH_TIMEOUT_MS = 1_000;
const RETRY_AFTER_SECONDS = "1";
/** Read-your-writes holds with one primary; the header is there for clients that hand it on. */
const SYNC_TOKEN = "kedge";

interface Call {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly path: string;
  readonly query: string;
  readonly access: Access;
  readonly startMs: number;
}

export class Front {
  readonly metrics = new RestMetrics();
  readonly subscriptions: Subscriptions;
  private readonly backend: Backend;
  private readonly tokens: Tokens;
  private readonly limits: RedisRestLimits;
  private readonly budget: BodyBudget;
  private inFlight = 0;
  private openAnswers = 0;

  constructor(backend: Backend, tokens: Tokens, limits: RedisRestLimits) {
    this.backend = backend;
    this.tokens = tokens;
    this.limits = limits;
    this.budget = new BodyBudget(limits.maxBodyBytesInFlight);
    this.subscriptions = new Subscriptions(backend, this.metrics, limits.maxSubscribers);
  }

  /** Whether all answers have left, streams included. */
  get idle(): boolean {
    return this.openAnswers === 0;
  }

  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const startMs = performance.now();
    this.openAnswers++;
    response.on("close", () => this.openAnswers--);
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
    const status = isLost ? 503 : !Array.isArray(result) && isError(result) ? 400 : 200;
    if (resp2 && !isLost)
      return this.send(call, route, status, Buffer.concat(outcomes.map(respOutcome)), RESP_TYPE);
    this.send(call, route, status, encode(isLost ? outcomes[0]! : result, base64), JSON_TYPE);
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
    const outcomes = commands.map((command) => this.refusal(command, access));
    const allowed = commands.filter((_, i) => outcomes[i] === null);
    this.count(allowed);
    const results = await this.backend.run(allowed);
    let next = 0;
    return outcomes.map((refused) => refused ?? this.noted(results[next++]!));
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
    const channel = decodeSegment(name);
    call.request.resume();
    try {
      await this.subscriptions.start(call.response, { kind: kind as "subscribe" | "psubscribe", channel });
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
const RESP_TYPE = "application/octet-stream";

/** Errors: `payload_too_large` if no string can hold the result. */
function encode(result: Outcome[] | Outcome, base64: boolean): string {
  try {
    if (!Array.isArray(result)) return jsonOutcome(result, base64);
    return `[${result.map((outcome) => jsonOutcome(outcome, base64)).join(",")}]`;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new KedgeError("payload_too_large", "ERR the result is too large; ask for less at once", {
      cause: error,
    });
  }
}

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
