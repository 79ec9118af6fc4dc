/** Real requests through the whole stack, with everything that engines do to their events: afterwards the view equals the engines' own block tables (acceptance 7). */

import { beforeAll, describe, expect, type TestContext, test } from "vitest";
import { type AgentModel, loadAgentModel } from "../../gpu-agent/agent.ts";
import { MODEL_DIR, type MockEngine, type MockEngineOptions } from "../../gpu-agent/engines/mock/index.ts";
import type { PrefixSchemeName } from "../../src/prefix/types.ts";
import { type Stack, type StackOptions, startStack } from "./gateway-stack.ts";
import { differences, TableKeys, tablesOf, ViewKeys } from "./view-truth.ts";

const SCHEMES = ["tokens", "bytes"] as const;
const models = new Map<PrefixSchemeName, { model: AgentModel; keys: TableKeys }>();
beforeAll(async () => {
  for (const scheme of SCHEMES) {
    const model = await loadAgentModel({ path: MODEL_DIR, model: "mock", scheme });
    models.set(scheme, { model, keys: await TableKeys.load(scheme) });
  }
});

/** Room for about five prompts of the size used here, so that caches turn over. */
const SMALL: MockEngineOptions = { profile: "zero", numGpuBlocks: 64, maxModelLen: 512 };
const SOCKETS = { enable_kv_cache_events: true, endpoint: "tcp://*:0", topic: "kv-events" };

