/** The whole of Kedge in one process: gateway, agent, memory view and bus; engines are named ones or mocks (design §1). */

import { createHash } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout } from "node:timers/promises";
import { Agent, type AgentStatus, type EngineSpec } from "../../gpu-agent/agent.ts";
import { MODEL_DIR } from "../../gpu-agent/engines/mock/index.ts";
import { Ingress, type IngressEngine } from "../../gpu-agent/ingress/index.ts";
import type { KedgeConfig } from "../config/index.ts";
import { KedgeError, toKedgeError } from "../errors/index.ts";
import { InProcessBus } from "../events/in-process.ts";
import { createGateway } from "../gateway/index.ts";
import { Indexer } from "../indexer/index.ts";
import { createHasher } from "../prefix/hasher.ts";
import { MemoryStore } from "../store/memory/index.ts";
import { Registry } from "../telemetry/registry.ts";
import { monotonicClock, promptTimers } from "./clock.ts";
import type { EngineOption } from "./engine-option.ts";
import { MOCK_MODEL, type MockFleetOptions, type MockProcess, startMockFleet } from "./mock-fleet.ts";
import {
  isUnreachable,
  type LoadedModel,
  loadModel,
  loadModels,
  type ModelSettings,
  type ModelsOfEngines,
} from "./models.ts";
import { type ServedGateway, serveGateway } from "./server.ts";

