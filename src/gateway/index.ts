/** The gateway as a Hono app: service, models, thresholds, health, metrics. */

import { type Context, Hono } from "hono";
import { KedgeError, toKedgeError } from "../errors/index.ts";
import { PROMETHEUS_CONTENT_TYPE } from "../telemetry/registry.ts";
import { errorHeaders, errorJson, publicError } from "./answers.ts";
import { createAuthenticator, webSha256 } from "./auth.ts";
import { Breakers } from "./breaker.ts";
import { WebClient } from "./client.ts";
import type { GatewayDeps, GatewayEnv } from "./deps.ts";
import { TokenEstimator } from "./estimate.ts";
import { Forwarder } from "./forward.ts";
import { GatewayMetrics } from "./metrics.ts";
import { Directory, type ServedModel } from "./models.ts";
import { PromptReader } from "./prompt.ts";
import { requireJson } from "./request.ts";
import { Router } from "./route.ts";
import { Service } from "./service.ts";
import { BusyThresholdApi, type ThresholdAnswer } from "./thresholds.ts";
import { UnderWay } from "./under-way.ts";
import { ViewGuard } from "./view-guard.ts";

export type { AnswerWriter, ClientConnection } from "./client.ts";
export { clientClosed, concatBytes, payloadTooLarge } from "./client.ts";
export type { Clock, GatewayDeps, GatewayEnv, Log } from "./deps.ts";
export { parseSeedFleet } from "./seed-fleet.ts";

type Ctx = Context<GatewayEnv>;

/** Probes come from many and often, and a remote view is paid by the command. */
const HEALTH_MAX_AGE_MS = 1_000;
const ADMIN_BODY_BYTES = 64 * 1024;

/** Methods by path, for 405s. */
const METHODS: Readonly<Record<string, string>> = {
  "/v1/chat/completions": "POST",
  "/v1/completions": "POST",
  "/v1/route": "POST",
  "/v1/models": "GET, HEAD",
  "/busy_threshold": "GET, HEAD, POST",
  "/health": "GET, HEAD",
  "/live": "GET, HEAD",
  "/ready": "GET, HEAD",
  "/metrics": "GET, HEAD",
  "/.well-known/jwks.json": "GET, HEAD",
};

/** Verifiers ask again by themselves when they meet an unknown key; this bounds how long a withdrawn one is believed. */
const JWKS_CACHE = "public, max-age=300";

/** Stateless but for what it has learnt: breakers, bytes per token, round robin's turn. Runs in workerd and Node. */
export function createGateway(deps: GatewayDeps): Hono<GatewayEnv> {
  const { config, store, clock } = deps;
  const metrics = new GatewayMetrics(deps.registry);
  const breakers = new Breakers();
  const estimator = new TokenEstimator();
  const guard = new ViewGuard(deps, metrics);
  const directory = new Directory({ guard, clock, maxAgeMs: deps.directoryMaxAgeMs });
  const prompts = new PromptReader(deps, estimator);
  const underWay = new UnderWay();
  const router = new Router({ deps, guard, directory, prompts, breakers, underWay });
  const forwarder = new Forwarder({ deps, guard, router, breakers, metrics, estimator, underWay });
  const authenticate = createAuthenticator(config, deps.sha256 ?? webSha256, deps.requireKeys);
  const service = new Service({ deps, authenticate, router, forwarder, metrics });
  const thresholds = new BusyThresholdApi(
    {
      getThresholds: (model) => guard.setting(() => store.getThresholds(model)),
      setThresholds: (model, limits) => guard.setting(() => store.setThresholds(model, limits)),
    },
    () => directory.all(guard.budget()),
    config.router,
  );

  const app = new Hono<GatewayEnv>();
  app.post("/v1/chat/completions", (c) => service.complete(c, "chat"));
  app.post("/v1/completions", (c) => service.complete(c, "completions"));
  app.post("/v1/route", (c) => service.explain(c));

  const guarded = (work: (c: Ctx) => Promise<Response> | Response) => async (c: Ctx) => {
    await authenticate(c.req.header("authorization"), c.req.header("host"));
    return work(c);
  };
  const created = Math.floor(clock.wall() / 1_000);
  app.get(
    "/v1/models",
    guarded(async (c) => {
      const models = await directory.all(guard.budget());
      return c.json({ object: "list", data: models.map((served) => modelCard(served, created)) });
    }),
  );
  app.get(
    "/v1/models/:name{.+}",
    guarded(async (c) => {
      const served = await directory.find(c.req.param("name") ?? "", guard.budget());
      return c.json(modelCard(served, created));
    }),
  );
  app.get(
    "/busy_threshold",
    guarded(async () => thresholdResponse(await thresholds.list())),
  );
  app.post(
    "/busy_threshold",
    guarded(async (c) => thresholdResponse(await thresholds.update(await readText(c)))),
  );
  app.get(
    "/metrics",
    guarded(async (c) => {
      const text = await (deps.metricsText?.() ?? deps.registry.encode());
      return c.body(text, 200, { "content-type": PROMETHEUS_CONTENT_TYPE });
    }),
  );
  const { jwks } = deps;
  if (jwks !== undefined) {
    app.get("/.well-known/jwks.json", (c) => c.json(jwks, 200, { "cache-control": JWKS_CACHE }));
  }

  addHealth(app, deps, guard);
  app.notFound((c) => unknownRoute(c, deps));
  app.onError((thrown) => errorResponse(toKedgeError(thrown), deps));
  return app;
}

