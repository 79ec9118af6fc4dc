/** The service routes: one request from its bytes to its answer. */

import type { Context } from "hono";
import type { KedgeConfig } from "../config/index.ts";
import { KedgeError, toKedgeError } from "../errors/index.ts";
import { explain, logLines } from "../routing/index.ts";
import { errorHeaders, errorJson, publicError } from "./answers.ts";
import type { Authenticate } from "./auth.ts";
import { BodyBudget, type BodyLease } from "./body-budget.ts";
import { type ClientConnection, WebClient } from "./client.ts";
import type { GatewayDeps, GatewayEnv } from "./deps.ts";
import type { Forwarder, Job, JobStatus } from "./forward.ts";
import type { GatewayMetrics } from "./metrics.ts";
import { NO_OVERRIDES, type RequestOverrides, readOverrides } from "./overrides.ts";
import { type ClientRequest, type Endpoint, readRequest, requireJson, upstreamBody } from "./request.ts";
import type { Route, Router } from "./route.ts";

const SANE_REQUEST_ID = /^[\w.:-]{1,128}$/;
/** W3C Trace Context; what is not in its form is not a trace, and tracestate means nothing without its parent. */
const TRACE_PARENT = /^[\da-f]{2}-[\da-f]{32}-[\da-f]{16}-[\da-f]{2}(?:-[\w-]{0,64})?$/;
const TRACE_STATE = /^[\x20-\x7e]{1,512}$/;

type Ctx = Context<GatewayEnv>;

export interface ServiceParts {
  readonly deps: GatewayDeps;
  readonly authenticate: Authenticate;
  readonly router: Router;
  readonly forwarder: Forwarder;
  readonly metrics: GatewayMetrics;
}

/** What is known of a request when it ends, however far it came. */
interface Record {
  readonly endpoint: string;
  requestId: string;
  model: string;
  stream: boolean;
  /** What its body takes of the budget, until it ends. */
  lease: BodyLease | null;
}

export class Service {
  private readonly parts: ServiceParts;
  private readonly config: KedgeConfig;
  private readonly bodies: BodyBudget;

  constructor(parts: ServiceParts) {
    this.parts = parts;
    this.config = parts.deps.config;
    this.bodies = new BodyBudget(this.config.limits.inflightBodyBytes);
  }

  /** Answers a chat or completion request. */
  complete(c: Ctx, endpoint: Endpoint): Promise<Response> {
    return this.serve(c, endpoint, async (client, record) => {
      const startMs = this.parts.deps.clock.now();
      const request = await this.read(c, client, endpoint, record);
      record.stream = request.stream;
      const route = await this.parts.router.route(request, this.overrides(c), false);
      record.model = route.served.name;
      return this.forward(this.jobOf(c, client, record.requestId, request, route, startMs));
    });
  }

  /** Says how such a request would be routed; runs and reserves nothing. */
  explain(c: Ctx): Promise<Response> {
    return this.serve(c, "route", async (client, record) => {
      if (!this.config.explain) {
        throw new KedgeError(
          "not_found",
          "Explanations are off. The operator turns them on with KEDGE_EXPLAIN=true.",
        );
      }
      const request = await this.read(c, client, null, record);
      const route = await this.parts.router.route(request, this.overrides(c), true);
      record.model = route.served.name;
      const headers = { "content-type": "application/json", "x-request-id": record.requestId };
      client.send(200, headers, JSON.stringify(explanationOf(request, route)));
      return "200";
    });
  }

  private serve(
    c: Ctx,
    endpoint: string,
    work: (client: ClientConnection, record: Record) => Promise<JobStatus>,
  ): Promise<Response> {
    const client = c.env?.client ?? new WebClient(c.req.raw);
    const record: Record = {
      endpoint,
      requestId: this.requestId(c),
      model: "unknown",
      stream: false,
      lease: null,
    };
    const done = work(client, record)
      .finally(() => record.lease?.release())
      .then(
        (status) => this.count(record, status),
        (thrown) => this.refuse(client, record, toKedgeError(thrown)),
      );
    // An edge host ends the work of a client that has left, and what it holds would never be given back.
    client.waitUntil?.(done);
    return client.response;
  }

  private async read(
    c: Ctx,
    client: ClientConnection,
    endpoint: Endpoint | null,
    record: Record,
  ): Promise<ClientRequest> {
    const allowed = this.parts.authenticate(c.req.header("authorization"), c.req.header("host"));
    if (allowed instanceof Promise) await allowed;
    requireJson((name) => c.req.header(name));
    const { bodyBytes } = this.config.limits;
    const announced = Number(c.req.header("content-length") ?? Number.NaN);
    // A body of unknown length may be as long as any; one that is too long is refused as such by the reader.
    record.lease = this.bodies.take(announced >= 0 ? Math.min(announced, bodyBytes) : bodyBytes);
    const body = await client.readBody(bodyBytes);
    record.lease.resize(body.length);
    return readRequest(endpoint, body);
  }

