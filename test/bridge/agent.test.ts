/** The agent with engines over real HTTP and ZMQ: found, checked, mirrored, reported, lost, back. */

import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Publisher } from "zeromq";
import { Agent, type AgentModel, type AgentOptions, type EngineSpec } from "../../gpu-agent/agent.ts";
import type { InProcessBus } from "../../src/events/in-process.ts";
import type { IncarnationKey, LoadReport, Registration } from "../../src/fleet/types.ts";
import type { Plan } from "../../src/plan/index.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import type { ModelCard } from "../../src/prefix/types.ts";
import type { MemoryStore } from "../../src/store/memory/index.ts";
import { depthIn, MODEL, newBus, type Scheme, tokensScheme, viewOf } from "./harness.ts";
import { ManualTimers } from "./manual-timers.ts";
import { metricsText, TestEngine, TestEngineHttp, type TestEngineOptions, until } from "./test-engine.ts";

let hasher: Hasher;
let scheme: Scheme;
let model: AgentModel;
beforeAll(async () => {
  hasher = await createHasher();
  scheme = tokensScheme(hasher);
  model = {
    card: { version: 1, model: MODEL, scheme: "tokens", unitSize: 16, maxModelLen: null } as ModelCard,
    keyer: scheme.keyer,
  };
});

const open: (() => void)[] = [];
afterEach(() => {
  for (const close of open.splice(0).reverse()) close();
});

let bus: InProcessBus;
let view: MemoryStore;
let registrations: Registration[];
let retirements: IncarnationKey[];
let loads: LoadReport[];
beforeEach(() => {
  bus = newBus();
  view = viewOf(bus);
  registrations = [];
  retirements = [];
  loads = [];
  bus.onRegistration((registration) => registrations.push(registration));
  bus.onRetirement((key) => retirements.push(key));
  bus.onLoad((report) => loads.push(report));
});

async function engineWith(options: TestEngineOptions = {}): Promise<TestEngine> {
  const engine = await TestEngine.start(options);
  open.push(() => engine.close());
  return engine;
}

async function httpEngine(): Promise<TestEngineHttp> {
  const http = await TestEngineHttp.start();
  open.push(() => http.close());
  return http;
}

function specOf(http: TestEngineHttp, more: Partial<EngineSpec> = {}): EngineSpec {
  return { id: "w", url: http.url, role: "aggregated", region: "r", cluster: "c", node: "n", ...more };
}

function agentFor(engines: readonly EngineSpec[], more: Partial<AgentOptions> = {}): Agent {
  const agent = new Agent({ bus, engines, models: [model], pollMs: 20, ...more });
  open.push(() => agent.stop());
  return agent;
}

