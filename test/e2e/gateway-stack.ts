/** The whole of one machine for tests: mock engines over HTTP and ZMQ, agent, bus, indexer, memory view, ingress, gateway, Node server. */

import { Agent, type AgentOptions, loadAgentModel } from "../../gpu-agent/agent.ts";
import {
  MODEL_DIR,
  type MockEngine,
  type MockEngineOptions,
  startMockEngine,
} from "../../gpu-agent/engines/mock/index.ts";
import { Ingress } from "../../gpu-agent/ingress/index.ts";
import { defineConfig, type KedgeConfigInput } from "../../src/config/index.ts";
import { InProcessBus } from "../../src/events/in-process.ts";
import { createGateway } from "../../src/gateway/index.ts";
import { Indexer } from "../../src/indexer/index.ts";
import { serveGateway } from "../../src/node/server.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { startTestDoor } from "./gateway-door.ts";
import { eventually, realClock } from "./gateway-fleet.ts";

export interface Stack {
  readonly url: string;
  readonly engines: readonly MockEngine[];
  readonly store: MemoryStore;
  readonly bus: InProcessBus;
  readonly agent: Agent;
  readonly registry: Registry;
  /** What went wrong inside: handlers of the bus, the indexer. */
  readonly errors: readonly unknown[];
  /** Moves the view's clock on, for leases to end. Stay below the times after which silence counts. */
  skip(ms: number): void;
  /** Resolves when every report says that nothing is under way. */
  idle(): Promise<void>;
  close(): Promise<void>;
}

export interface StackOptions {
  readonly engines: readonly MockEngineOptions[];
  readonly config?: KedgeConfigInput;
  readonly agent?: Partial<AgentOptions>;
  readonly random?: () => number;
  /** The gateway reaches the agent as one of another process would: by signed plans at its door. */
  readonly door?: boolean;
}

/** Workers are named `w0`, `w1`, … in the order of the engines; resolves when all are in the fleet. */
export async function startStack({
  engines,
  config,
  agent: agentOptions,
  random = Math.random,
  door: hasDoor = false,
}: StackOptions): Promise<Stack> {
  const settings = defineConfig({ host: "127.0.0.1", port: 0, explain: true, ...config });
  const running = await Promise.all(
    engines.map((options) =>
      startMockEngine({
        kvEvents: {
          enable_kv_cache_events: true,
          endpoint: "tcp://*:0",
          replay_endpoint: "tcp://*:0",
          topic: "kv-events",
        },
        speed: 50,
        ...options,
      }),
    ),
  );
  const errors: unknown[] = [];
  const bus = new InProcessBus({ onHandlerError: (thrown) => errors.push(thrown) });
  let skippedMs = 0;
  const store = new MemoryStore({ now: () => performance.now() + skippedMs, random });
  const indexer = new Indexer({
    bus,
    store,
    now: () => performance.now(),
    name: "test",
    onError: (error) => errors.push(error),
  });
  indexer.start();
  const beat = setInterval(() => indexer.tick(), 500);
  const agent = new Agent({
    bus,
    models: [await loadAgentModel({ path: MODEL_DIR, model: "mock" })],
    engines: running.map((engine, i) => ({
      id: `w${i}`,
      url: engine.url,
      events: engine.eventsEndpoints,
      replay: engine.replayEndpoints.length === 0 ? null : engine.replayEndpoints,
      role: "aggregated",
      region: "r",
      cluster: "c",
      node: "n",
    })),
    kvEvents: settings.router.kvEvents,
    onState: (worker, state) => ingress.watched(worker, state === "lost"),
    ...agentOptions,
  });
  const ingress = new Ingress({
    ledger: agent.ledger,
    timers: realClock,
    heartbeatMs: settings.limits.heartbeatMs,
  });
  running.forEach((engine, i) => {
    ingress.addEngine({ worker: `w${i}`, url: engine.url, dpSize: engines[i]?.dataParallelSize ?? 1 });
  });
  await agent.start();
  const door = hasDoor
    ? await startTestDoor(ingress, { standing: (plan) => agent.standing(plan), status: () => agent.status() })
    : null;
  const registry = new Registry();
  const app = createGateway({
    config: settings,
    store,
    transport: door?.transport ?? ingress,
    hasher: await createHasher(),
    clock: realClock,
    random,
    log: { warn: () => {} },
    registry,
  });
  const served = await serveGateway({ app, host: settings.host, port: 0, drainTimeoutMs: 0 });
  await eventually(() => store.fleet().length >= running.length);
  return {
    url: served.url,
    engines: running,
    store,
    bus,
    agent,
    registry,
    errors,
    skip: (ms) => {
      skippedMs += ms;
    },
    idle: () =>
      eventually(() =>
        store.fleet().every(({ load, reserved }) => load.activeBlocks === 0 && reserved.requests === 0),
      ),
    close: async () => {
      clearInterval(beat);
      await served.close();
      await ingress.drain(0);
      await door?.close();
      agent.stop();
      indexer.stop();
      await Promise.all(running.map((engine) => engine.close()));
    },
  };
}
