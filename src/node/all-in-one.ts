/** The whole of Kedge in one process: gateway, agent, memory view and bus; engines are named ones or mocks (design §1). */

import { createHash } from "node:crypto";
import type { AgentStatus } from "../../gpu-agent/agent.ts";
import type { KedgeConfig } from "../config/index.ts";
import { InProcessBus } from "../events/in-process.ts";
import { createGateway } from "../gateway/index.ts";
import { Indexer } from "../indexer/index.ts";
import { createHasher } from "../prefix/hasher.ts";
import { MemoryStore } from "../store/memory/index.ts";
import { Registry } from "../telemetry/registry.ts";
import { monotonicClock } from "./clock.ts";
import { type Closers, startWithClosers } from "./closers.ts";
import type { EngineOption } from "./engine-option.ts";
import { cannotListen } from "./listen.ts";
import type { MockFleetOptions } from "./mock-fleet.ts";
import type { ModelSettings } from "./models.ts";
import { type EngineListing, type NodeEngines, type NodeLog, prepareEngines } from "./node-engines.ts";
import { type ServedGateway, serveGateway } from "./server.ts";

export interface AllInOneOptions {
  readonly config: KedgeConfig;
  /** Engines that already run. */
  readonly engines?: readonly EngineOption[];
  /** Mock engines to start, as child processes. */
  readonly mock?: MockFleetOptions | null;
  readonly model?: ModelSettings;
  /** Uniform in [0, 1); default Math.random. */
  readonly random?: () => number;
  readonly log?: NodeLog;
  /** Print decisions as Dynamo does, at level `debug`. */
  readonly logDecisions?: boolean;
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

/**
 * Resolves when the gateway listens and every engine that answers serves; others join when they answer.
 * Errors: `config_invalid`, `engine_mismatch`, `upstream_unreachable` if no engine answers; what was started is ended before.
 */
export function startAllInOne(options: AllInOneOptions): Promise<AllInOne> {
  return startWithClosers((closers, close) => start(options, closers, close));
}

async function start(
  options: AllInOneOptions,
  closers: Closers,
  close: () => Promise<void>,
): Promise<AllInOne> {
  const { config, log = () => {}, random = Math.random } = options;
  const { bus, store } = startView(config, random, log, closers);
  const engines = await prepareEngines({
    config,
    bus,
    engines: options.engines ?? [],
    mock: options.mock ?? null,
    model: options.model ?? {},
    namePrefix: "",
    waitForAll: false,
    // A client's next turn may come within a millisecond, and must not find its last one still counted as load.
    coalesceMs: 0,
    log,
  });
  closers.push(() => engines.close());
  await engines.begin(null);
  const served = await serve(options, store, engines, random);
  closers.push(() => served.close());
  return { url: served.url, engines: engines.listing(), store, agentStatus: () => engines.status(), close };
}

function startView(
  config: KedgeConfig,
  random: () => number,
  log: NodeLog,
  closers: Closers,
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
  { ingress, models }: NodeEngines,
  random: () => number,
): Promise<ServedGateway> {
  let serving = true;
  const app = createGateway({
    config,
    store,
    transport: ingress,
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
