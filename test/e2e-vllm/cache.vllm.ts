/** One real engine: it is found, it answers in every form, and its cache is known to the token or never overstated. */

import { beforeAll, expect, it } from "vitest";
import { type Engine, MODEL, startEngine } from "./engine.ts";
import { answered, describeVllm, expectExact, expectNeverAbove, series, settled } from "./fixture.ts";
import { ask, type Body, eventually, type Kedge, metric, promise, startKedge } from "./kedge.ts";
import { Prompts } from "./prompts.ts";

const SALTS = ["tenant-a", "tenant-b"];
const TOOL_FLAGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
const LONG = "The tide lifts the quiet boat beyond the harbour lights. ".repeat(20);

const chat = (content: string, extra: object = {}) => ({
  model: MODEL,
  max_tokens: 4,
  messages: [{ role: "user", content }],
  ...extra,
});

describeVllm("one engine", () => {
  let engine: Engine;
  let kedge: Kedge;

  beforeAll(async () => {
    engine = await startEngine({ flags: TOOL_FLAGS });
    kedge = await startKedge([engine]);
  });

  const restart = async (...flags: string[]): Promise<void> => {
    expect(await kedge.stop()).toBe(0);
    kedge = await startKedge([engine], ...flags);
  };
  const known = (body: Body) =>
    eventually("the engine's cache", async () => (await promise(kedge.url, body)) > 0);
  const reset = () => fetch(`${engine.url}/reset_prefix_cache`, { method: "POST" });
  const idle = () =>
    eventually("an idle engine", async () => (await metric(engine.url, "vllm:num_requests_running")) === 0);

  it("is found with its model, version and block size", async () => {
    expect(kedge.models).toEqual([MODEL]);
    expect(kedge.engines).toMatchObject([{ worker: "e0", events: `tcp://127.0.0.1:${engine.ports.events}` }]);
    expect(kedge.log()).toMatch(/serving tiny-qwen3 worker=e0 engine=vllm \d+\.\d+\S* blockSize=16 ranks=1/);
    const models = await (await fetch(`${kedge.url}/v1/models`)).json();
    expect(models.data.map(({ id }: { id: string }) => id)).toEqual([MODEL]);
  });

  it("answers streamed or whole, chat or completion, and says how it was routed", async () => {
    for (const body of [chat("Hello"), { model: MODEL, max_tokens: 4, prompt: "Hello" }]) {
      for (const stream of [false, true]) {
        const answer = await answered(kedge.url, { ...body, stream, ignore_eos: true });
        expect(answer).toMatchObject({ worker: "e0/0", rung: "exact", promised: 0 });
        expect(answer.text.length).toBeGreaterThan(0);
        if (stream) expect(answer.raw.trimEnd().endsWith("data: [DONE]")).toBe(true);
      }
    }
  });

  it("passes the engine's refusals on as they are", async () => {
    const bodies = [
      chat("Hello", { max_tokens: -1 }),
      chat(LONG.repeat(40)),
      chat("x", { cache_salt: "a/b" }),
    ];
    for (const body of bodies) {
      const direct = await ask(engine.url, body);
      const through = await ask(kedge.url, body);
      expect(direct.status).toBe(400);
      expect([through.status, through.raw]).toEqual([direct.status, direct.raw]);
    }
  });

  it("scheme bytes: a few hundred varied requests, none promised more than there is", async () => {
    const prompts = new Prompts(1, { words: 60, salts: SALTS });
    expectNeverAbove(await series(kedge.url, prompts, 150));
  });

  it("never lends a prefix across salts", async () => {
    const salted = (salt?: string) => settled(kedge.url, chat(`Salted. ${LONG}`, { cache_salt: salt }));
    expect(await salted("one")).toMatchObject({ promised: 0, cached: 0 });
    expect(await salted("two")).toMatchObject({ promised: 0, cached: 0 });
    expect(await salted()).toMatchObject({ promised: 0, cached: 0 });
    expectNeverAbove([await salted("one"), await salted("two"), await salted()]);
  });

  it("follows a conversation turn by turn", async () => {
    const messages = [{ role: "system", content: LONG }];
    let before = 0;
    for (let turn = 0; turn < 6; turn++) {
      messages.push({ role: "user", content: `Question ${turn}: where is the boat now?` });
      const answer = await settled(kedge.url, { model: MODEL, messages, max_tokens: 1 });
      expect(answer.promised).toBeLessThanOrEqual(answer.cached);
      if (turn > 0) expect(answer.promised).toBeGreaterThanOrEqual(before - 64);
      before = answer.promptTokens;
      messages.push({ role: "assistant", content: "It lies beyond the lights, and the tide carries it on." });
    }
  });

  it("knows the cache after many requests at once as well as before", async () => {
    const prompts = new Prompts(2, { words: 40, salts: SALTS });
    for (let round = 0; round < 5; round++) {
      const bodies = Array.from({ length: 8 }, () => prompts.next());
      await Promise.all(bodies.map((body) => answered(kedge.url, body)));
    }
    await idle();
    expectNeverAbove(await series(kedge.url, prompts, 40));
  });

  it("frees the engine when the client leaves", async () => {
    for (const stream of [true, false]) {
      const abort = new AbortController();
      const endless = chat("Run on.", { stream, max_tokens: 6_000, ignore_eos: true });
      const gone = fetch(`${kedge.url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(endless),
        signal: abort.signal,
      }).then((response) => response.text());
      gone.catch(() => undefined);
      const running = async () => metric(engine.url, "vllm:num_requests_running");
      await eventually("a running request", async () => (await running()) === 1);
      abort.abort();
      await eventually("an idle engine", async () => (await running()) === 0, 3_000);
      await expect(gone).rejects.toThrow();
    }
  });

  it("forgets what a reset took, with the next request", async () => {
    const body = chat(`Before the reset. ${LONG}`);
    await answered(kedge.url, body);
    await known(body);
    expect((await reset()).status).toBe(200);
    await answered(kedge.url, chat("The engine tells of its reset with this request."));
    expect(await settled(kedge.url, body)).toMatchObject({ promised: 0, cached: 0 });
    expectNeverAbove([await settled(kedge.url, body)]);
  });

  it("learns a warm engine's cache from its replay socket, and scheme tokens is exact", async () => {
    const prompts = new Prompts(3, { words: 60, salts: SALTS });
    await series(kedge.url, prompts, 60);
    const body = chat(`Before the gateway's restart. ${LONG}`);
    await answered(kedge.url, body);
    await restart("--scheme", "tokens");
    await known(body);
    expectExact(await series(kedge.url, prompts, 150));
  });

  it("scheme tokens: exact after many requests at once, too", async () => {
    const prompts = new Prompts(4, { words: 40, salts: SALTS });
    for (let round = 0; round < 5; round++) {
      const bodies = Array.from({ length: 8 }, () => prompts.next());
      await Promise.all(bodies.map((body) => answered(kedge.url, body)));
    }
    await idle();
    expectExact(await series(kedge.url, prompts, 40));
  });

  it("with a wrong events address it is predicted, never called exact, and says so", async () => {
    const { events } = engine.ports;
    await kedge.stop();
    const wrong = engine.option.replace(
      `events=tcp://127.0.0.1:${events}`,
      `events=tcp://127.0.0.1:${events + 1}`,
    );
    kedge = await startKedge([{ ...engine, option: wrong }]);
    await eventually("the warning", async () => kedge.log().includes("nobody publishes KV events at"));
    const body = chat(`Without events. ${LONG}`);
    expect(await answered(kedge.url, body)).toMatchObject({ rung: "predicted", promised: 0 });
    const again = await answered(kedge.url, body);
    expect(again.rung).toBe("predicted");
    expect(again.promised).toBeGreaterThan(100);
  });
});
