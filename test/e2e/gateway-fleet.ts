/** A whole gateway for tests: real sockets on both sides, memory view, the agent's ingress, scripted engines. */

import { Ingress } from "../../gpu-agent/ingress/index.ts";
import type { RequestLedger } from "../../gpu-agent/load/types.ts";
import { defineConfig, type KedgeConfigInput } from "../../src/config/index.ts";
import type { IncarnationKey, Registration } from "../../src/fleet/types.ts";
import { type Clock, createGateway } from "../../src/gateway/index.ts";
import { serveGateway } from "../../src/node/server.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { WorkerTransport } from "../../src/plan/transport.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import type { ModelCard } from "../../src/prefix/types.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import { Registry } from "../../src/telemetry/registry.ts";

export const MODEL = "test-model";

export const CARD: ModelCard = {
  version: 1,
  model: MODEL,
  scheme: "bytes",
  unitSize: 128,
  chatTemplate:
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
  namedTemplates: {},
  contentFormat: "string",
  bosToken: null,
  eosToken: null,
  specialTokens: {},
  addedPrefix: null,
  leadingSpace: null,
  normalizer: null,
  strippingTokens: [],
  timeZone: "UTC",
  bytesPerToken: 4,
  maxModelLen: 8_192,
};

export function registration(worker: string, overrides: Partial<Registration> = {}): Registration {
  return {
    worker,
    rank: 0,
    incarnation: "1",
    agent: null,
    model: MODEL,
    servedNames: [MODEL],
    adapters: [],
    card: CARD,
    role: "aggregated",
    region: "r",
    cluster: "c",
    node: "n",
    engine: "scripted",
    dpSize: 1,
    blockSize: 16,
    totalBlocks: 1_000,
    maxNumBatchedTokens: 2_048,
    maxNumSeqs: 256,
    maxModelLen: 8_192,
    kvEvents: true,
    saltInEvents: true,
    taints: [],
    ...overrides,
  };
}

/** Time that passes only when told to; timers fire in order. */
export class ManualClock implements Clock {
  private nowMs = 1_000;
  private timers: { atMs: number; callback: () => void; handle: number }[] = [];
  private nextHandle = 1;

  now = (): number => this.nowMs;
  wall = (): number => 1_700_000_000_000 + this.nowMs;

  setTimeout = (callback: () => void, delayMs: number): number => {
    this.timers.push({ atMs: this.nowMs + delayMs, callback, handle: this.nextHandle });
    return this.nextHandle++;
  };

  clearTimeout = (handle: unknown): void => {
    this.timers = this.timers.filter((timer) => timer.handle !== handle);
  };

  get pending(): number {
    return this.timers.length;
  }

  advance(ms: number): void {
    const untilMs = this.nowMs + ms;
    for (;;) {
      const due = this.timers.filter(({ atMs }) => atMs <= untilMs).sort((a, b) => a.atMs - b.atMs)[0];
      if (due === undefined) break;
      this.nowMs = Math.max(this.nowMs, due.atMs);
      this.clearTimeout(due.handle);
      due.callback();
    }
    this.nowMs = untilMs;
  }
}

export const realClock: Clock = {
  now: () => performance.now(),
  wall: () => Date.now(),
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as NodeJS.Timeout),
};

export interface FleetOptions {
  /** Worker name → engine URL; registered in this order, one rank each unless `ranks` says otherwise. */
  readonly engines: Readonly<Record<string, string>>;
  readonly config?: KedgeConfigInput;
  readonly clock?: Clock;
  readonly registrations?: readonly Registration[];
  readonly transport?: (ingress: WorkerTransport) => WorkerTransport;
  readonly random?: () => number;
}

export interface TestFleet {
  readonly url: string;
  readonly store: MemoryStore;
  readonly ingress: Ingress;
  readonly app: ReturnType<typeof createGateway>;
  /** Plans in the order in which they were sent. */
  readonly plans: Plan[];
  readonly warnings: string[];
  /** Reports a rank's active blocks and nothing else under way. */
  setLoad(key: IncarnationKey, activeBlocks: number): void;
  /** The value of a metric line, e.g. `kedge_aborts_total{model="m",phase="streaming"}`; 0 if absent. */
  metric(line: string): number;
  close(): Promise<void>;
}

/** Stands in for an agent's load accounts: a request's reservation is covered the moment it ends. */
class InstantLedger implements RequestLedger {
  private readonly store: MemoryStore;
  private readonly plans = new Map<string, Plan>();
  private sequence = 0;

  constructor(store: MemoryStore) {
    this.store = store;
  }

  admitted(plan: Plan): void {
    this.plans.set(plan.requestId, plan);
  }

  firstData(): void {}

  progressed(): void {}

  finished(requestId: string): void {
    const plan = this.plans.get(requestId);
    if (plan !== undefined) this.report(plan, 0, [requestId]);
  }

  report(
    { worker, rank, incarnation }: IncarnationKey,
    activeBlocks: number,
    admitted: readonly string[] = [],
  ): void {
    this.sequence++;
    const load = { activeBlocks, prefillTokens: 0, running: 0, waiting: 0 };
    const { sequence } = this;
    this.store.report([{ worker, rank, incarnation, sequence, ...load, admitted, publishedSequence: 0 }]);
  }
}

export async function startFleet(options: FleetOptions): Promise<TestFleet> {
  const clock = options.clock ?? realClock;
  const random = options.random ?? (() => 0);
  const config = defineConfig({ host: "127.0.0.1", port: 0, explain: true, ...options.config });
  const store = new MemoryStore({ now: () => clock.now(), random });
  const ledger = new InstantLedger(store);
  const ingress = new Ingress({ ledger, timers: clock, heartbeatMs: config.limits.heartbeatMs });
  const registrations =
    options.registrations ?? Object.keys(options.engines).map((worker) => registration(worker));
  for (const [worker, url] of Object.entries(options.engines)) {
    const dpSize = registrations.find((one) => one.worker === worker)?.dpSize ?? 1;
    ingress.addEngine({ worker, url, dpSize });
  }
  for (const one of registrations) {
    store.register(one);
    ledger.report(one, 0);
  }
  const plans: Plan[] = [];
  const warnings: string[] = [];
  const registry = new Registry();
  const inner = options.transport?.(ingress) ?? ingress;
  const app = createGateway({
    config,
    store,
    transport: {
      send: (plan, request, signal) => {
        plans.push(plan);
        return inner.send(plan, request, signal);
      },
    },
    hasher: await createHasher(),
    clock,
    random,
    log: { warn: (message, fields) => warnings.push(`${message} ${JSON.stringify(fields ?? {})}`) },
    registry,
  });
  const served = await serveGateway({ app, host: config.host, port: config.port, drainTimeoutMs: 0 });
  return {
    url: served.url,
    store,
    ingress,
    app,
    plans,
    warnings,
    setLoad: (key, activeBlocks) => ledger.report(key, activeBlocks),
    metric: (line) => {
      const found = registry
        .encode()
        .split("\n")
        .find((one) => one.startsWith(`${line} `));
      return found === undefined ? 0 : Number(found.slice(line.length + 1));
    },
    close: async () => {
      await served.close();
      await ingress.drain(0);
    },
  };
}

/** Waits until the condition holds, at most two seconds; for outcomes that no event announces. */
export async function eventually(condition: () => boolean): Promise<void> {
  const endMs = performance.now() + 2_000;
  while (!condition()) {
    if (performance.now() > endMs) throw new Error("The condition did not come true within 2 s.");
    await new Promise(setImmediate);
  }
}
