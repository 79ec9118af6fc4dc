/** What the mock does with requests: text, limits, aborts, faults on demand. */

import { connect } from "node:net";
import { describe, expect, it } from "vitest";
import { type MockEngine, startMockEngine } from "../../gpu-agent/engines/mock/index.ts";
import { eventsOf, type RawResponse, send, until } from "./mock-engine-client.ts";
import { chat, cleanups, openStream, start } from "./mock-engine-rig.ts";

interface Answer {
  readonly choices: {
    readonly message: { readonly content: string };
    readonly finish_reason: string;
    readonly stop_reason: string | null;
    readonly token_ids: number[];
  }[];
  readonly usage: {
    readonly prompt_tokens: number;
    readonly completion_tokens: number;
    readonly prompt_tokens_details: { readonly cached_tokens: number };
  };
  readonly prompt_token_ids: number[];
}
const answer = (response: RawResponse): Answer => JSON.parse(response.body) as Answer;

describe("text", () => {
  it("the same prompt and seed give the same text, on any engine; another seed gives another", async () => {
    const [one, two] = await Promise.all([start(), start()]);
    const text = async (engine: MockEngine, seed: number): Promise<string> =>
      answer(await chat(engine, { seed })).choices[0]!.message.content;
    expect(await text(one!, 1)).toBe(await text(two!, 1));
    expect(await text(one!, 1)).not.toBe(await text(one!, 2));
    expect(await text(one!, 1)).toMatch(/^( [a-z]+|\.)+$/);
  });

  it("a conversation that goes on hits everything that it said before", async () => {
    const engine = await start();
    const messages: { role: string; content: string }[] = [
      { role: "user", content: "Tell me of the harbour. ".repeat(20) },
    ];
    let held = 0;
    for (let turn = 0; turn < 4; turn++) {
      const {
        choices,
        usage,
        prompt_token_ids: ids,
      } = answer(await chat(engine, { messages, max_tokens: 200, min_tokens: 60, return_token_ids: true }));
      expect(usage.prompt_tokens_details.cached_tokens).toBe(
        Math.min(Math.floor(held / 16), Math.floor((ids.length - 1) / 16)) * 16,
      );
      expect(choices[0]!.finish_reason).toBe("stop");
      // The last token was drawn but never computed.
      held = ids.length + usage.completion_tokens - 1;
      messages.push(
        { role: "assistant", content: choices[0]!.message.content },
        { role: "user", content: "Go on, please." },
      );
    }
    expect(held).toBeGreaterThan(500);
  });

  it("a stop string ends the text before it, wherever tokens split it", async () => {
    const engine = await start();
    const full = answer(await chat(engine, { max_tokens: 60, ignore_eos: true })).choices[0]!.message.content;
    const stop = full.slice(40, 52);
    const whole = answer(await chat(engine, { max_tokens: 60, ignore_eos: true, stop: [stop] }));
    expect(whole.choices[0]).toMatchObject({
      finish_reason: "stop",
      stop_reason: stop,
      message: { content: full.slice(0, 40) },
    });
    const streamed = eventsOf(
      (await chat(engine, { max_tokens: 60, ignore_eos: true, stop: [stop], stream: true })).body,
    ).slice(1, -1);
    const said = streamed.map(
      (event) =>
        (JSON.parse(event) as { choices: { delta: { content?: string } }[] }).choices[0]!.delta.content ?? "",
    );
    expect(said.join("")).toBe(full.slice(0, 40));
  });
});

