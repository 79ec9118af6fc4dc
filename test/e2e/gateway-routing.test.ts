/** Routing as clients see it: prefixes, salts, adapters, rungs, reservations, overrides, thresholds, new lives. */

import { describe, expect, it } from "vitest";
import { createHasher } from "../../src/prefix/hasher.ts";
import { createPromptKeyer } from "../../src/prefix/prompt-keyer.ts";
import { chat, LONG, setUp, whole } from "./gateway-calls.ts";
import { CARD, type FleetOptions, ManualClock, MODEL, registration } from "./gateway-fleet.ts";

describe("routing", () => {
  it("sends a prompt to the worker that was given its prefix, and says so", async () => {
    const random = seeded(7);
    const workers = ["a", "b", "c", "d"];
    const registrations = workers.map((worker) => registration(worker, { kvEvents: false }));
    const { call } = await setUp(workers, { random, registrations });
    const first = await call("/v1/chat/completions", { body: chat(LONG) });
    const worker = first.headers.get("x-kedge-worker");
    for (let i = 0; i < 8; i++) {
      const again = await call("/v1/chat/completions", { body: chat(`${LONG} question ${i}`) });
      expect(again.headers.get("x-kedge-worker")).toBe(worker);
      expect(Number(again.headers.get("x-kedge-overlap-tokens"))).toBeGreaterThan(100);
    }
  });

  it("takes a holder's own count, rounded to the worker's block, and never counts a prompt's last token", async () => {
    const { call, fleet } = await setUp(["a", "b"]);
    const hasher = await createHasher();
    const keyer = createPromptKeyer({ hasher, card: CARD });
    // 1,024 bytes of prompt text, so that the last key ends where the prompt does.
    const prompt = LONG.slice(0, 1_024);
    const chain = keyer.keysOf(
      { kind: "text", text: prompt, complete: true, addSpecial: true },
      { model: MODEL, adapter: null, salt: null },
    )!;
    expect(chain.keys).toHaveLength(8);
    const hold = (worker: string, sequence: number, tokens: number[]) =>
      fleet.store.apply([
        {
          ...registration(worker),
          sequence,
          ops: [
            {
              op: "store",
              tier: "device",
              root: chain.keys[0]!,
              parent: null,
              keys: chain.keys.slice(0, tokens.length),
              tokens: Uint32Array.from(tokens),
            },
          ],
        },
      ]);
    const route = async () => (await call("/v1/route", { body: { model: MODEL, prompt } })).json();
    hold("b", 1, [30, 60, 95]);
    expect(await route()).toMatchObject({ chosen: { worker: "b" }, overlap_tokens: 80, rung: "exact" });
    hold("a", 1, [30, 60, 90, 120, 150, 180, 210, 240]);
    expect(await route()).toMatchObject({ chosen: { worker: "a" }, overlap_tokens: 208 });
    const { ranking, prompt: described } = await route();
    expect(ranking.map((one: { overlap_blocks: number }) => one.overlap_blocks)).toEqual([13, 5]);
    // 210 counted to the last key that is asked for, and 128 bytes at 4 bytes per token.
    expect(described.tokens).toBe(242);
  });

  it("keys by salt and adapter: neither sees the other's prefix", async () => {
    const facts = { adapters: ["tide"], kvEvents: false };
    const registrations = ["a", "b"].map((worker) => registration(worker, facts));
    const { call } = await setUp(["a", "b"], { registrations });
    await call("/v1/chat/completions", { body: chat(LONG) });
    const overlap = async (extra: object) =>
      (await (await call("/v1/route", { body: { ...chat(LONG), ...extra } })).json()).overlap_tokens;
    expect(await overlap({})).toBeGreaterThan(0);
    expect(await overlap({ cache_salt: "tenant" })).toBe(0);
    expect(await overlap({ model: "tide" })).toBe(0);
  });

  it("explains without running or reserving anything", async () => {
    const { call, engine, fleet } = await setUp(["a", "b"]);
    for (const body of [chat(LONG), { model: MODEL, prompt: LONG }]) {
      const route = await (await call("/v1/route", { body })).json();
      expect(route).toMatchObject({ object: "route", model: MODEL, rung: "exact", mode: "kv" });
      expect(route.endpoint).toBe("messages" in body ? "chat" : "completions");
      expect(route.ranking).toHaveLength(2);
      expect(route.log[0]).toMatch(/^Formula for worker_id=/);
      expect(route.overlap_tokens).toBe(0);
    }
    expect(engine.requests).toHaveLength(0);
    expect(fleet.store.fleet().every(({ reserved }) => reserved.requests === 0)).toBe(true);
  });

  it("keeps workers, overlaps and overrides to itself unless the operator asks for explanations", async () => {
    const { call, fleet } = await setUp(["a", "b"], { config: { explain: false } });
    const response = await call("/v1/chat/completions", {
      body: chat("x"),
      headers: { "x-kedge-worker": "b", "x-kedge-router-mode": "direct" },
    });
    expect(response.status).toBe(200);
    expect(response.headers.get("x-kedge-rung")).toBe("exact");
    expect([...response.headers.keys()].filter((name) => name.startsWith("x-kedge"))).toEqual([
      "x-kedge-rung",
    ]);
    expect((await call("/v1/route", { body: chat("x") })).status).toBe(404);
    expect(fleet.plans).toHaveLength(1);
  });

  it("takes mode, weight, temperature and worker per request, and refuses nonsense", async () => {
    const { call } = await setUp(["a", "b"]);
    const route = async (headers: Record<string, string>) =>
      (await call("/v1/route", { body: chat("x"), headers })).json();
    expect(await route({ "x-kedge-router-mode": "round-robin" })).toMatchObject({ mode: "round-robin" });
    expect(await route({ "x-kedge-worker": "b", "x-kedge-rank": "0" })).toMatchObject({
      chosen: { worker: "b" },
    });
    expect((await route({ "x-kedge-overlap-weight": "2.5" })).ranking[0].weight).toBe(2.5);
    expect((await route({ "x-kedge-temperature": "0.5" })).temperature).toBe(0.5);
    expect((await route({ "x-kedge-worker": "z" })).rejection.code).toBe("worker_not_found");
    const nonsense: [string, string][] = [
      ["x-kedge-router-mode", "best"],
      ["x-kedge-temperature", "-1"],
      ["x-kedge-overlap-weight", "x"],
      ["x-kedge-rank", "0"],
    ];
    for (const [name, value] of nonsense) {
      expect((await route({ [name]: value })).error.code).toBe("invalid_request");
    }
  });

  it("counts round robin per model, and explanations do not count", async () => {
    const { call, fleet } = await setUp(["a", "b", "c"], { config: { router: { mode: "round-robin" } } });
    for (let i = 0; i < 6; i++) {
      await call("/v1/route", { body: chat("x") });
      await call("/v1/chat/completions", { body: chat("x") });
    }
    expect(fleet.plans.map(({ worker }) => worker)).toEqual(["a", "b", "c", "a", "b", "c"]);
  });

  it("says predicted where no events come: switched off, engine without, feed silent", async () => {
    const rung = async (options: Partial<FleetOptions>, before: (clock: ManualClock) => void = () => {}) => {
      const clock = new ManualClock();
      const { call } = await setUp(["a"], { clock, ...options });
      before(clock);
      return (await call("/v1/chat/completions", { body: chat("x") })).headers.get("x-kedge-rung");
    };
    expect(await rung({})).toBe("exact");
    expect(await rung({ config: { router: { kvEvents: false } } })).toBe("predicted");
    expect(await rung({ registrations: [registration("a", { kvEvents: false })] })).toBe("predicted");
    expect(await rung({}, (clock) => clock.advance(3_000))).toBe("predicted");
  });

  it("holds a prediction for the full time where no events come and for seconds where they do", async () => {
    const overlapAfter = async (kvEvents: boolean, ms: number) => {
      const clock = new ManualClock();
      const { call } = await setUp(["a"], { clock, config: { router: { kvEvents } } });
      await call("/v1/chat/completions", { body: chat(LONG) });
      clock.advance(ms);
      return (await (await call("/v1/route", { body: chat(LONG) })).json()).overlap_tokens > 0;
    };
    expect(await overlapAfter(true, 4_000)).toBe(true);
    expect(await overlapAfter(true, 6_000)).toBe(false);
    expect(await overlapAfter(false, 110_000)).toBe(true);
    expect(await overlapAfter(false, 121_000)).toBe(false);
  });

  it("reserves what it sends, so that the next decision sees it", async () => {
    let release: () => void = () => {};
    const { call, fleet, engine } = await setUp(["a", "b"], {}, (response, request) => {
      release = () => void whole(response, request);
    });
    const pending = call("/v1/chat/completions", { body: chat(LONG) });
    await engine.arrival(0);
    const busy = fleet.store.fleet().find(({ worker }) => worker === fleet.plans[0]!.worker)!;
    expect(busy.reserved.requests).toBe(1);
    expect(busy.reserved.blocks).toBe(fleet.plans[0]!.load.blocks);
    expect(busy.reserved.prefillTokens).toBe(fleet.plans[0]!.load.promptTokens);
    release();
    await pending;
  });

  it("sends to the pinned rank of a data-parallel worker", async () => {
    const registrations = [0, 1].map((rank) => registration("a", { rank, dpSize: 2 }));
    const { call, engine } = await setUp(["a"], { registrations });
    await call("/v1/chat/completions", {
      body: chat("x"),
      headers: { "x-kedge-worker": "a", "x-kedge-rank": "1", "x-data-parallel-rank": "0" },
    });
    expect(engine.requests[0]!.headers["x-data-parallel-rank"]).toBe("1");
  });

  it("learns a model's bytes per token from usage", async () => {
    const { call } = await setUp(["a"], {}, (response) => {
      response.writeHead(200, { "content-type": "application/json" });
      response.end('{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":1}}');
    });
    const estimate = async () =>
      (await (await call("/v1/route", { body: chat("y".repeat(3_000)) })).json()).prompt.tokens;
    expect(await estimate()).toBeLessThan(800);
    for (let i = 0; i < 100; i++)
      await call("/v1/chat/completions", { body: chat(`${i}`.repeat(3_000).slice(0, 3_000)) });
    expect(Math.abs((await estimate()) - 1_000)).toBeLessThan(30);
  });

  it("sends a prompt that it cannot key to an engine all the same", async () => {
    const { call, engine } = await setUp();
    const ids = await call("/v1/completions", { body: { model: MODEL, prompt: [1, 2, 3] } });
    expect(ids.status).toBe(200);
    const route = await (await call("/v1/route", { body: { model: MODEL, prompt: [1, 2, 3] } })).json();
    expect(route.prompt).toMatchObject({ keys: 0, tokens: 3, tokens_estimated: false });
    expect(route.prompt.unkeyed).toContain("tokens");
    expect(engine.requests).toHaveLength(1);
  });

  it("answers a template's own refusal as 400", async () => {
    const card = { ...CARD, chatTemplate: "{{ raise_exception('roles must alternate') }}" };
    const { call, engine } = await setUp(["a"], { registrations: [registration("a", { card })] });
    const response = await call("/v1/chat/completions", { body: chat("x") });
    expect(response.status).toBe(400);
    expect((await response.json()).error).toMatchObject({ code: "template_error" });
    expect(engine.requests).toHaveLength(0);
  });
});

