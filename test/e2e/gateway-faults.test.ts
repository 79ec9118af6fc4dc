/** Misbehaving engines behind the whole stack (acceptance 7): what clients see, and that the view tells the truth afterwards. */

import { afterEach, describe, expect, it } from "vitest";
import type { MockEngineOptions } from "../../gpu-agent/engines/mock/index.ts";
import { eventually } from "./gateway-fleet.ts";
import { type Stack, type StackOptions, startStack } from "./gateway-stack.ts";

let stack: Stack;
afterEach(async () => {
  expect(stack.errors).toEqual([]);
  await stack.close();
});

async function start(engines: readonly MockEngineOptions[], options: Omit<StackOptions, "engines"> = {}) {
  stack = await startStack({ engines, ...options });
}

const PREFIX = "You are the harbour master and you know every ship by name. ".repeat(40);
const chat = (extra: object = {}) => ({
  model: "mock",
  messages: [
    { role: "system", content: PREFIX },
    { role: "user", content: "Count the ships." },
  ],
  max_tokens: 8,
  seed: 1,
  ...extra,
});

const post = (path: string, body: object, headers: Record<string, string> = {}) =>
  fetch(stack.url + path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
const ask = (extra: object = {}, headers: Record<string, string> = {}) =>
  post("/v1/chat/completions", chat(extra), headers);
const streamText = async (headers: Record<string, string> = {}) =>
  (await ask({ stream: true }, headers)).text();

/** Cached tokens that routing expects of this worker for the test's prompt. */
async function expected(worker: string): Promise<number> {
  const response = await post("/v1/route", chat(), { "x-kedge-worker": worker });
  return (await response.json()).overlap_tokens;
}

/** Cached tokens that the engine itself reports. */
async function reported(worker: string): Promise<number> {
  const response = await ask({ max_tokens: 1 }, { "x-kedge-worker": worker });
  return (await response.json()).usage.prompt_tokens_details.cached_tokens;
}

/** The bytes scheme falls short by a chunk and a block at most, and never claims more than there is. */
async function expectTruth(worker: string): Promise<void> {
  const before = await expected(worker);
  const truth = await reported(worker);
  expect(before).toBeLessThanOrEqual(truth);
  expect(truth - before).toBeLessThanOrEqual(64);
}

/** Predictions live for a moment only, so that what is left is what events told. */
const SHORT = { router: { predictedTtlSeconds: 0.5, mode: "round-robin" } } as const;

/** The engines are idle, what they said has arrived, and no prediction is left. */
async function settle(): Promise<void> {
  await stack.idle();
  await eventually(() => stack.store.fleet().every(({ feed }) => feed.lagEvents === 0));
  stack.skip(800);
}

describe("a fault before the first data", () => {
  it.each([
    ["finish_reason error behind a 200", { error200: "finish-reason" }],
    ["in-band error behind a 200", { error200: "in-band" }],
    ["cut", { cutAfterTokens: 0 }],
    ["busy", { busy: true }],
  ] as const)(
    "%s: another worker answers, whole and by stream, and the view stays true",
    async (_name, fault) => {
      await start([{}, {}], { config: SHORT });
      stack.engines[0]!.misbehave({ ...fault });
      // Two of each: round robin begins once at either worker.
      for (let i = 0; i < 2; i++) {
        const whole = await ask();
        expect([whole.status, whole.headers.get("x-kedge-worker")]).toEqual([200, "w1/0"]);
      }
      for (let i = 0; i < 2; i++) {
        const text = await streamText();
        expect(text.endsWith("data: [DONE]\n\n")).toBe(true);
        expect(text).not.toContain('"error"');
      }
      expect(stack.engines[0]!.stats()[0]!.running).toBe(0);
      stack.engines[0]!.behave();
      await settle();
      await expectTruth("w0");
      await expectTruth("w1");
    },
  );

  it("a stall: the next worker is asked in time", async () => {
    await start([{}, {}], { config: { ...SHORT, limits: { firstByteTimeoutMs: 200 } } });
    stack.engines[0]!.misbehave({ stallAfterTokens: 0 });
    const text = await streamText();
    expect(text.endsWith("data: [DONE]\n\n")).toBe(true);
    await eventually(() => stack.engines[0]!.stats()[0]!.running === 0);
  });
});

describe("a fault inside a stream", () => {
  it("a cut is told in-band, with no invented end, and the view stays true", async () => {
    await start([{}], { config: SHORT });
    stack.engines[0]!.misbehave({ cutAfterTokens: 3, requests: 1 });
    const text = await streamText();
    expect(text).toContain('"code":"stream_interrupted"');
    expect(text).not.toContain("[DONE]");
    await settle();
    await expectTruth("w0");
  });

  it("a stall is ended by an error and the engine is aborted", async () => {
    await start([{}], { config: { ...SHORT, limits: { stallTimeoutMs: 200 } } });
    stack.engines[0]!.misbehave({ stallAfterTokens: 3, requests: 1 });
    const text = await streamText();
    expect(text).toContain('"code":"stream_stalled"');
    expect(text).not.toContain("[DONE]");
    await eventually(() => stack.engines[0]!.stats()[0]!.running === 0);
    await settle();
    await expectTruth("w0");
  });

  it("events split at arbitrary bytes arrive whole", async () => {
    await start([{}]);
    const good = await streamText();
    stack.engines[0]!.misbehave({ splitChunks: true });
    const contents = (text: string) =>
      text
        .split("\n\n")
        .filter((event) => event.startsWith("data: {"))
        .map((event) => JSON.parse(event.slice(6)).choices[0].delta);
    expect(contents(await streamText())).toEqual(contents(good));
  });
});

describe("an engine that restarts", () => {
  it("is used again with an empty cache, and the view knows it", async () => {
    await start([{}], { config: SHORT, agent: { pollMs: 50 } });
    await ask();
    await settle();
    // The events may still be on their way.
    await expect.poll(() => expected("w0")).toBeGreaterThan(300);
    const [before] = stack.store.fleet();
    await stack.engines[0]!.restart();
    await eventually(() => {
      const [row] = stack.store.fleet();
      return row !== undefined && row.incarnation !== before!.incarnation;
    });
    expect(await expected("w0")).toBe(0);
    // What the reborn engine says before its socket is heard again comes by replay, with the next batch that is heard.
    let short = Number.POSITIVE_INFINITY;
    for (let i = 0; i < 50 && short > 64; i++) {
      await ask({ messages: [{ role: "user", content: `${PREFIX} ${i}` }] });
      await settle();
      const before = await expected("w0");
      short = (await reported("w0")) - before;
      expect(short).toBeGreaterThanOrEqual(0);
    }
    expect(short).toBeLessThanOrEqual(64);
  });
});

describe("prediction mode", () => {
  it("needs no events: says so, and keeps a conversation on its worker", async () => {
    await start([{ kvEvents: null }, { kvEvents: null }, { kvEvents: null }], {
      config: { router: { kvEvents: false } },
    });
    const first = await ask();
    expect(first.headers.get("x-kedge-rung")).toBe("predicted");
    const worker = first.headers.get("x-kedge-worker");
    for (let turn = 0; turn < 5; turn++) {
      await stack.idle();
      const next = await ask({ seed: turn });
      expect(next.headers.get("x-kedge-worker")).toBe(worker);
      const { usage } = await next.json();
      expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(300);
    }
  });
});
