/** The GPU agent of one node: watches engines, mirrors their caches, reports their load, answers snapshot requests (design §2). */

import { KedgeError } from "../src/errors/index.ts";
import type { EventBus, Unsubscribe } from "../src/events/bus.ts";
import type { IncarnationKey } from "../src/fleet/types.ts";
import type { EngineSpec } from "./bridge/facts.ts";
import type { PlanStanding, WorkerState, WorkerStatus } from "./bridge/status.ts";
import { EngineWorker, type Log } from "./bridge/worker.ts";
import type { AgentModel } from "./engines/model.ts";
import { LoadLedger, type Timers } from "./load/ledger.ts";
import type { RequestLedger } from "./load/types.ts";

export type { EngineSpec } from "./bridge/facts.ts";
export type { PlanStanding, WorkerState, WorkerStatus } from "./bridge/status.ts";
export type { Log } from "./bridge/worker.ts";
export {
  type AgentModel,
  cardOf,
  type FileModel,
  loadAgentModel,
  type ModelCardOptions,
  readModelFiles,
} from "./engines/model.ts";

export interface AgentOptions {
  readonly bus: EventBus;
  readonly engines: readonly EngineSpec[];
  /** Cards and keyers of the models that the engines serve. */
  readonly models: readonly AgentModel[];
  /** False: no events are used, engines are judged by predictions; default true. */
  readonly kvEvents?: boolean;
  readonly log?: Log;
  /** One-shot timers; default the process's. */
  readonly timers?: Timers;
  /** Monotonic milliseconds; default the process's. */
  readonly now?: () => number;
  /** A new random name for each life of a rank. */
  readonly newIncarnation?: () => string;
  /** Health and metrics are asked for so often; default 1 s. */
  readonly pollMs?: number;
  /** Failed polls in a row after which an engine is lost, failed scrapes after which its load is unknown; default 3. */
  readonly lostAfter?: number;
  /** A walk over all held keys takes so long; default 15 minutes. At most a quarter of the view's horizon. */
  readonly reassertMs?: number;
  /** An engine serves, is lost, or serves again. */
  readonly onState?: (worker: string, state: WorkerState) => void;
  /** A change of load waits at most this long for others; default 5 ms. */
  readonly coalesceMs?: number;
}

export interface AgentStatus {
  readonly workers: readonly WorkerStatus[];
  /** Requests that this node carries now. */
  readonly requests: number;
}

/** Engines may be added and removed while it runs. */
export class Agent {
  readonly #options: AgentOptions;
  readonly #ledger: LoadLedger;
  readonly #workers = new Map<string, EngineWorker>();
  #unsubscribe: Unsubscribe[] = [];

  constructor(options: AgentOptions) {
    this.#options = options;
    this.#ledger = new LoadLedger({
      publish: (report) => options.bus.publishLoad(report),
      timers: this.#timers,
      ...(options.coalesceMs !== undefined && { coalesceMs: options.coalesceMs }),
    });
  }

  /** Where an ingress says what it carries. */
  get ledger(): RequestLedger {
    return this.#ledger;
  }

  /**
   * Resolves when every engine serves; until then they are waited for. Errors: `engine_mismatch` and `config_invalid` of an engine that
   * can never fit; the others go on.
   */
  async start(): Promise<void> {
    const { bus } = this.#options;
    this.#unsubscribe = [
      bus.serveSnapshots((key) => this.#workers.get(key.worker)?.snapshot(key) ?? null),
      bus.onRollCall(() => {
        for (const worker of this.#workers.values()) worker.announce();
      }),
    ];
    await Promise.all(this.#options.engines.map((engine) => this.add(engine)));
  }

  /** Resolves when the engine serves. Errors: as `start`, and `config_invalid` for a name in use. */
  async add(engine: EngineSpec): Promise<void> {
    if (this.#workers.has(engine.id)) {
      throw new KedgeError("config_invalid", `There are two engines named ${engine.id}.`, { param: "id" });
    }
    const {
      bus,
      models,
      kvEvents = true,
      log = () => undefined,
      pollMs,
      lostAfter,
      reassertMs,
      onState,
    } = this.#options;
    const worker = new EngineWorker(engine, {
      bus,
      models,
      ledger: this.#ledger,
      timers: this.#timers,
      now: this.#options.now ?? (() => performance.now()),
      newIncarnation: this.#options.newIncarnation ?? (() => crypto.randomUUID()),
      log,
      kvEvents,
      ...(pollMs !== undefined && { pollMs }),
      ...(lostAfter !== undefined && { lostAfter }),
      ...(reassertMs !== undefined && { reassertMs }),
      ...(onState !== undefined && { onState: (state) => onState(engine.id, state) }),
    });
    this.#workers.set(engine.id, worker);
    await worker.start();
  }

  /** Retires the engine's ranks and forgets it. */
  remove(id: string): void {
    this.#workers.get(id)?.stop();
    this.#workers.delete(id);
  }

  /** To be called by whoever dropped this engine's cache: engines say so only with their next batch. */
  cleared(id: string): void {
    this.#workers.get(id)?.cleared();
  }

  /** Whether what was planned for this life of a rank can be carried out now. */
  standing(key: IncarnationKey): PlanStanding {
    return this.#workers.get(key.worker)?.standing(key) ?? "absent";
  }

  status(): AgentStatus {
    return {
      workers: [...this.#workers.values()].map((worker) => worker.status()),
      requests: this.#ledger.carried,
    };
  }

  /** Retires everything at once; requests under way are the ingress's to drain before. */
  stop(): void {
    for (const worker of this.#workers.values()) worker.stop();
    for (const unsubscribe of this.#unsubscribe) unsubscribe();
    this.#ledger.stop();
  }

  get #timers(): Timers {
    return this.#options.timers ?? PROCESS_TIMERS;
  }
}

const PROCESS_TIMERS: Timers = {
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as NodeJS.Timeout),
};
