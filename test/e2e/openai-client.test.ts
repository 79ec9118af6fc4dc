/** The official OpenAI client against the gateway, agent and mock engines, in one process and through the agent's door. */

import OpenAI from "openai";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { eventually } from "./gateway-fleet.ts";
import { type Stack, startStack } from "./gateway-stack.ts";

let stack: Stack;
let client: OpenAI;

const messages = (content: string): OpenAI.ChatCompletionMessageParam[] => [
  { role: "system", content: "You are the harbour master. ".repeat(60) },
  { role: "user", content },
];
const running = () =>
  stack.engines.flatMap((engine) => engine.stats()).reduce((sum, { running }) => sum + running, 0);

const TOOLS: OpenAI.ChatCompletionTool[] = [
  {
    type: "function",
    function: {
      name: "get_tide",
      description: "Tide at a port",
      parameters: { type: "object", properties: { port: { type: "string" } }, required: ["port"] },
    },
  },
];

describe.each([
  ["in one process", false],
  ["through the agent's door", true],
])("the OpenAI client %s", (_name, door) => {
  beforeAll(async () => {
    stack = await startStack({ engines: [{}, {}], door });
    client = new OpenAI({ baseURL: `${stack.url}/v1`, apiKey: "unused", maxRetries: 0 });
  });
  afterAll(() => stack.close());

  it("lists and retrieves models", async () => {
    const names: string[] = [];
    for await (const model of client.models.list()) names.push(model.id);
    expect(names).toEqual(["mock"]);
    expect(await client.models.retrieve("mock")).toMatchObject({ id: "mock", object: "model" });
    await expect(client.models.retrieve("none")).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  });

  it("completes a chat whole and by stream with the same text", async () => {
    const request = {
      model: "mock",
      messages: messages("Count the ships."),
      max_tokens: 24,
      temperature: 0,
      seed: 3,
    };
    const whole = await client.chat.completions.create(request);
    const text = whole.choices[0]!.message.content!;
    expect(text.length).toBeGreaterThan(0);
    expect(whole.usage!.completion_tokens).toBe(24);
    const stream = await client.chat.completions.create({ ...request, stream: true });
    let streamed = "";
    let chunks = 0;
    for await (const chunk of stream) {
      chunks++;
      expect(chunk.usage ?? null).toBeNull();
      streamed += chunk.choices[0]!.delta.content ?? "";
    }
    expect(streamed).toBe(text);
    expect(chunks).toBeGreaterThan(20);
  });

  it("gives a stream's usage to whoever asks, with the cached tokens that routing expected", async () => {
    const request = { model: "mock", messages: messages("What is the tide?"), max_tokens: 4 };
    await client.chat.completions.create(request);
    // Load reports follow a request's end within milliseconds; until then its worker looks occupied.
    await stack.idle();
    const { data: stream, response } = await client.chat.completions
      .create({ ...request, stream: true, stream_options: { include_usage: true } })
      .withResponse();
    let usage: OpenAI.CompletionUsage | null | undefined;
    for await (const chunk of stream) usage = chunk.usage ?? usage;
    const cached = usage!.prompt_tokens_details!.cached_tokens!;
    expect(cached).toBeGreaterThan(300);
    const predicted = Number(response.headers.get("x-kedge-overlap-tokens"));
    expect(Math.abs(predicted - cached)).toBeLessThanOrEqual(64);
    expect(response.headers.get("x-kedge-rung")).toBe("exact");
  });

  it("completes a text prompt, whole and by stream", async () => {
    const request = { model: "mock", prompt: "The harbour lies", max_tokens: 8, seed: 1 };
    const whole = await client.completions.create(request);
    expect(whole.choices[0]!.finish_reason).toBe("length");
    let streamed = "";
    for await (const chunk of await client.completions.create({ ...request, stream: true })) {
      streamed += chunk.choices[0]?.text ?? "";
    }
    expect(streamed).toBe(whole.choices[0]!.text);
  });

  it("gets tool calls as the engine makes them, whole and by stream", async () => {
    const request: OpenAI.ChatCompletionCreateParamsNonStreaming = {
      model: "mock",
      messages: messages("When is high tide in Cork?"),
      tools: TOOLS,
      tool_choice: { type: "function", function: { name: "get_tide" } },
      max_tokens: 60,
      seed: 2,
    };
    const whole = await client.chat.completions.create(request);
    const call = whole.choices[0]!.message.tool_calls![0]!;
    expect(call).toMatchObject({ type: "function", function: { name: "get_tide" } });
    let name = "";
    let args = "";
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
      for (const delta of chunk.choices[0]?.delta.tool_calls ?? []) {
        name += delta.function?.name ?? "";
        args += delta.function?.arguments ?? "";
      }
    }
    expect(name).toBe("get_tide");
    expect(args).toBe(call.type === "function" ? call.function.arguments : null);
  });

  it("aborts a stream and a whole answer, and the engine stops at once", async () => {
    const endless = { model: "mock", messages: messages("Say a lot."), max_tokens: 20_000, ignore_eos: true };
    const stream = await client.chat.completions.create({ ...endless, stream: true });
    for await (const _chunk of stream) break;
    stream.controller.abort();
    await eventually(() => running() === 0);
    const controller = new AbortController();
    const whole = client.chat.completions
      .create(endless, { signal: controller.signal })
      .catch((error) => error);
    await eventually(() => running() === 1);
    controller.abort();
    expect(await whole).toBeInstanceOf(OpenAI.APIUserAbortError);
    await eventually(() => running() === 0);
    expect(stack.agent.status().requests).toBe(0);
  });

  it("meets typed errors", async () => {
    const ask = (extra: object) =>
      client.chat.completions.create({ model: "mock", messages: messages("x"), ...extra });
    await expect(ask({ model: "none" })).rejects.toMatchObject({ status: 404, code: "model_not_found" });
    await expect(ask({ messages: "no list" })).rejects.toBeInstanceOf(OpenAI.BadRequestError);
    await expect(ask({ max_tokens: -1 })).rejects.toMatchObject({ status: 400 });
    for (const engine of stack.engines) engine.misbehave({ busy: true });
    await expect(ask({})).rejects.toMatchObject({ status: 503, code: "upstream_busy" });
    for (const engine of stack.engines) engine.behave();
    expect((await ask({ max_tokens: 2 })).choices).toHaveLength(1);
  });
});
