/** The gateway Worker, an agent's real door and a mock engine: what the engine does wrong reaches the client as the truth. */

import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { describe, expect, it } from "vitest";
import { startDoor } from "../../gpu-agent/door/index.ts";
import { type MockEngineOptions, startMockEngine } from "../../gpu-agent/engines/mock/index.ts";
import { Ingress } from "../../gpu-agent/ingress/index.ts";
import type { RequestLedger } from "../../gpu-agent/load/types.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { createPlanVerifier } from "../../src/plan/verify.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { MODEL, realClock, registration } from "../e2e/gateway-fleet.ts";
import { chatInit, closeAfterTest, eventually, KEYS, startWorker } from "./worker-stack.ts";

const AGENT_ID = "r/c/n";
const PIPED = "kedge_piped_streams_total";

/** Counts what the engine has under way. */
class CountingLedger implements RequestLedger {
  underWay = 0;

  admitted(): void {
    this.underWay++;
  }

  firstData(): void {}

  progressed(): void {}

  finished(): void {
    this.underWay--;
  }
}

async function setUp(
  engineOptions: MockEngineOptions = {},
  settings: Readonly<Record<string, string>> = {},
  stallTimeoutMs = 60_000,
) {
  const engine = await startMockEngine({ servedModelNames: [MODEL], ...engineOptions });
  closeAfterTest(() => engine.close());
  const ledger = new CountingLedger();
  const ingress = new Ingress({ ledger, timers: realClock, heartbeatMs: 15_000 });
  ingress.addEngine({ worker: "w", url: engine.url, dpSize: 1 });
  closeAfterTest(() => ingress.drain(0));
  const verifier = await createPlanVerifier({
    jwks: JSON.stringify(KEYS.publicJwks),
    audience: AGENT_ID,
    now: Date.now,
    onError: () => {},
  });
  const door = await startDoor({
    host: "127.0.0.1",
    port: 0,
    verifier,
    transport: ingress,
    standing: () => "current",
    status: () => ({ workers: [], requests: 0 }),
    clock: realClock,
    limits: { bodyBytes: 1_000_000, inflightBodyBytes: 10_000_000, stallTimeoutMs },
    registry: new Registry(),
    log: () => {},
  });
  closeAfterTest(() => door.close());
  const fleet = [registration("w", { agent: { id: AGENT_ID, url: door.url } })];
  return { engine, ledger, ...(await startWorker(fleet, settings)) };
}

/** Contents of a stream's data events, parsed; `[DONE]` as it is. */
const eventsOf = (text: string) =>
  text
    .split("\n\n")
    .filter((event) => event.startsWith("data: "))
    .map((event) => event.slice(6));

describe("a good engine", () => {
  it("answers whole and streamed; the stream goes by the pipe, and the usage that nobody asked for stays out", async () => {
    const { call, metric } = await setUp({ speed: 20 });
    const whole = await call("/v1/chat/completions", chatInit(false));
    expect(whole.status).toBe(200);
    expect(await whole.json()).toMatchObject({ object: "chat.completion", usage: {} });
    const events = eventsOf(await (await call("/v1/chat/completions", chatInit(true))).text());
    expect(events.at(-1)).toBe("[DONE]");
    expect(events.length).toBeGreaterThan(5);
    expect(events.some((event) => event.includes('"usage":{'))).toBe(false);
    expect(await metric(PIPED)).toBe(1);
  });
});

describe("usage", () => {
  it("is learnt from one stream in sixteen, whose client sees no difference", async () => {
    const { call, metric } = await setUp({ speed: 100, meanOutputTokens: 8 });
    for (let i = 0; i < 16; i++) {
      const events = eventsOf(await (await call("/v1/chat/completions", chatInit(true))).text());
      expect(events.at(-1)).toBe("[DONE]");
      expect(events.some((event) => event.includes('"usage":{'))).toBe(false);
    }
    expect(await metric(PIPED)).toBe(15);
    expect(await metric(`kedge_prompt_tokens_total{model="${MODEL}",worker="w"}`)).toBeGreaterThan(0);
  });
});

describe("an engine that fails inside a stream", () => {
  it("by a cut: an error, no end mark, from the door, on the pipe", async () => {
    const { call, metric } = await setUp({ speed: 5, misbehaviour: { cutAfterTokens: 20 } });
    const events = eventsOf(await (await call("/v1/chat/completions", chatInit(true))).text());
    expect(JSON.parse(events.at(-1)!)).toMatchObject({ error: { code: "stream_interrupted" } });
    expect(await metric(PIPED)).toBe(1);
  });

  it("by silence: an error, no end mark, and the engine is let go", async () => {
    const { call, ledger } = await setUp({ speed: 5, misbehaviour: { stallAfterTokens: 20 } }, {}, 300);
    const events = eventsOf(await (await call("/v1/chat/completions", chatInit(true))).text());
    expect(JSON.parse(events.at(-1)!)).toMatchObject({ error: { code: "stream_stalled" } });
    await eventually(() => ledger.underWay === 0);
  });

  it("every time: it is left alone once three streams that were looked into have shown it", async () => {
    const { call, metric } = await setUp({ speed: 100, misbehaviour: { cutAfterTokens: 4 } });
    for (let i = 0; i < 48; i++) await (await call("/v1/chat/completions", chatInit(true))).text();
    expect(await metric('kedge_breaker_open{worker="w"}')).toBe(1);
    expect((await call("/v1/chat/completions", chatInit(true))).status).toBe(503);
  });

  it("before its first data: an error status and nothing else", async () => {
    const { call } = await setUp({ misbehaviour: { busy: true } });
    const answer = await call("/v1/chat/completions", chatInit(true));
    expect(answer.status).toBe(503);
    expect(await answer.json()).toMatchObject({ error: { code: "upstream_busy" } });
  });
});

describe("a client that leaves in the middle of a stream", () => {
  it("ends the engine's request", async () => {
    const { url, ledger } = await setUp({ meanOutputTokens: 100_000 });
    const { body, headers } = chatInit(true);
    const client = request(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: headers as Record<string, string>,
    });
    client.on("error", () => {});
    client.end(body);
    const [response] = (await once(client, "response")) as [IncomingMessage];
    await once(response, "data");
    expect(ledger.underWay).toBe(1);
    client.destroy();
    await eventually(() => ledger.underWay === 0);
  });
});

describe("an agent that does not know this gateway's keys", () => {
  it("gets no request through, and the client learns no more than that", async () => {
    const { call } = await setUp({}, { KEDGE_PLAN_KEY: JSON.stringify((await newPlanKeys()).privateJwks) });
    const answer = await call("/v1/chat/completions", chatInit(false));
    expect(answer.status).toBe(502);
    expect(JSON.stringify(await answer.json())).not.toMatch(/key|127\.0\.0\.1/i);
  });
});
