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

export type { AnswerWriter, ClientConnection } from "./client.ts";
export { clientClosed, concatBytes, payloadTooLarge } from "./client.ts";
export type { Clock, GatewayDeps, GatewayEnv, Log } from "./deps.ts";
export { parseSeedFleet } from "./seed-fleet.ts";

type Ctx = Context<GatewayEnv>;

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
  const directory = new Directory(store, clock);
  const prompts = new PromptReader(deps, estimator);
  const router = new Router({ deps, directory, prompts, breakers });
  const forwarder = new Forwarder({ deps, router, breakers, metrics, estimator });
  const authenticate = createAuthenticator(config, deps.sha256 ?? webSha256, deps.requireKeys);
  const service = new Service({ deps, authenticate, router, forwarder, metrics });
  const thresholds = new BusyThresholdApi(store, directory, config.router);

  const app = new Hono<GatewayEnv>();
  app.post("/v1/chat/completions", (c) => service.complete(c, "chat"));
  app.post("/v1/completions", (c) => service.complete(c, "completions"));
  app.post("/v1/route", (c) => service.explain(c));

  const guarded = (work: (c: Ctx) => Promise<Response> | Response) => async (c: Ctx) => {
    await authenticate(c.req.header("authorization"));
    return work(c);
  };
  const created = Math.floor(clock.wall() / 1_000);
  app.get(
    "/v1/models",
    guarded(async (c) => {
      const models = await directory.all();
      return c.json({ object: "list", data: models.map((served) => modelCard(served, created)) });
    }),
  );
  app.get(
    "/v1/models/:name{.+}",
    guarded(async (c) => c.json(modelCard(await directory.find(c.req.param("name") ?? ""), created))),
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

  addHealth(app, deps);
  app.notFound((c) => unknownRoute(c, deps));
  app.onError((thrown) => errorResponse(toKedgeError(thrown), deps));
  return app;
}

function addHealth(app: Hono<GatewayEnv>, { store, isServing = () => true }: GatewayDeps): void {
  const stopping = { status: "shutting_down" };
  app.get("/live", (c) => (isServing() ? c.json({ status: "live" }) : c.json(stopping, 503)));
  app.get("/health", async (c) => {
    const rows = await store.fleet();
    const models = new Set(rows.map(({ model }) => model)).size;
    return c.json({ status: "healthy", models, workers: new Set(rows.map(({ worker }) => worker)).size });
  });
  app.get("/ready", async (c) => {
    if (!isServing()) return c.json(stopping, 503);
    const rows = await store.fleet();
    return rows.length > 0
      ? c.json({ status: "ready" })
      : c.json({ status: "not_ready", reason: "no live worker" }, 503);
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
  if (methods === undefined) {
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