describe("busy thresholds", () => {
  const NONE = {
    active_decode_blocks_threshold: null,
    active_prefill_tokens_threshold: null,
    active_prefill_tokens_threshold_frac: null,
  };

  it("are read and set at run time with Dynamo's shapes", async () => {
    const { call } = await setUp();
    expect(await (await call("/busy_threshold")).json()).toEqual({ thresholds: [{ model: MODEL, ...NONE }] });
    const read = await call("/busy_threshold", { body: { model: MODEL } });
    expect([read.status, await read.json()]).toEqual([200, { model: MODEL, ...NONE }]);
    const set = await call("/busy_threshold", {
      body: { model: MODEL, active_decode_blocks_threshold: 0.5 },
    });
    const expected = { model: MODEL, ...NONE, active_decode_blocks_threshold: 0.5 };
    expect([set.status, await set.json()]).toEqual([200, expected]);
    await call("/busy_threshold", { body: { model: MODEL, active_prefill_tokens_threshold: 100 } });
    expect(await (await call("/busy_threshold")).json()).toEqual({
      thresholds: [{ ...expected, active_prefill_tokens_threshold: 100 }],
    });
  });

  it.each([
    [{ model: MODEL, active_decode_blocks_threshold: 1.5 }, 400],
    [{ model: MODEL, active_decode_blocks_threshold: -0.1 }, 400],
    [{ model: MODEL, active_prefill_tokens_threshold: 1.5 }, 400],
    [{ model: MODEL, active_prefill_tokens_threshold_frac: -1 }, 400],
    [{ model: MODEL, active_prefill_tokens_threshold: "many" }, 422],
    [{ active_prefill_tokens_threshold: 5 }, 422],
    [`{"model":"${MODEL}","active_prefill_tokens_threshold_frac":1e400}`, 400],
    ["{", 422],
    [{ model: "none", active_prefill_tokens_threshold: 5 }, 404],
  ])("refuse %j with %i and an error text", async (body, status) => {
    const { call } = await setUp();
    const response = await call("/busy_threshold", { body });
    expect(response.status).toBe(status);
    expect(typeof (await response.json()).error).toBe("string");
  });

  it("answer a reading of an unknown model with nulls", async () => {
    const { call } = await setUp();
    const response = await call("/busy_threshold", { body: { model: "none" } });
    expect([response.status, await response.json()]).toEqual([200, { model: "none", ...NONE }]);
  });

  it("turn requests away when every worker is busy, and only then", async () => {
    const { call, fleet } = await setUp(["a", "b"]);
    const load = (worker: string, activeBlocks: number) => fleet.setLoad(registration(worker), activeBlocks);
    await call("/busy_threshold", { body: { model: MODEL, active_decode_blocks_threshold: 0.5 } });
    load("a", 501);
    const served = await call("/v1/chat/completions", { body: chat("x") });
    expect(served.headers.get("x-kedge-worker")).toBe("b/0");
    load("b", 501);
    const refused = await call("/v1/chat/completions", { body: chat("x") });
    expect([refused.status, (await refused.json()).error.code]).toEqual([503, "workers_busy"]);
    expect(refused.headers.get("retry-after")).toBe("1");
    load("b", 500);
    expect((await call("/v1/chat/completions", { body: chat("x") })).status).toBe(200);
  });
});

describe("a worker's new life", () => {
  it("is served at once and inherits nothing", async () => {
    const { call, fleet } = await setUp(["a"]);
    await call("/v1/chat/completions", { body: chat(LONG) });
    const reborn = registration("a", { incarnation: "2" });
    fleet.store.register(reborn);
    fleet.setLoad(reborn, 0);
    const route = await (await call("/v1/route", { body: chat(LONG) })).json();
    expect(route.overlap_tokens).toBe(0);
    await call("/v1/chat/completions", { body: chat(LONG) });
    expect(fleet.plans.at(-1)!.incarnation).toBe("2");
  });
});

function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}
