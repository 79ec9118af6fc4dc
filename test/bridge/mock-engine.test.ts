/** Agent and mock engine over real HTTP and ZMQ: after every fault the view equals the engine's own block table. */

import { afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { Agent, type AgentModel, loadAgentModel } from "../../gpu-agent/agent.ts";
import {
  MODEL_DIR,
  type MockEngine,
  type MockEngineOptions,
  startMockEngine,
} from "../../gpu-agent/engines/mock/index.ts";
import type { InProcessBus } from "../../src/events/in-process.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import { tokensChain } from "../../src/prefix/token-scheme.ts";
import type { MemoryStore } from "../../src/store/memory/index.ts";
import { newBus, viewOf } from "./harness.ts";
import { until } from "./test-engine.ts";

let hasher: Hasher;
let model: AgentModel;
beforeAll(async () => {
  hasher = await createHasher();
  model = await loadAgentModel({ path: MODEL_DIR, model: "mock", scheme: "tokens" });
});

let bus: InProcessBus;
let view: MemoryStore;
let incarnations: Set<string>;
beforeEach(() => {
  bus = newBus();
  view = viewOf(bus);
  incarnations = new Set();
  bus.onRegistration(({ incarnation }) => incarnations.add(incarnation));
});

const open: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of open.splice(0).reverse()) await close();
});

async function started(options: MockEngineOptions = {}): Promise<MockEngine> {
  const engine = await startMockEngine({
    speed: 1_000,
    numGpuBlocks: 64,
    maxModelLen: 512,
    kvEvents: {
      enable_kv_cache_events: true,
      publisher: "zmq",
      endpoint: "tcp://127.0.0.1:*",
      replay_endpoint: "tcp://127.0.0.1:*",
    },
    ...options,
  });
  open.push(() => engine.close());
  const spec = { role: "aggregated", region: "r", cluster: "c", node: "n" } as const;
  const [events, replay] = [engine.eventsEndpoints[0]!, engine.replayEndpoints[0]!];
  const agent = new Agent({
    bus,
    engines: [{ id: "w", url: engine.url, events, replay, ...spec }],
    models: [model],
    pollMs: 50,
  });
  open.push(() => agent.stop());
  await agent.start();
  return engine;
}