export type AllInOneLog = (
  level: "debug" | "info" | "warn" | "error",
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void;

export interface AllInOneOptions {
  readonly config: KedgeConfig;
  /** Engines that already run. */
  readonly engines?: readonly EngineOption[];
  /** Mock engines to start, as child processes. */
  readonly mock?: MockFleetOptions | null;
  readonly model?: ModelSettings;
  /** Uniform in [0, 1); default Math.random. */
  readonly random?: () => number;
  readonly log?: AllInOneLog;
  /** Print decisions as Dynamo does, at level `debug`. */
  readonly logDecisions?: boolean;
}

export interface EngineListing {
  readonly worker: string;
  readonly url: string;
  readonly role: string;
  /** False: it did not answer yet, and joins when it does. */
  readonly serving: boolean;
  /** KV events of rank 0; null: none, its cache is predicted. */
  readonly events: string | null;
  readonly pid: number | null;
}

export interface AllInOne {
  readonly url: string;
  readonly engines: readonly EngineListing[];
  readonly store: MemoryStore;
  agentStatus(): AgentStatus;
  /** Lets running requests finish (config.limits.drainTimeoutMs), then ends everything that was started. Safe to call twice. */
  close(): Promise<void>;
}

const INDEXER_TICK_MS = 1_000;
/** How often an engine that did not answer at the start is asked again. */
const JOIN_POLL_MS = 1_000;
/** Agents walk over what they hold well before the lease of it ends. */
const REASSERTS_PER_HORIZON = 4;

/**
 * Resolves when the gateway listens and every engine that answers serves; others join when they answer.
 * Errors: `config_invalid`, `engine_mismatch`, `upstream_unreachable` if no engine answers; what was started is ended before.
 */
export async function startAllInOne(options: AllInOneOptions): Promise<AllInOne> {
  const closers: (() => Promise<void> | void)[] = [];
  const close = async (): Promise<void> => {
    for (let closer = closers.pop(); closer !== undefined; closer = closers.pop()) await closer();
  };
  try {
    return await start(options, closers, close);
  } catch (thrown) {
    await close();
    throw thrown;
  }
}

/** `closers` run last to first: what was started last is ended first. */
async function start(
  options: AllInOneOptions,
  closers: (() => Promise<void> | void)[],
  close: () => Promise<void>,
): Promise<AllInOne> {
  const { config, log = () => {}, random = Math.random } = options;
  const mocks = options.mock ? await startMockFleet(options.mock) : [];
  closers.push(async () => void (await Promise.all(mocks.map((mock) => mock.close()))));
  const { models, silent } = await modelsOf(options, mocks.length > 0);
  const present = (options.engines ?? []).filter((engine) => !silent.includes(engine));
  const specs = [...mocks.map(mockSpec), ...present.map((engine) => engineSpec(engine, config))];

  const { bus, store } = startView(config, random, log, closers);
  const agent = new Agent({
    bus,
    engines: specs,
    models,
    kvEvents: config.router.kvEvents,
    reassertMs: config.feed.horizonMs / REASSERTS_PER_HORIZON,
    timers: promptTimers,
    // A client's next turn may come within a millisecond, and must not find its last one still counted as load.
    coalesceMs: 0,
    onState: (worker, state) => ingress.watched(worker, state === "lost"),
    log,
  });
  const ingress = new Ingress({
    ledger: agent.ledger,
    timers: monotonicClock,
    heartbeatMs: config.limits.heartbeatMs,
  });
  closers.push(() => agent.stop());
  await agent.start();
  for (const spec of specs) ingress.addEngine(ingressEngine(spec, agent));
  closers.push(() => ingress.drain(config.limits.drainTimeoutMs));
  const stopped = new AbortController();
  closers.push(() => stopped.abort());
  for (const engine of silent)
    void joinLater(engine, { options, models, agent, ingress, log, signal: stopped.signal });
  const served = await serve(options, store, ingress, models, random);
  closers.push(() => served.close());
  return {
    url: served.url,
    engines: [
      ...specs.map((spec, i) => listing(spec, mocks[i] ?? null, agent)),
      ...silent.map((engine) => listing(engineSpec(engine, config), null, agent)),
    ],
    store,
    agentStatus: () => agent.status(),
    close,
  };
}

interface Joining {
  readonly options: AllInOneOptions;
  /** Shared with agent and gateway: an engine that comes late may bring a model. */
  readonly models: LoadedModel[];
  readonly agent: Agent;
  readonly ingress: Ingress;
  readonly log: AllInOneLog;
  readonly signal: AbortSignal;
}

/** One engine that is down must not keep the others from serving: it joins when it answers. */
async function joinLater(
  engine: EngineOption,
  { options, models, agent, ingress, log, signal }: Joining,
): Promise<void> {
  log("warn", `no engine answers at ${engine.url}; it joins when it does`);
  const spec = engineSpec(engine, options.config);
  try {
    for (const model of await loadOnceThere(engine, options, signal)) {
      if (!models.some(({ card }) => card.model === model.card.model)) models.push(model);
    }
    await agent.add(spec);
    ingress.addEngine(ingressEngine(spec, agent));
  } catch (thrown) {
    if (!signal.aborted)
      log("error", `The engine at ${engine.url} cannot join: ${toKedgeError(thrown).message}`);
  }
}

async function loadOnceThere(
  engine: EngineOption,
  options: AllInOneOptions,
  signal: AbortSignal,
): Promise<LoadedModel[]> {
  for (;;) {
    await setTimeout(JOIN_POLL_MS, undefined, { signal, ref: false });
    try {
      return (await loadModels([engine], options.model ?? {})).models;
    } catch (thrown) {
      if (!isUnreachable(thrown)) throw thrown;
    }
  }
}

function startView(
  config: KedgeConfig,
  random: () => number,
  log: AllInOneLog,
  closers: (() => void)[],
): { bus: InProcessBus; store: MemoryStore } {
  const bus = new InProcessBus({
    onHandlerError: (thrown) => log("error", `A bus handler failed: ${String(thrown)}`),
  });
  const store = new MemoryStore({
    now: () => performance.now(),
    random,
    horizonMs: config.feed.horizonMs,
    maxPredictedEntries: config.router.maxTreeSize,
  });
  const indexer = new Indexer({
    bus,
    store,
    now: () => performance.now(),
    name: "all-in-one",
    onError: (error, doing) => log("error", `The indexer failed at ${doing}: ${error.message}`),
  });
  indexer.start();
  const tick = setInterval(() => indexer.tick(), INDEXER_TICK_MS);
  closers.push(() => {
    clearInterval(tick);
    indexer.stop();
  });
  return { bus, store };
}

async function serve(
  { config, log = () => {}, logDecisions = false }: AllInOneOptions,
  store: MemoryStore,
  transport: Ingress,
  models: readonly LoadedModel[],
  random: () => number,
): Promise<ServedGateway> {
  let serving = true;
  const app = createGateway({
    config,
    store,
    transport,
    hasher: await createHasher(),
    tokenizers: (card) => models.find((model) => model.card.model === card.model)?.tokenizer ?? null,
    vocabularies: (card) => models.find((model) => model.card.model === card.model)?.vocabulary ?? null,
    clock: monotonicClock,
    random,
    sha256: (text) => createHash("sha256").update(text).digest(),
    log: {
      warn: (message, fields) => log("warn", message, fields),
      ...(logDecisions && { debug: (message: string) => log("debug", message) }),
    },
    registry: new Registry(),
    isServing: () => serving,
  });
  const { host, port, limits } = config;
  const served = await serveGateway({ app, host, port, drainTimeoutMs: limits.drainTimeoutMs }).catch(
    (thrown) => {
      throw cannotListen(thrown, host, port);
    },
  );
  return {
    url: served.url,
    close: () => {
      serving = false;
      return served.close();
    },
  };
}

/** The two that users meet, with what to do; the rest as the system says it. */
function cannotListen(thrown: NodeJS.ErrnoException, host: string, port: number): KedgeError {
  const reasons: Readonly<Record<string, string>> = {
    EADDRINUSE: `port ${port} is in use; choose another with --port`,
    EACCES: `port ${port} needs more rights; choose one above 1023 with --port`,
  };
  const reason = reasons[thrown.code ?? ""] ?? thrown.message;
  return new KedgeError("config_invalid", `Cannot listen on ${host}: ${reason}.`, {
    cause: thrown,
    param: "port",
  });
}

async function modelsOf(options: AllInOneOptions, withMocks: boolean): Promise<ModelsOfEngines> {
  const { models, silent } = await loadModels(options.engines ?? [], options.model ?? {});
  if (!withMocks) return { models, silent };
  const mock = await loadModel(MODEL_DIR, { ...options.model, model: MOCK_MODEL });
  return { models: [...models, mock], silent };
}

const PLACE = { region: "local", cluster: "local" } as const;

function mockSpec(mock: MockProcess, index: number): EngineSpec {
  return {
    id: `mock-${index}`,
    url: mock.url,
    events: mock.events,
    replay: mock.replay,
    role: "aggregated",
    ...PLACE,
    node: hostname(),
    model: MOCK_MODEL,
  };
}

function engineSpec(engine: EngineOption, config: KedgeConfig): EngineSpec {
  const { host } = new URL(engine.url);
  return {
    id: engine.id ?? host,
    url: engine.url,
    ...(engine.apiKey !== null && { apiKey: engine.apiKey }),
    ...(engine.events !== null && { events: engine.events, replay: engine.replay }),
    role: engine.role,
    ...PLACE,
    node: hostname(),
    ...(config.router.kvCacheBlockSize !== null && { blockSize: config.router.kvCacheBlockSize }),
  };
}

function ingressEngine({ id, url, apiKey }: EngineSpec, agent: Agent): IngressEngine {
  const status = agent.status().workers.find(({ worker }) => worker === id);
  return { worker: id, url, dpSize: status?.ranks.length ?? 1, ...(apiKey !== undefined && { apiKey }) };
}

function listing(spec: EngineSpec, mock: MockProcess | null, agent: Agent): EngineListing {
  const status = agent.status().workers.find(({ worker }) => worker === spec.id);
  const ranks = status?.ranks ?? [];
  const events = typeof spec.events === "string" ? spec.events : (spec.events?.[0] ?? "found at the engine");
  return {
    worker: spec.id,
    url: spec.url,
    role: spec.role,
    serving: status?.state === "serving",
    events: ranks.some((rank) => rank.kvEvents) ? events : null,
    pid: mock?.pid ?? null,
  };
}