/** Polls until it holds. Errors: after 15 s, with what is still not so. */
async function until(holds: () => boolean, what: string | (() => string)): Promise<void> {
  const endMs = performance.now() + 15_000;
  while (!holds()) {
    if (performance.now() > endMs) throw new Error(`still not: ${typeof what === "string" ? what : what()}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

class Run {
  readonly stack: Stack;
  readonly view: ViewKeys;
  private readonly keys: TableKeys;
  private turn = 0;

  private constructor(stack: Stack, keys: TableKeys) {
    this.stack = stack;
    this.keys = keys;
    this.view = new ViewKeys(stack.bus, stack.store);
  }

  static async start(
    { onTestFinished }: TestContext,
    scheme: PrefixSchemeName,
    engines: readonly MockEngineOptions[] = [{}],
    { agent, ...options }: Partial<StackOptions> = {},
  ): Promise<Run> {
    const { model, keys } = models.get(scheme)!;
    const stack = await startStack({
      engines: engines.map((engine) => ({ ...SMALL, ...engine })),
      agent: { models: [model], pollMs: 50, ...agent },
      ...options,
    });
    onTestFinished(async () => {
      await stack.close();
      expect(stack.errors).toEqual([]);
    });
    return new Run(stack, keys);
  }

  get engine(): MockEngine {
    return this.stack.engines[0]!;
  }

  /** Lives of a rank so far. */
  lives(place = "w0/0"): number {
    return this.view.lives.get(place)?.length ?? 0;
  }

  post(body: object, signal?: AbortSignal): Promise<Response> {
    return fetch(`${this.stack.url}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: "mock", max_tokens: 4, ignore_eos: true, ...body }),
      ...(signal && { signal }),
    });
  }

  async complete(prompt: readonly number[], more: object = {}): Promise<void> {
    const response = await this.post({ prompt, ...more });
    expect([response.status, await response.json()]).toMatchObject([200, { object: "text_completion" }]);
  }

  /** Requests of a few groups with common beginnings, two tenants and prompts of unequal length. */
  async work(requests: number): Promise<void> {
    for (let i = 0; i < requests; i++) {
      const turn = this.turn++;
      const prompt = [...tokens(turn % 3, 96), ...tokens(10 + (turn % 7), 40 + 11 * (turn % 5))];
      await this.complete(prompt, turn % 4 === 3 ? { cache_salt: "tenant" } : {});
    }
  }

  /** Works until nothing is cached any more of what is now. */
  async turnOver(): Promise<void> {
    const before = this.engine.blockTable().map(({ hash }) => hash);
    const isGone = () => {
      const now = new Set(this.engine.blockTable().map(({ hash }) => hash));
      return before.every((hash) => !now.has(hash));
    };
    for (let i = 0; !isGone(); i++) {
      if (i === 50) throw new Error("the cache does not turn over");
      await this.complete(tokens(1_000 + this.turn++, 200));
    }
  }

  /** Works until the agent has the engine's last batch. */
  async heardAgain(): Promise<void> {
    const isHeard = () => {
      const next = this.engine.stats()[0]!.nextSeq;
      return this.stack.agent.status().workers[0]?.ranks[0]?.watermark === Number(next) - 1;
    };
    for (let i = 0; !isHeard(); i++) {
      if (i === 500) throw new Error("the engine is not heard");
      await this.complete(tokens(2_000 + this.turn++, 32));
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  differences(): string[] {
    return differences(tablesOf(this.stack.engines, this.keys), this.view.held());
  }

  /** Neither more nor less than the tables say. */
  async sameAsTables(): Promise<void> {
    await until(
      () => this.differences().length === 0,
      () => `equal: ${this.differences().join("; ")}`,
    );
  }

  async nothingBeyondTables(): Promise<void> {
    const beyond = () => this.differences().filter((line) => !line.endsWith(" 0 beyond"));
    await until(
      () => beyond().length === 0,
      () => `no claims beyond: ${beyond().join("; ")}`,
    );
  }
}

/** Token ids that decode to text, by group. */
function tokens(group: number, length: number): number[] {
  return Array.from({ length }, (_, i) => 100 + ((group * 131 + i * i * 7 + i) % 400));
}

describe.each(SCHEMES)("scheme %s: the view equals the block table", { concurrent: true }, (scheme) => {
  test("under eviction, tick by tick, and routing says what the engine then reports", async (context) => {
    const run = await Run.start(context, scheme, [{}], { config: { router: { predictedTtlSeconds: 0.5 } } });
    for (let i = 0; i < 20; i++) {
      await run.work(1);
      await run.sameAsTables();
    }
    expect(run.lives()).toBe(1);
    if (scheme === "bytes") return;
    for (let i = 0; i < 10; i++) {
      const prompt = [...tokens(i % 3, 96), ...tokens(10 + (i % 5), 60)];
      // Predictions outlive what so small a cache evicts within their time.
      run.stack.skip(600);
      const response = await run.post({ prompt });
      const { usage } = (await response.json()) as {
        usage: { prompt_tokens_details: { cached_tokens: number } };
      };
      const { cached_tokens } = usage.prompt_tokens_details;
      expect(Number(response.headers.get("x-kedge-overlap-tokens"))).toBe(cached_tokens);
      await run.sameAsTables();
    }
  });

  test("of adapters and salts, each a chain of its own, even if they share a name", async (context) => {
    const loraModules = ["tide", "reef"].map((name) => ({ name, path: `/adapters/${name}` }));
    const run = await Run.start(context, scheme, [{ loraModules, numGpuBlocks: 200 }]);
    const prompt = tokens(40, 150);
    for (const model of ["mock", "tide", "reef"]) {
      for (const cache_salt of [undefined, "tide", "acme"]) await run.complete(prompt, { model, cache_salt });
    }
    await run.sameAsTables();
    expect(run.engine.blockTable().length).toBeGreaterThanOrEqual(9 * 9);
  });

  test("with many requests at once, some of them preempted", async (context) => {
    const run = await Run.start(context, scheme, [{ numGpuBlocks: 40 }]);
    const jobs = Array.from({ length: 24 }, (_, i) =>
      run.complete([...tokens(i % 4, 112), ...tokens(20 + i, 30)], { max_tokens: 60 }),
    );
    await Promise.all(jobs);
    await run.sameAsTables();
    expect(run.lives()).toBe(1);
  });

  test("after an engine restart in the middle of requests", async (context) => {
    const run = await Run.start(context, scheme);
    await run.work(4);
    await run.sameAsTables();
    const cut = run.post({ prompt: tokens(50, 150), max_tokens: 300, stream: true });
    const response = await cut;
    await run.engine.restart();
    await response.text();
    await run.sameAsTables();
    expect(run.lives()).toBe(2);
    await run.work(6);
    await run.sameAsTables();
  });

  test("after the restart of an idle engine, at once", async (context) => {
    const run = await Run.start(context, scheme);
    await run.work(4);
    await run.sameAsTables();
    await run.engine.restart();
    expect(run.engine.blockTable()).toEqual([]);
    await run.sameAsTables();
    await run.work(4);
    await run.sameAsTables();
    expect(run.lives()).toBe(2);
  });

  test("after restarts of an engine without replay, again and again", async (context) => {
    const run = await Run.start(context, scheme, [{ kvEvents: SOCKETS }]);
    for (let life = 2; life <= 4; life++) {
      await run.work(3);
      await run.sameAsTables();
      await run.engine.restart();
      await run.sameAsTables();
      expect(run.lives()).toBe(life);
      // What is said before the socket is heard again is lost: it must be out of the cache to be comparable.
      await run.heardAgain();
      await run.nothingBeyondTables();
      await run.turnOver();
      await run.sameAsTables();
    }
  });

  const forms = ["map", "array"] as const;
  const hashForms = ["u64", "bytes", "negative"] as const;
  const framings = ["with-topic", "without-topic"] as const;
  // What is on the wire is one thing, how its tokens are keyed another.
  const wires =
    scheme === "bytes" ? [] : forms.flatMap((events) => hashForms.map((hashes) => ({ events, hashes })));
  test.for(wires)(
    "with $hashes hashes in $events events, a gap replayed in either framing",
    async (wire, context) => {
      const run = await Run.start(context, scheme);
      for (const replayFrames of framings) {
        run.engine.misbehave({ ...wire, replayFrames });
        await run.work(2);
        run.engine.misbehave({ dropBatches: 2 });
        await run.work(5);
        await run.sameAsTables();
      }
      expect(run.lives()).toBe(1);
    },
  );

  test("after a gap that no socket can replay: nothing beyond, and all of it once the lost blocks are gone", async (context) => {
    const run = await Run.start(context, scheme, [{ kvEvents: SOCKETS }]);
    await run.work(4);
    await run.sameAsTables();
    run.engine.misbehave({ dropBatches: 1 });
    await run.work(3);
    await until(() => run.lives() === 2, "a new life");
    await run.nothingBeyondTables();
    await run.turnOver();
    await run.sameAsTables();
    expect(run.lives()).toBe(2);
  });

  test.for([
    ["lacks the lost batch", { dropFromReplay: true }],
    ["begins too late", { replaySteps: 1 }],
    ["is empty", { replaySteps: 0 }],
  ] as const)("after a gap whose replay %s: as without a replay", async ([, fault], context) => {
    const run = await Run.start(context, scheme);
    await run.work(4);
    await run.sameAsTables();
    run.engine.misbehave({ ...fault, dropBatches: 2 });
    await run.work(4);
    await until(() => run.lives() === 2, "a new life");
    await run.nothingBeyondTables();
    run.engine.behave();
    await run.turnOver();
    await run.sameAsTables();
  });

  test("after a cleared cache, with the next batch", async (context) => {
    const run = await Run.start(context, scheme);
    await run.work(4);
    await run.sameAsTables();
    await reset(run.engine, true);
    await run.work(1);
    await run.sameAsTables();
    expect(run.lives()).toBe(2);
  });

  test("after a cleared cache, at once if whoever cleared it says so", async (context) => {
    const run = await Run.start(context, scheme);
    await run.work(4);
    await run.sameAsTables();
    await reset(run.engine, true);
    run.stack.agent.cleared("w0");
    expect(run.differences()).toEqual([]);
    await run.work(4);
    await run.sameAsTables();
  });

  test("after a clearing that was refused because requests run", async (context) => {
    const run = await Run.start(context, scheme, [{ profile: "8b-h100", speed: 10 }]);
    await run.work(3);
    const running = await run.post({ prompt: tokens(60, 150), max_tokens: 200, stream: true });
    const reader = running.body!.getReader();
    await reader.read();
    await reset(run.engine, false);
    while (!(await reader.read()).done);
    await run.sameAsTables();
    expect(run.lives()).toBe(1);
    expect(run.engine.blockTable().length).toBeGreaterThan(20);
  });

  test("with duplicate copies, as long as one of them is left", async (context) => {
    const run = await Run.start(context, scheme);
    for (let i = 0; i < 4; i++) {
      run.engine.misbehave({ duplicateStores: 2 });
      for (let again = 0; again < 3; again++) await run.complete(tokens(80, 160));
      expect(run.engine.blockTable().some(({ copies }) => copies > 1)).toBe(true);
      await run.sameAsTables();
      await run.work(3);
      await run.sameAsTables();
    }
    expect(run.lives()).toBe(1);
  });

  test("with orphans whose parents are announced late", async (context) => {
    const run = await Run.start(context, scheme);
    for (let i = 0; i < 3; i++) {
      run.engine.misbehave({ orphanParents: 2 });
      await run.work(4);
      await run.sameAsTables();
    }
    expect(run.lives()).toBe(1);
  });

  test("with orphans whose parents are never announced: nothing beyond, and all of it once they are gone", async (context) => {
    const run = await Run.start(context, scheme);
    run.engine.misbehave({ orphanParents: 2, orphansHeal: false });
    await run.work(4);
    await run.nothingBeyondTables();
    expect(run.differences()).not.toEqual([]);
    run.engine.behave();
    await run.turnOver();
    await run.sameAsTables();
  });

  test("of two data-parallel ranks, each its own", async (context) => {
    const run = await Run.start(context, scheme, [{ dataParallelSize: 2, numGpuBlocks: 48 }], {
      config: { router: { mode: "round-robin" } },
    });
    await run.work(6);
    await run.sameAsTables();
    run.engine.misbehave({ dropBatches: 2 });
    await run.work(8);
    await run.sameAsTables();
    expect([run.lives("w0/0"), run.lives("w0/1")]).toEqual([1, 1]);
    for (const rank of [0, 1]) expect(run.engine.blockTable(rank).length).toBeGreaterThan(10);
    await run.engine.restart();
    await run.sameAsTables();
    await run.work(6);
    await run.sameAsTables();
  });

  test.for([
    ["a 200 with an error inside", { error200: "in-band", error200AfterTokens: 3 }],
    ["a 200 that finishes with an error", { error200: "finish-reason", error200AfterTokens: 3 }],
    ["an error before the first token", { error200: "in-band" }],
    ["a cut stream", { cutAfterTokens: 5 }],
    ["a cut before the first token", { cutAfterTokens: 0 }],
    ["a stalled stream", { stallAfterTokens: 5 }],
    ["a stall before the first token", { stallAfterTokens: 0 }],
  ] as const)("after %s", async ([, fault], context) => {
    const run = await Run.start(context, scheme, [{}, {}], {
      config: {
        router: { mode: "round-robin" },
        limits: { firstByteTimeoutMs: 300, stallTimeoutMs: 300 },
      },
    });
    await run.work(4);
    for (const stream of [true, false]) {
      run.engine.misbehave({ ...fault, requests: 2 });
      for (let i = 0; i < 4; i++) {
        // A whole answer may take its time, so a stall is the client's to end.
        const leave = AbortSignal.timeout(!stream && "stallAfterTokens" in fault ? 300 : 10_000);
        const body = { prompt: tokens(90 + i, 130), max_tokens: 40, stream };
        await run.post(body, leave).then(
          (response) => response.text(),
          (thrown: Error) => expect(thrown.name).toBe("TimeoutError"),
        );
      }
    }
    await run.stack.idle();
    await run.sameAsTables();
    await run.work(4);
    await run.sameAsTables();
    expect([run.lives("w0/0"), run.lives("w1/0")]).toEqual([1, 1]);
  });

  test("after clients that left before the first token, in a stream and in a whole answer", async (context) => {
    const run = await Run.start(context, scheme, [{ profile: "8b-h100", speed: 5 }]);
    for (const [stream, wait] of [
      [true, 0],
      [true, 1],
      [false, 0],
    ] as const) {
      const client = new AbortController();
      const answer = run.post({ prompt: tokens(120, 300), max_tokens: 200, stream }, client.signal);
      await until(() => run.engine.stats()[0]!.running === 1, "running");
      if (wait > 0) await (await answer).body!.getReader().read();
      client.abort();
      await answer.catch(() => undefined);
      await until(() => run.engine.stats()[0]!.running === 0, "aborted");
      await run.sameAsTables();
    }
    await run.work(4);
    await run.sameAsTables();
  });
});

/** As an operator does; the engine refuses while requests run. */
async function reset(engine: MockEngine, success: boolean): Promise<void> {
  const response = await fetch(`${engine.url}/reset_prefix_cache`, { method: "POST" });
  expect(await response.json()).toEqual({ success });
}