describe("discovery", () => {
  test("an engine's own word becomes the registration; its event sockets are found", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    http.adapters = ["tide"];
    http.eventSources = {
      0: {
        enable_kv_cache_events: true,
        publisher: "zmq",
        endpoint: engine.endpoint,
        replay_endpoint: engine.replayEndpoint,
        topic: "",
      },
    };
    const { event, hashes } = engine.store(null, [1, 2, 3]);
    await engine.publish([event]);
    const agent = agentFor([specOf(http)]);
    await agent.start();
    expect(registrations[0]).toMatchObject({
      worker: "w",
      rank: 0,
      model: MODEL,
      servedNames: ["served", "tide"],
      adapters: ["tide"],
      engine: "vllm 0.32.0",
      dpSize: 1,
      blockSize: 16,
      totalBlocks: 1_000,
      maxModelLen: 4_096,
      kvEvents: true,
      saltInEvents: true,
    });
    await until(() => depthIn(view, scheme, engine.promptOf(hashes[2]!)) === 3, "3 blocks");
    const snapshot = await bus.requestSnapshot(registrations[0]!);
    expect(snapshot?.ops.flatMap((op) => [...op.keys])).toHaveLength(3);
    expect(agent.status().workers[0]).toMatchObject({
      state: "serving",
      fault: null,
      ranks: [{ blocks: 3, watermark: 0 }],
    });
  });

  test("ranks: each has its sockets at port + rank, its own cache and its share of the blocks", async () => {
    const http = await httpEngine();
    http.metrics = metricsText({ ranks: 2, totalBlocks: 2_048 });
    const engines = [
      await engineWith({ rank: 0, replay: null }),
      await engineWith({ rank: 1, replay: null }),
    ];
    const agent = agentFor([specOf(http, { events: engines.map(({ endpoint }) => endpoint) })]);
    await agent.start();
    expect(registrations.map(({ rank, dpSize, totalBlocks }) => [rank, dpSize, totalBlocks])).toEqual([
      [0, 2, 1_024],
      [1, 2, 1_024],
    ]);
    const blocks = () => agent.status().workers[0]!.ranks.map((rank) => rank.blocks);
    await until(() => {
      publishAll(engines);
      return blocks().every((count) => count > 0);
    }, "both ranks");
    expect(blocks()).toEqual([1, 2]);
  });

  test("an engine without events is registered for predictions", async () => {
    const http = await httpEngine();
    await agentFor([specOf(http)]).start();
    expect(registrations[0]!.kvEvents).toBe(false);
  });

  test("events can be turned off for all", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    await agentFor([specOf(http, { events: engine.endpoint })], { kvEvents: false }).start();
    expect(registrations[0]!.kvEvents).toBe(false);
  });

  test("a block size that disagrees with the configuration is an error that says what to set", async () => {
    const http = await httpEngine();
    const agent = agentFor([specOf(http, { blockSize: 32 })]);
    await expect(agent.start()).rejects.toMatchObject({
      code: "engine_mismatch",
      message: expect.stringContaining("Set the block size to 16"),
    });
    expect(agent.status().workers[0]).toMatchObject({
      state: "stopped",
      fault: expect.stringContaining("16"),
    });
    expect(registrations).toEqual([]);
  });

  test("so is one that does not fit the card's unit", async () => {
    const http = await httpEngine();
    http.metrics = metricsText({ blockSize: 24 });
    await expect(agentFor([specOf(http)]).start()).rejects.toMatchObject({
      code: "engine_mismatch",
      param: "unitSize",
    });
    expect(registrations).toEqual([]);
  });

  test("an engine that is still loading is waited for", async () => {
    const http = await httpEngine();
    http.healthy = false;
    const said: string[] = [];
    const started = agentFor([specOf(http)], { log: (_, message) => said.push(message) }).start();
    await until(() => said.some((message) => message.includes("waiting")), "a word that it waits");
    http.healthy = true;
    await started;
    expect(registrations).toHaveLength(1);
  });

  test("of several models the engine's names tell which; else it must be named", async () => {
    const http = await httpEngine();
    const other = { ...model, card: { ...model.card, model: "other" } };
    const named = { ...model, card: { ...model.card, model: "/models/tiny" } };
    await agentFor([specOf(http)], { models: [other, named] }).start();
    expect(registrations[0]!.model).toBe("/models/tiny");
    const vague = agentFor([specOf(http, { id: "w2" })], { models: [other, model] });
    await expect(vague.start()).rejects.toMatchObject({ code: "config_invalid", param: "model" });
  });
});