  private jobOf(
    c: Ctx,
    client: ClientConnection,
    requestId: string,
    request: ClientRequest,
    route: Route,
    startMs: number,
  ): Job {
    const { endpoint, stream, wantsUsage } = request;
    return {
      client,
      endpoint,
      stream,
      wantsUsage,
      body: upstreamBody(request),
      route,
      planId: c.req.header("x-request-id") === requestId ? `${requestId}-${this.hex(8)}` : requestId,
      requestId,
      traceHeaders: traceHeaders(c),
      startMs,
      meters: this.parts.metrics.of(route.served.name),
    };
  }

  private async forward(job: Job): Promise<JobStatus> {
    const { route, requestId, meters, startMs } = job;
    this.noteRoute(route, requestId);
    meters.inflight.add(1);
    try {
      return await this.parts.forwarder.forward(job);
    } finally {
      meters.inflight.add(-1);
      meters.duration.observe((this.parts.deps.clock.now() - startMs) / 1_000);
    }
  }

  private noteRoute(route: Route, requestId: string): void {
    const { metrics, deps } = this.parts;
    const { served, decision, unkeyed } = route;
    const meters = metrics.of(served.name);
    meters.keying.observe(route.keyingMs * 1_000);
    meters.decision.observe(route.decisionMs * 1_000);
    if (decision.chosen !== null) metrics.rungs.labels(served.name, route.rung(decision.chosen)).inc();
    if (unkeyed !== null) metrics.unkeyed.labels(served.name).inc();
    if (deps.log.debug === undefined) return;
    for (const line of logLines(decision)) deps.log.debug(`${requestId} ${line}`);
  }

  private refuse(client: ClientConnection, record: Record, error: KedgeError): void {
    if (error.code === "internal_error") {
      this.parts.deps.log.warn("A request failed inside the gateway.", {
        requestId: record.requestId,
        error:
          error.cause instanceof Error
            ? (error.cause.stack ?? error.cause.message)
            : String(error.cause ?? error),
      });
    }
    const told = publicError(error, this.config.explain);
    client.send(
      told.kind.status,
      { ...errorHeaders(told), "x-request-id": record.requestId },
      errorJson(told),
    );
    this.count(record, String(told.kind.status));
  }

  private count(record: Record, status: JobStatus): void {
    const { model, endpoint, stream } = record;
    this.parts.metrics.requests.labels(model, endpoint, String(stream), status).inc();
  }

  private overrides(c: Ctx): RequestOverrides {
    return this.config.explain ? readOverrides((name) => c.req.header(name)) : NO_OVERRIDES;
  }

  private requestId(c: Ctx): string {
    const given = c.req.header("x-request-id");
    return given !== undefined && SANE_REQUEST_ID.test(given) ? given : this.hex(32);
  }

  private hex(digits: number): string {
    let text = "";
    while (text.length < digits) {
      text += Math.floor(this.parts.deps.random() * 2 ** 32)
        .toString(16)
        .padStart(8, "0");
    }
    return text.slice(0, digits);
  }
}

function traceHeaders(c: Ctx): { [name: string]: string } {
  const traceparent = c.req.header("traceparent") ?? "";
  const tracestate = c.req.header("tracestate") ?? "";
  if (!TRACE_PARENT.test(traceparent)) return {};
  return TRACE_STATE.test(tracestate) ? { traceparent, tracestate } : { traceparent };
}

/** The answer of `/v1/route`. Slots, keys and addresses stay inside. */
function explanationOf(request: ClientRequest, route: Route) {
  const { served, prompt, decision, unkeyed } = route;
  const { chain } = prompt;
  const rung = decision.chosen && route.rung(decision.chosen);
  const explanation = explain(decision);
  return {
    object: "route",
    model: served.name,
    base_model: served.model,
    adapter: served.adapter,
    endpoint: request.endpoint,
    rung,
    prompt: {
      tokens: route.promptTokens,
      tokens_estimated: prompt.exactTokens === null,
      bytes_per_token: prompt.exactTokens === null ? prompt.bytesPerToken : null,
      unkeyed,
      scheme: chain?.scheme ?? null,
      keys: chain?.keys.length ?? 0,
      unit_size: chain?.unitSize ?? null,
      complete: chain?.complete ?? false,
    },
    overlap_tokens: decision.chosen && route.overlapTokens(decision.chosen),
    keying_ms: route.keyingMs,
    decision_ms: route.decisionMs,
    ...explanation,
    ranking: explanation.ranking.map((candidate, i) => {
      const own = route.rung(decision.ranking[i]!);
      return own === rung ? candidate : { ...candidate, rung: own };
    }),
    log: logLines(decision),
  };
}
