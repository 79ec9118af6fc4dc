/** The engines of one node and what serves them: mocks, models, agent, ingress; an engine that is down joins when it answers. */

import { hostname } from "node:os";
import { setTimeout } from "node:timers/promises";
import { Agent, type AgentStatus, type EngineSpec } from "../../gpu-agent/agent.ts";
import { MODEL_DIR } from "../../gpu-agent/engines/mock/index.ts";
import { Ingress, type IngressEngine } from "../../gpu-agent/ingress/index.ts";
import type { KedgeConfig } from "../config/index.ts";
import { toKedgeError } from "../errors/index.ts";
import type { EventBus } from "../events/bus.ts";
import type { AgentAddress } from "../fleet/types.ts";
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

export type NodeLog = (
  level: "debug" | "info" | "warn" | "error",
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void;

export interface NodeEnginesOptions {
  readonly config: KedgeConfig;
  readonly bus: EventBus;
  /** Engines that already run, or will. */
  readonly engines: readonly EngineOption[];
  /** Mock engines to start, as child processes. */
  readonly mock: MockFleetOptions | null;
  readonly model: ModelSettings;
  /** Before the names of workers that were given none, so that they are unique in the fleet; e.g. `node-1/`. */
  readonly namePrefix: string;
  /** Engines that are all down are waited for; else that is an error. */
  readonly waitForAll: boolean;
  /** A change of load waits at most this long for others, in milliseconds. */
  readonly coalesceMs?: number;
  readonly log: NodeLog;
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

/** How often an engine that did not answer at the start is asked again. */
const JOIN_POLL_MS = 1_000;
/** Agents walk over what they hold well before the lease of it ends. */
const REASSERTS_PER_HORIZON = 4;

/** What a process calls the machine that it runs on. */
export function nodeName({ place }: KedgeConfig): string {
  return (
    place.node ??
    hostname()
      .replace(/[^\w.-]/g, "-")
      .slice(0, 64)
  );
}

/**
 * Mocks run and models are loaded when it resolves; nobody serves before `begin`.
 * Errors: `config_invalid`, `upstream_unreachable` if no engine answers; what was started is ended before.
 */
export async function prepareEngines(options: NodeEnginesOptions): Promise<NodeEngines> {
  const mocks = options.mock === null ? [] : await startMockFleet(options.mock);
  try {
    return new NodeEngines(options, mocks, await modelsOf(options));
  } catch (thrown) {
    await Promise.all(mocks.map((mock) => mock.close()));
    throw thrown;
  }
}

export class NodeEngines {
  readonly agent: Agent;
  readonly ingress: Ingress;
  /** Grows when an engine that comes late brings a model. */
  readonly models: LoadedModel[];
  private readonly options: NodeEnginesOptions;
  private readonly mocks: readonly MockProcess[];
  private readonly silent: readonly EngineOption[];
  private readonly stopped = new AbortController();
  private specs: readonly EngineSpec[] = [];
  private late: readonly EngineSpec[] = [];

  constructor(options: NodeEnginesOptions, mocks: readonly MockProcess[], found: ModelsOfEngines) {
    const { config, bus, coalesceMs, log } = options;
    this.options = options;
    this.mocks = mocks;
    this.models = found.models;
    this.silent = found.silent;
    this.agent = new Agent({
      bus,
      engines: [],
      models: this.models,
      kvEvents: config.router.kvEvents,
      reassertMs: config.feed.horizonMs / REASSERTS_PER_HORIZON,
      timers: promptTimers,
      ...(coalesceMs !== undefined && { coalesceMs }),
      onState: (worker, state) => this.ingress.watched(worker, state === "lost"),
      log,
    });
    this.ingress = new Ingress({
      ledger: this.agent.ledger,
      timers: monotonicClock,
      heartbeatMs: config.limits.heartbeatMs,
    });
  }

  /**
   * Resolves when every engine that answers serves, and is known as reachable at `address` (null: in this process).
   * Errors: `config_invalid`, `engine_mismatch`.
   */
  async begin(address: AgentAddress | null): Promise<void> {
    const { engines } = this.options;
    const present = engines.filter((engine) => !this.silent.includes(engine));
    this.specs = [
      ...this.mocks.map((mock, i) => this.mockSpec(mock, i, address)),
      ...present.map((engine) => this.engineSpec(engine, address)),
    ];
    this.late = this.silent.map((engine) => this.engineSpec(engine, address));
    await this.agent.start();
    await Promise.all(this.specs.map((spec) => this.agent.add(spec)));
    for (const spec of this.specs) this.ingress.addEngine(ingressEngine(spec, this.agent));
    this.silent.forEach((engine, i) => void this.joinLater(engine, this.late[i]!));
  }

  listing(): EngineListing[] {
    return [...this.specs, ...this.late].map((spec, i) => listing(spec, this.mocks[i] ?? null, this.agent));
  }

  status(): AgentStatus {
    return this.agent.status();
  }

  /** Tells gateways that nobody serves here from now on, so that they send no more while running requests end; nobody joins any more. */
  leave(): void {
    this.stopped.abort();
    for (const { id } of [...this.specs, ...this.late]) this.agent.remove(id);
  }

  /** Lets running requests finish, up to config.limits.drainTimeoutMs; the rest is ended. */
  drain(): Promise<void> {
    return this.ingress.drain(this.options.config.limits.drainTimeoutMs);
  }

  /** Drains, then ends everything that was started. Safe to call twice. */
  async close(): Promise<void> {
    this.stopped.abort();
    await this.drain();
    this.agent.stop();
    await Promise.all(this.mocks.map((mock) => mock.close()));
  }

  /** One engine that is down must not keep the others from serving: it joins when it answers. */
  private async joinLater(engine: EngineOption, spec: EngineSpec): Promise<void> {
    const { log } = this.options;
    log("warn", `no engine answers at ${engine.url}; it joins when it does`);
    try {
      for (const model of await this.loadOnceThere(engine)) {
        if (!this.models.some(({ card }) => card.model === model.card.model)) this.models.push(model);
      }
      await this.agent.add(spec);
      this.ingress.addEngine(ingressEngine(spec, this.agent));
    } catch (thrown) {
      if (!this.stopped.signal.aborted)
        log("error", `The engine at ${engine.url} cannot join: ${toKedgeError(thrown).message}`);
    }
  }

  private async loadOnceThere(engine: EngineOption): Promise<LoadedModel[]> {
    const { signal } = this.stopped;
    for (;;) {
      await setTimeout(JOIN_POLL_MS, undefined, { signal, ref: false });
      try {
        const { models } = await loadModels([engine], this.options.model);
        signal.throwIfAborted();
        return models;
      } catch (thrown) {
        if (!isUnreachable(thrown)) throw thrown;
      }
    }
  }

  private mockSpec(mock: MockProcess, index: number, address: AgentAddress | null): EngineSpec {
    return {
      id: `${this.options.namePrefix}mock-${index}`,
      url: mock.url,
      events: mock.events,
      replay: mock.replay,
      role: "aggregated",
      ...this.place(address),
      model: MOCK_MODEL,
    };
  }

  private engineSpec(engine: EngineOption, address: AgentAddress | null): EngineSpec {
    const { namePrefix, config } = this.options;
    return {
      id: engine.id ?? `${namePrefix}${new URL(engine.url).host}`,
      url: engine.url,
      ...(engine.apiKey !== null && { apiKey: engine.apiKey }),
      ...(engine.events !== null && { events: engine.events, replay: engine.replay }),
      role: engine.role,
      ...this.place(address),
      ...(config.router.kvCacheBlockSize !== null && { blockSize: config.router.kvCacheBlockSize }),
    };
  }

  private place(agent: AgentAddress | null) {
    const { config } = this.options;
    const { region, cluster } = config.place;
    return { region, cluster, node: nodeName(config), ...(agent !== null && { agent }) };
  }
}

async function modelsOf({ engines, mock, model, waitForAll }: NodeEnginesOptions): Promise<ModelsOfEngines> {
  const found = await loadModels(engines, model).catch((thrown: unknown) => {
    if (waitForAll && isUnreachable(thrown)) return { models: [], silent: [...engines] };
    throw thrown;
  });
  if (mock === null) return found;
  const own = await loadModel(MODEL_DIR, { ...model, model: MOCK_MODEL });
  return { ...found, models: [...found.models, own] };
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