describe("limits", () => {
  it("refuses with 503 what the queue does not hold, and counts it", async () => {
    const engine = await start({ profile: "8b-h100", maxNumSeqs: 1, maxNumQueuedReqs: 3 });
    const answers = await Promise.all(
      Array.from({ length: 6 }, () => chat(engine, { max_tokens: 20, ignore_eos: true })),
    );
    expect(answers.map(({ status }) => status).toSorted()).toEqual([200, 200, 200, 503, 503, 503]);
    const refused = answers.find(({ status }) => status === 503)!;
    expect(JSON.parse(refused.body)).toEqual({
      error: {
        message:
          "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
        type: "Service Unavailable",
        param: null,
        code: 503,
      },
    });
    const { body } = await send(engine.url, { method: "GET", path: "/metrics" });
    expect(body).toContain(
      'vllm:admission_rejections_total{model_name="mock",reason="max_num_queued_reqs"} 3.0',
    );
  });

  it("refuses more sequences than any engine would run for one request", async () => {
    const engine = await start();
    for (const n of [0, -1, 16_385, 1e9, 1e300]) expect((await chat(engine, { n })).status).toBe(400);
  });

  it("a model that does not fit its cache does not start", async () => {
    await expect(startMockEngine({ numGpuBlocks: 64, maxModelLen: 2000 })).rejects.toMatchObject({
      code: "config_invalid",
    });
    await expect(startMockEngine({ blockSize: 0 })).rejects.toMatchObject({ code: "config_invalid" });
  });

  it.each(["fin", "rst"] as const)("a client that goes (%s) frees its request within a step", async (how) => {
    const engine = await start({ profile: "8b-h100" });
    const { hostname, port } = new URL(engine.url);
    const body = JSON.stringify({
      messages: [{ role: "user", content: "x" }],
      stream: true,
      ignore_eos: true,
    });
    const socket = connect(Number(port), hostname);
    cleanups.push(() => socket.destroy());
    socket.write(
      `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
    );
    await until(() => engine.stats()[0]!.generationTokens > 2);
    if (how === "fin") socket.end();
    else socket.resetAndDestroy();
    await until(() => engine.stats()[0]!.running === 0, 500);
    expect(engine.stats()[0]).toMatchObject({ usage: 0, requestsFinished: 0 });
    expect(JSON.parse((await send(engine.url, { method: "GET", path: "/load" })).body)).toEqual({
      server_load: 0,
    });
  });
});

describe("faults", () => {
  it("busy, for so many requests as asked", async () => {
    const engine = await start({ misbehaviour: { busy: true, requests: 2 } });
    const statuses: number[] = [];
    for (let i = 0; i < 3; i++) statuses.push((await chat(engine, {})).status);
    expect(statuses).toEqual([503, 503, 200]);
  });

  it("a stream that is cut after three tokens, with the body unfinished", async () => {
    const engine = await start({ misbehaviour: { cutAfterTokens: 3 } });
    const got = await chat(engine, { stream: true, ignore_eos: true });
    expect([got.status, got.complete, eventsOf(got.body).length]).toEqual([200, false, 4]);
    expect(engine.stats()[0]).toMatchObject({ running: 0, usage: 0 });
    expect((await chat(engine, {})).status).toBe(0);
  });

  it("a stream that stalls: headers, two tokens, silence, the connection open", async () => {
    const engine = await start({ misbehaviour: { stallAfterTokens: 2 } });
    const { chunks, response } = await openStream(engine, { max_tokens: 20, ignore_eos: true });
    await until(() => engine.stats()[0]!.requestsFinished === 1);
    expect(chunks.join("").match(/"content":" /g)).toHaveLength(2);
    expect([response.complete, response.destroyed]).toEqual([false, false]);
  });

  it("200 with an error inside: in the stream, with the role before it and [DONE] behind", async () => {
    const engine = await start({ misbehaviour: { error200: "in-band" } });
    const events = eventsOf((await chat(engine, { stream: true })).body);
    expect(events).toHaveLength(3);
    expect(events[1]).toBe(
      '{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}',
    );
    expect(events[2]).toBe("[DONE]");
    expect((await chat(engine, {})).status).toBe(500);
  });

  it("200 with finish_reason error and no content", async () => {
    const engine = await start({ misbehaviour: { error200: "finish-reason", error200AfterTokens: 2 } });
    const whole = await chat(engine, {});
    expect(whole.status).toBe(200);
    expect(answer(whole).choices).toEqual([
      expect.objectContaining({ finish_reason: "error", message: { role: "assistant" } }),
    ]);
    const events = eventsOf((await chat(engine, { stream: true })).body);
    expect(events.at(-2)).toContain('"finish_reason":"error"');
  });

  it("events split anywhere join to the same stream", async () => {
    const engine = await start({ misbehaviour: { splitChunks: true } });
    const got = await chat(engine, {
      stream: true,
      max_tokens: 80,
      structured_outputs: { choice: ["Käpt'n 潮位 🌊."] },
    });
    const events = eventsOf(got.body);
    expect(got.chunkSizes!.length).toBeGreaterThan(events.length);
    const said = events
      .slice(0, -1)
      .map(
        (event) =>
          (JSON.parse(event) as { choices: { delta: { content?: string } }[] }).choices[0]!.delta.content ??
          "",
      );
    expect(events.at(-1)).toBe("[DONE]");
    expect(said.join("")).toBe("Käpt'n 潮位 🌊.");
  });

  it("delays hold back headers and first data", async () => {
    const engine = await start({ misbehaviour: { firstByteDelayMs: 80 } });
    const startMs = performance.now();
    const { response, chunks } = await openStream(engine, {});
    const headersMs = performance.now() - startMs;
    await until(() => chunks.length > 0);
    expect(performance.now() - startMs).toBeGreaterThanOrEqual(79);
    expect(headersMs).toBeLessThan(79);
    await until(() => response.complete);
    engine.behave();
    engine.misbehave({ headerDelayMs: 80 });
    const secondMs = performance.now();
    await openStream(engine, {});
    expect(performance.now() - secondMs).toBeGreaterThanOrEqual(79);
  });

  it("a prefill leg without parameters, a pull that fails", async () => {
    const engine = await start({
      kvTransfer: { kv_connector: "NixlConnector" },
      misbehaviour: { missingTransferParams: true },
    });
    const prefill = {
      kv_transfer_params: { do_remote_decode: true, do_remote_prefill: false },
      max_tokens: 1,
    };
    expect(JSON.parse((await chat(engine, prefill)).body)).toMatchObject({ kv_transfer_params: null });
    engine.behave();
    const { kv_transfer_params: params } = JSON.parse((await chat(engine, prefill)).body) as {
      kv_transfer_params: object;
    };
    engine.misbehave({ transferFails: true });
    expect((await chat(engine, { kv_transfer_params: params })).status).toBe(500);
    const events = eventsOf((await chat(engine, { kv_transfer_params: params, stream: true })).body);
    expect(events[1]).toContain("Internal server error");
    expect(engine.stats()[0]).toMatchObject({ usage: 0, deferred: 0 });
  });

  it("at run time over HTTP; what it does not know is refused", async () => {
    const engine = await start();
    const set = (body: object): Promise<RawResponse> =>
      send(engine.url, { method: "POST", path: "/mock/misbehave", body });
    expect((await set({ busy: true })).status).toBe(200);
    expect((await chat(engine, {})).status).toBe(503);
    expect((await set({ nonsense: 1 })).status).toBe(400);
    expect((await set({ reset: true })).status).toBe(200);
    expect((await chat(engine, {})).status).toBe(200);
  });
});
