/** What a running vLLM engine says of itself over HTTP: version, models, block size, capacity, ranks, event sockets. */

import { KedgeError } from "../../../src/errors/index.ts";
import { type EngineFigures, readMetrics } from "./metrics.ts";

export interface EngineAddress {
  /** Origin, with an optional path before `/v1`. */
  readonly url: string;
  /** The engine's own `--api-key`. */
  readonly apiKey?: string;
}

/** Event sockets of one rank, as the engine was configured. */
export interface EventSource {
  readonly endpoint: string;
  readonly replayEndpoint: string | null;
  readonly topic: string;
}

export interface Discovery {
  readonly version: string | null;
  /** Names of the base model, in the engine's order. */
  readonly servedNames: readonly string[];
  /** Names and paths under which the base model may be known. */
  readonly modelIds: readonly string[];
  readonly adapters: readonly string[];
  readonly maxModelLen: number | null;
  readonly figures: EngineFigures;
  /** By rank; null: the engine has no such route or no events. */
  readonly eventSources: ReadonlyMap<number, EventSource> | null;
}

const REQUEST_TIMEOUT_MS = 5_000;

/** Errors: `upstream_unreachable`, `upstream_error` for an answer that is none of vLLM's. */
export async function discover(address: EngineAddress): Promise<Discovery> {
  const [version, models, figures, eventSources] = await Promise.all([
    versionOf(address),
    modelsOf(address),
    figuresOf(address),
    eventSourcesOf(address),
  ]);
  return { version, ...models, figures, eventSources };
}

/** Whether `/health` answers 200. Never rejects. */
export async function isHealthy(address: EngineAddress, timeoutMs = REQUEST_TIMEOUT_MS): Promise<boolean> {
  try {
    const response = await request(address, "/health", timeoutMs);
    await response.arrayBuffer();
    return response.ok;
  } catch {
    return false;
  }
}

/** Errors: `upstream_unreachable`, `upstream_error`. */
export async function figuresOf(address: EngineAddress): Promise<EngineFigures> {
  const response = await request(address, "/metrics");
  if (!response.ok) throw answered("/metrics", response.status);
  return readMetrics(await response.text());
}

export type ModelFacts = Pick<Discovery, "servedNames" | "modelIds" | "adapters" | "maxModelLen">;

/** Base model and adapters: an adapter's card names its parent. Errors: `upstream_unreachable`, `upstream_error`. */
export async function modelsOf(address: EngineAddress): Promise<ModelFacts> {
  const response = await request(address, "/v1/models");
  if (response.status === 401) {
    throw new KedgeError(
      "config_invalid",
      `The engine at ${address.url} wants an API key; set the one it was started with.`,
      {
        param: "apiKey",
      },
    );
  }
  if (!response.ok) throw answered("/v1/models", response.status);
  const body: unknown = await response.json().catch(() => null);
  const cards = isRecord(body) && Array.isArray(body.data) ? body.data.filter(isRecord) : [];
  const base = cards.filter((card) => typeof card.parent !== "string");
  const servedNames = base.map((card) => card.id).filter(isText);
  if (servedNames.length === 0) {
    throw new KedgeError(
      "upstream_error",
      `The engine at ${address.url} serves no model, by its /v1/models.`,
    );
  }
  const maxModelLen = base.map((card) => card.max_model_len).find((length) => typeof length === "number");
  return {
    servedNames,
    modelIds: [...new Set([...servedNames, ...base.map((card) => card.root).filter(isText)])],
    adapters: cards
      .filter((card) => typeof card.parent === "string")
      .map((card) => card.id)
      .filter(isText),
    maxModelLen: maxModelLen ?? null,
  };
}

async function versionOf(address: EngineAddress): Promise<string | null> {
  const body = await optionalJson(address, "/version");
  return isRecord(body) && isText(body.version) ? body.version : null;
}

/** Newer builds say where each rank publishes; others answer 404. */
async function eventSourcesOf(address: EngineAddress): Promise<Discovery["eventSources"]> {
  const body = await optionalJson(address, "/kv_event_sources");
  if (!isRecord(body)) return null;
  const sources = new Map<number, EventSource>();
  for (const [rank, source] of Object.entries(body)) {
    if (!/^\d+$/.test(rank) || !isRecord(source) || !isText(source.endpoint)) continue;
    if (source.enable_kv_cache_events !== true || source.publisher !== "zmq") continue;
    sources.set(Number(rank), {
      endpoint: source.endpoint,
      replayEndpoint: isText(source.replay_endpoint) ? source.replay_endpoint : null,
      topic: isText(source.topic) ? source.topic : "",
    });
  }
  return sources.size === 0 ? null : sources;
}

async function optionalJson(address: EngineAddress, path: string): Promise<unknown> {
  const response = await request(address, path);
  const body: unknown = await response.json().catch(() => null);
  return response.ok ? body : null;
}

async function request(
  { url, apiKey }: EngineAddress,
  path: string,
  timeoutMs = REQUEST_TIMEOUT_MS,
): Promise<Response> {
  const headers = apiKey === undefined ? undefined : { authorization: `Bearer ${apiKey}` };
  try {
    return await fetch(`${url.replace(/\/+$/, "")}${path}`, {
      ...(headers && { headers }),
      signal: AbortSignal.timeout(timeoutMs),
    });
  } catch (cause) {
    throw new KedgeError("upstream_unreachable", `The engine at ${url} does not answer.`, { cause });
  }
}

function answered(path: string, status: number): KedgeError {
  return new KedgeError("upstream_error", `The engine answers ${status} to ${path}.`);
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value: unknown): value is string {
  return typeof value === "string" && value !== "";
}