/** Asks for a few tokens and answers what the engine found cached. */
async function complete(engine: MockEngine, prompt: readonly number[], salt?: string): Promise<number> {
  const body = {
    model: "mock",
    prompt,
    max_tokens: 2,
    ignore_eos: true,
    ...(salt !== undefined && { cache_salt: salt }),
  };
  const response = await fetch(`${engine.url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
  const { usage } = (await response.json()) as {
    usage: { prompt_tokens_details: { cached_tokens: number } };
  };
  return usage.prompt_tokens_details.cached_tokens;
}

function depthOf(tokenIds: readonly number[], salt: string | null = null): number {
  const { keys } = tokensChain(hasher, { model: "mock", adapter: null, salt }, tokenIds, 16);
  const { lookup, fleet } = view.read("mock", keys);
  const at = lookup.slots.subarray(0, lookup.count).indexOf(fleet[0]?.slots.device ?? -1);
  return at < 0 ? 0 : lookup.confirmedDepth[at]!;
}

/** Every chain of the engine's table, as deep as it is unbroken. */
function tableDepths(engine: MockEngine): { prompt: number[]; salt: string | null; depth: number }[] {
  const rows = new Map(engine.blockTable().map((row) => [row.hash, row]));
  return [...rows.values()].flatMap((row) => {
    const path = [row];
    for (let at = row; at.parent !== null; ) {
      const parent = rows.get(at.parent);
      if (parent === undefined) return [];
      path.unshift(parent);
      at = parent;
    }
    return [
      {
        prompt: path.flatMap(({ tokenIds }) => [...tokenIds]),
        salt: path[0]!.extraKeys?.[0] ?? null,
        depth: path.length,
      },
    ];
  });
}

async function sameAsTable(engine: MockEngine): Promise<void> {
  await until(
    () =>
      tableDepths(engine).every(({ prompt, salt, depth }) => depthOf(prompt, salt) === depth) &&
      heldKeys() === engine.blockTable().length,
    "the view equals the table",
  );
}

/** Keys that the view's one rank holds, by its own snapshot. */
let snapshotKeys = 0;
function heldKeys(): number {
  const row = view.fleet()[0];
  if (row !== undefined) {
    void bus.requestSnapshot(row).then((snapshot) => {
      snapshotKeys = snapshot?.ops.reduce((sum, { keys }) => sum + keys.length, 0) ?? -1;
    });
  }
  return snapshotKeys;
}

const promptOf = (group: number, length: number): number[] =>
  Array.from({ length }, (_, i) => 100 + ((group * 37 + i * 7) % 300));

describe("the index equals the engine's own block table", () => {
  test("under eviction, with shared prefixes and salts, and predicts what the engine reports", async () => {
    const engine = await started();
    for (let i = 0; i < 40; i++) {
      const prompt = [...promptOf(i % 3, 96), ...promptOf(i % 7, 100)];
      const salt = i % 5 === 0 ? "tenant" : undefined;
      await sameAsTable(engine);
      const predicted = Math.min(
        depthOf(prompt, salt ?? null) * 16,
        Math.floor((prompt.length - 1) / 16) * 16,
      );
      expect(await complete(engine, prompt, salt)).toBe(predicted);
    }
    await sameAsTable(engine);
    expect(incarnations.size).toBe(1);
  });

  test.each<[string, Parameters<MockEngine["misbehave"]>[0], number]>([
    ["a gap that is replayed", { dropBatches: 2 }, 1],
    ["a gap that is replayed in the old framing", { dropBatches: 2, replayFrames: "without-topic" }, 1],
    ["byte hashes", { hashes: "bytes" }, 1],
    ["negative hashes in arrays", { hashes: "negative", events: "array" }, 1],
    ["duplicate copies", { duplicateStores: 3 }, 1],
    ["orphan parents that are announced late", { orphanParents: 2 }, 1],
  ])("after %s", async (_, fault, lives) => {
    const engine = await started();
    await complete(engine, promptOf(1, 160));
    engine.misbehave(fault);
    for (let i = 0; i < 12; i++) await complete(engine, promptOf(i % 4, 200));
    await sameAsTable(engine);
    expect(incarnations.size).toBe(lives);
  });

  test("after a restart in the middle of a run", async () => {
    const engine = await started();
    for (let i = 0; i < 4; i++) await complete(engine, promptOf(i, 160));
    await sameAsTable(engine);
    await engine.restart();
    for (let i = 0; i < 6; i++) await complete(engine, promptOf(i + 2, 160));
    await sameAsTable(engine);
    expect(incarnations.size).toBe(2);
  });

  test("after a cleared cache, with the next batch", async () => {
    const engine = await started();
    await complete(engine, promptOf(1, 160));
    await sameAsTable(engine);
    expect(engine.resetPrefixCache()).toBe(true);
    await complete(engine, promptOf(2, 160));
    await sameAsTable(engine);
    expect(depthOf(promptOf(1, 160))).toBe(0);
    expect(incarnations.size).toBe(2);
  });

  test("after a gap that cannot be replayed it claims nothing that the table does not have", async () => {
    const engine = await started();
    await complete(engine, promptOf(1, 160));
    await sameAsTable(engine);
    engine.misbehave({ dropBatches: 1, dropFromReplay: true });
    for (let i = 0; i < 6; i++) await complete(engine, promptOf(i, 160));
    await until(() => incarnations.size === 2, "a new incarnation");
    for (let i = 0; i < 6; i++) {
      const prompt = promptOf(i, 160);
      const held = tableDepths(engine).filter(({ prompt: path }) =>
        path.every((id, at) => prompt[at] === id),
      );
      const real = Math.max(0, ...held.map(({ depth }) => depth));
      await until(() => depthOf(prompt) <= real, "no claim beyond the table");
    }
  });
});