describe("while it runs", () => {
  test("adapters that come and go are announced", async () => {
    const http = await httpEngine();
    await agentFor([specOf(http)]).start();
    http.adapters = ["gale"];
    await until(() => registrations.at(-1)!.adapters.length === 1, "the adapter");
    expect(registrations.at(-1)!.servedNames).toEqual(["served", "gale"]);
    expect(new Set(registrations.map(({ incarnation }) => incarnation)).size).toBe(1);
  });

  test("load: what it carries, and direct traffic from the metrics", async () => {
    const http = await httpEngine();
    const agent = agentFor([specOf(http)]);
    await agent.start();
    const load = { promptTokens: 64, overlapTokens: 16, blocks: 4 };
    const { incarnation } = registrations[0]!;
    const plan: Plan = {
      requestId: "a",
      agent: null,
      dropUsage: false,
      model: MODEL,
      worker: "w",
      rank: 0,
      incarnation,
      role: "aggregated",
      deadlineMs: null,
      load,
      cacheSalt: null,
    };
    agent.ledger.admitted(plan);
    await until(() => loads.some(({ admitted }) => admitted.includes("a")), "the report");
    expect(loads.find(({ admitted }) => admitted.includes("a"))).toMatchObject({
      activeBlocks: 4,
      prefillTokens: 48,
      running: 1,
    });
    http.metrics = metricsText({ usage: 0.05, running: 3, waiting: 2 });
    await until(() => loads.at(-1)!.activeBlocks === 50, "the scrape");
    expect(loads.at(-1)).toMatchObject({ running: 3, waiting: 2, prefillTokens: 48 });
    agent.ledger.finished("a");
    await until(() => loads.at(-1)!.prefillTokens === 0, "the end");
  });

  test("metrics that fail for long make the load unknown, not idle; a healthy engine goes on", async () => {
    const http = await httpEngine();
    http.metrics = metricsText({ usage: 0.05, running: 3 });
    const agent = agentFor([specOf(http)]);
    await agent.start();
    await until(() => loads.at(-1)?.activeBlocks === 50, "the scrape");
    http.metrics = null;
    await until(() => loads.at(-1)?.activeBlocks === null, "unknown load");
    expect(loads.at(-1)).toMatchObject({ running: null, waiting: null });
    expect(agent.status().workers[0]!.state).toBe("serving");
    http.metrics = metricsText({ usage: 0.01, running: 1 });
    await until(() => loads.at(-1)?.activeBlocks === 10, "the next scrape");
  });

  test("events that nobody publishes are not counted on, until somebody does", async () => {
    const http = await httpEngine();
    const gone = await engineWith();
    const { endpoint } = gone;
    gone.close();
    const logged: string[] = [];
    let skippedMs = 0;
    const agent = agentFor([specOf(http, { events: endpoint })], {
      now: () => performance.now() + skippedMs,
      log: (level, message) => logged.push(`${level} ${message}`),
    });
    await agent.start();
    expect(registrations.at(-1)!.kvEvents).toBe(true);
    skippedMs = 3_000;
    await until(() => !registrations.at(-1)!.kvEvents, "the doubt");
    expect(
      logged.filter((line) => line.startsWith(`warn nobody publishes KV events at ${endpoint}`)),
    ).toHaveLength(1);
    const publisher = new Publisher();
    open.push(() => publisher.close());
    publisher.connect(endpoint);
    await until(() => registrations.at(-1)!.kvEvents, "the publisher");
    expect(new Set(registrations.map(({ incarnation }) => incarnation)).size).toBe(1);
  });

  test("a lost engine is retired; back again it is another incarnation", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const states: string[] = [];
    const agent = agentFor([specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! })], {
      onState: (worker, state) => states.push(`${worker} ${state}`),
    });
    await agent.start();
    http.healthy = false;
    await until(() => retirements.length === 1, "the retirement");
    expect(agent.status().workers[0]!.state).toBe("lost");
    http.healthy = true;
    await until(() => agent.status().workers[0]!.state === "serving", "the return");
    expect(registrations).toHaveLength(2);
    expect(registrations[1]!.incarnation).not.toBe(registrations[0]!.incarnation);
    expect(states).toEqual(["w serving", "w lost", "w serving"]);
  });

  test("an idle engine that was restarted says nothing, but its process start time does", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const agent = agentFor([specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! })]);
    const { event, hashes } = engine.store(null, [1, 2]);
    await engine.publish([event]);
    await agent.start();
    const prompt = engine.promptOf(hashes[1]!);
    await until(() => depthIn(view, scheme, prompt) === 2, "2 blocks");
    engine.forget();
    http.metrics = metricsText({ startSeconds: 1.8e9 });
    await until(() => depthIn(view, scheme, prompt) === 0, "an empty cache");
    expect(agent.status().workers[0]!.ranks[0]!.voided).toEqual({ restart: 1 });
  });

  test("a restart that the events have told already is not told again by the metrics", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const timers = new ManualTimers();
    const spec = specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! });
    const agent = agentFor([spec], { timers });
    await engine.publish([engine.store(null, [1, 2]).event]);
    await agent.start();
    const rank = () => agent.status().workers[0]!.ranks[0]!;
    await until(() => rank().blocks === 2, "2 blocks");
    engine.close();
    const next = await engineWith({ bindTo: spec.events as string, replayBindTo: spec.replay as string });
    const { event, hashes } = next.store(null, [5]);
    await next.publish([event]);
    await until(() => depthIn(view, scheme, next.promptOf(hashes[0]!)) === 1, "the new engine's block");
    http.metrics = metricsText({ startSeconds: 1.8e9, running: 3 });
    await until(() => {
      timers.advance(1_000);
      return loads.at(-1)?.running === 3;
    }, "a poll");
    expect(rank().voided).toEqual({ restart: 1 });
    expect(depthIn(view, scheme, next.promptOf(hashes[0]!))).toBe(1);
  });

  test("an engine that comes back with another block size is found anew", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const agent = agentFor([specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! })]);
    await agent.start();
    http.metrics = metricsText({ startSeconds: 1.8e9, blockSize: 32 });
    await until(() => registrations.at(-1)!.blockSize === 32, "the new size");
    await until(() => agent.status().workers[0]!.state === "serving", "service");
    expect([retirements.length, agent.status().workers[0]!.fault]).toEqual([1, null]);
  });

  test("whoever drops a cache says so, and the view knows at once", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const agent = agentFor([specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! })]);
    const { event, hashes } = engine.store(null, [1, 2]);
    await engine.publish([event]);
    await agent.start();
    await until(() => depthIn(view, scheme, engine.promptOf(hashes[1]!)) === 2, "2 blocks");
    const prompt = engine.promptOf(hashes[1]!);
    agent.cleared("w");
    expect(depthIn(view, scheme, prompt)).toBe(0);
  });

  test("a new life's load is reported at once: unknown, it would stand behind all others", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const timers = new ManualTimers();
    const spec = specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! });
    const agent = agentFor([spec], { timers });
    await engine.publish([engine.store(null, [1, 2]).event]);
    await agent.start();
    await until(() => agent.status().workers[0]!.ranks[0]!.blocks === 2, "2 blocks");
    agent.cleared("w");
    const { incarnation } = registrations.at(-1)!;
    expect(registrations).toHaveLength(2);
    timers.advance(10);
    expect(loads.at(-1)).toMatchObject({ incarnation, activeBlocks: 0, running: 0 });
  });

  test("a payload that cannot be read voids what was said: something is missing now", async () => {
    const http = await httpEngine();
    const engine = await engineWith();
    const agent = agentFor([specOf(http, { events: engine.endpoint, replay: engine.replayEndpoint! })]);
    const { event, hashes } = engine.store(null, [1, 2]);
    await engine.publish([event]);
    await agent.start();
    const prompt = engine.promptOf(hashes[1]!);
    await until(() => depthIn(view, scheme, prompt) === 2, "2 blocks");
    await engine.publishRaw(Buffer.from("c1ff", "hex"));
    await until(() => depthIn(view, scheme, prompt) === 0, "nothing certain");
    await engine.publish([engine.store(null, [5]).event]);
    await until(() => agent.status().workers[0]!.ranks[0]!.blocks === 1, "what comes after");
  });

  test("stopping retires every rank, and a stopped agent has no timer left to speak by", async () => {
    const http = await httpEngine();
    const pending = new Set<unknown>();
    const agent = agentFor([specOf(http)], {
      timers: {
        setTimeout: (callback, delayMs) => {
          const handle = setTimeout(() => {
            pending.delete(handle);
            callback();
          }, delayMs);
          pending.add(handle);
          return handle;
        },
        clearTimeout: (handle) => {
          pending.delete(handle);
          clearTimeout(handle as NodeJS.Timeout);
        },
      },
    });
    await agent.start();
    expect(pending.size).toBeGreaterThan(0);
    agent.stop();
    const [said, reported] = [registrations.length, loads.length];
    expect(retirements).toHaveLength(1);
    expect(await bus.requestSnapshot(registrations[0]!)).toBeNull();
    // A poll under way at the stop has been answered by the time that a later question is.
    await fetch(`${http.url}/health`);
    expect(pending.size).toBe(0);
    expect([registrations.length, loads.length]).toEqual([said, reported]);
  });
});

function publishAll(engines: readonly TestEngine[]): void {
  for (const [rank, engine] of engines.entries()) {
    const contents = Array.from({ length: rank + 1 }, (_, i) => i);
    engine.table.clear();
    void engine.publish([engine.clear(), engine.store(null, contents).event]);
  }
}