/** Never wrong about the gateway for want of the view: what was last known of the fleet stands in for it. */
function addHealth(app: Hono<GatewayEnv>, { isServing = () => true }: GatewayDeps, guard: ViewGuard): void {
  const stopping = { status: "shutting_down" };
  const fleet = async () => {
    const rows = await guard.fleet(HEALTH_MAX_AGE_MS, guard.budget());
    return rows === null ? { rows: guard.known.all(), view: { view: "unavailable" } } : { rows, view: {} };
  };
  app.get("/live", (c) => (isServing() ? c.json({ status: "live" }) : c.json(stopping, 503)));
  app.get("/health", async (c) => {
    const { rows, view } = await fleet();
    const models = new Set(rows.map(({ model }) => model)).size;
    return c.json({
      status: "healthy",
      models,
      workers: new Set(rows.map(({ worker }) => worker)).size,
      ...view,
    });
  });
  app.get("/ready", async (c) => {
    if (!isServing()) return c.json(stopping, 503);
    const { rows, view } = await fleet();
    return rows.length > 0
      ? c.json({ status: "ready", ...view })
      : c.json({ status: "not_ready", reason: "no live worker", ...view }, 503);
  });
}

async function readText(c: Ctx): Promise<string> {
  // Pages of other sites may post forms and plain text to a gateway on loopback, but not JSON.
  requireJson((name) => c.req.header(name));
  const client = c.env?.client ?? new WebClient(c.req.raw);
  return new TextDecoder().decode(await client.readBody(ADMIN_BODY_BYTES));
}

/** OpenAI's shape with vLLM's extras. */
function modelCard({ name, model, adapter, maxModelLen }: ServedModel, created: number) {
  return {
    id: name,
    object: "model",
    created,
    owned_by: "kedge",
    root: adapter ?? model,
    parent: adapter === null ? null : model,
    max_model_len: maxModelLen,
  };
}

function thresholdResponse({ status, body }: ThresholdAnswer): Response {
  return Response.json(body, { status });
}

function unknownRoute(c: Ctx, deps: GatewayDeps): Response {
  const { path, method } = c.req;
  const methods = METHODS[path];
  // A route may be absent for want of what it tells.
  if (methods === undefined || methods.split(", ").includes(method)) {
    return errorResponse(new KedgeError("not_found", `There is no ${path} here.`), deps);
  }
  const error = new KedgeError("method_not_allowed", `${path} takes ${methods}, not ${method}.`);
  const response = errorResponse(error, deps);
  response.headers.set("allow", methods);
  return response;
}

function errorResponse(error: KedgeError, { config, log }: GatewayDeps): Response {
  if (error.code === "internal_error")
    log.warn("A request failed inside the gateway.", { error: String(error.cause) });
  const told = publicError(error, config.explain);
  return new Response(errorJson(told), { status: told.kind.status, headers: errorHeaders(told) });
}
