/** Clients that leave or read slowly, workers that keep failing, and a crowd (guarantees 4.1–4.3). */

import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { describe, expect, it } from "vitest";
import { eventually, ManualClock, MODEL } from "./gateway-fleet.ts";
import { body, good, open, setUp, status, stream } from "./gateway-scripts.ts";
import { chatChunk, DONE, openStream, type Script, streamAll } from "./gateway-upstream.ts";

describe("a client that leaves", () => {
  const phases: [string, boolean, Script, string][] = [
    ["before headers, stream", true, () => {}, "before_headers"],
    ["before headers, no stream", false, () => {}, "before_headers"],
    ["before first data", true, (response) => openStream(response), "before_first_data"],
    [
      "in the middle of a whole answer",
      false,
      (response) => {
        response.writeHead(200, { "content-type": "application/json" });
        response.write("{");
      },
      "before_first_data",
    ],
    [
      "in the middle of a stream",
      true,
      (response) => {
        openStream(response);
        response.write(chatChunk("a"));
      },
      "streaming",
    ],
  ];

  it.each(phases)(
    "%s, aborts the engine at once and tries nobody else",
    async (_name, streams, script, phase) => {
      const { fleet, engines } = await setUp([script, good]);
      const client = open(fleet.url, body({ stream: streams }));
      const { abandoned } = await engines[0]!.arrival(0);
      if (phase === "streaming") {
        const [response] = (await once(client, "response")) as [IncomingMessage];
        await once(response, "data");
      }
      client.destroy();
      await abandoned;
      await eventually(() => fleet.metric(`kedge_aborts_total{model="${MODEL}",phase="${phase}"}`) === 1);
      expect(engines[1]!.requests).toHaveLength(0);
      expect(fleet.ingress.activeRequests).toBe(0);
      expect(fleet.metric(`kedge_breaker_open{worker="a"}`)).toBe(0);
      expect(fleet.metric(`kedge_inflight_requests{model="${MODEL}"}`)).toBe(0);
    },
  );
});

describe("a slow reader", () => {
  it("holds the engine in bounded memory, is not taken for a stall, and loses nothing", async () => {
    const clock = new ManualClock();
    const event = chatChunk("x".repeat(32 * 1024));
    const count = 600;
    let written = 0;
    const { fleet } = await setUp(
      [
        async (response) => {
          openStream(response);
          for (let i = 0; i < count; i++) {
            written++;
            if (!response.write(event)) await once(response, "drain");
          }
          response.end(DONE);
        },
      ],
      { clock, config: { limits: { stallTimeoutMs: 1_000 } } },
    );
    const client = open(fleet.url, body({ stream: true }));
    const [response] = (await once(client, "response")) as [IncomingMessage];
    response.pause();
    let last = -1;
    let quiet = 0;
    await eventually(() => {
      quiet = written === last ? quiet + 1 : 0;
      last = written;
      return quiet > 200;
    });
    expect(written).toBeLessThan(count);
    clock.advance(10_000);
    let length = 0;
    response.on("data", (chunk: Buffer) => {
      length += chunk.length;
    });
    response.resume();
    await once(response, "end");
    expect(length).toBe(event.length * count + DONE.length);
  });
});

describe("breakers", () => {
  it("leave a failing worker alone after three failures, and busy answers never count", async () => {
    const clock = new ManualClock();
    let broken = true;
    const { fleet, engines } = await setUp(
      [(response, request) => (broken ? status(502) : good)(response, request), good],
      { clock },
    );
    for (let i = 0; i < 10; i++) await (await stream(fleet.url)).text();
    expect(engines[0]!.requests).toHaveLength(3);
    expect(fleet.metric(`kedge_breaker_open{worker="a"}`)).toBe(1);
    broken = false;
    clock.advance(1_000);
    for (let i = 0; i < 4; i++) await (await stream(fleet.url)).text();
    expect(engines[0]!.requests.length).toBeGreaterThanOrEqual(5);
    expect(fleet.metric(`kedge_breaker_open{worker="a"}`)).toBe(0);

    const busy = await setUp([status(429), good], { clock });
    for (let i = 0; i < 10; i++) await (await stream(busy.fleet.url)).text();
    expect(busy.engines[0]!.requests).toHaveLength(5);
  });

  it("leave a worker alone that begins every answer and breaks it off", async () => {
    const clock = new ManualClock();
    const { fleet, engines } = await setUp(
      [
        (response) => {
          openStream(response);
          response.write(chatChunk("a"), () => response.destroy());
        },
        good,
      ],
      { clock },
    );
    for (let i = 0; i < 10; i++) await (await stream(fleet.url)).text();
    expect(engines[0]!.requests).toHaveLength(3);
  });

  it("fail a lone broken worker's requests at once while open", async () => {
    const clock = new ManualClock();
    const { fleet, engines } = await setUp([status(502)], { clock });
    for (let i = 0; i < 3; i++) expect((await stream(fleet.url)).status).toBe(502);
    const refused = await stream(fleet.url);
    expect(refused.status).toBe(503);
    expect(engines[0]!.requests).toHaveLength(3);
  });
});

describe("overload", () => {
  it("keeps of a running request its bytes, not its parsed form", async () => {
    setFlagsFromString("--expose-gc");
    const collect: () => void = runInNewContext("gc");
    const { fleet, engines } = await setUp([
      (response) => {
        openStream(response);
        response.write(chatChunk("a"));
      },
    ]);
    const payload = body({ stream: true, unknown_field: Array(300_000).fill(0) });
    const measure = () => {
      collect();
      return process.memoryUsage().heapUsed;
    };
    const clients = [];
    const before = measure();
    for (let i = 0; i < 3; i++) {
      const client = open(fleet.url, payload);
      clients.push(client);
      const [response] = (await once(client, "response")) as [IncomingMessage];
      await once(response, "data");
      engines[0]!.requests.length = 0;
    }
    expect(measure() - before).toBeLessThan(10 * 1024 * 1024);
    for (const client of clients) client.destroy();
  });

  it("answers a thousand requests at once, each with its own answer", async () => {
    const { fleet } = await setUp([
      (response, { body: sent }) => streamAll(response, [String(JSON.parse(sent).seed)]),
    ]);
    const answers = await Promise.all(
      Array.from({ length: 1_000 }, async (_, seed) => (await stream(fleet.url, { seed })).text()),
    );
    answers.forEach((text, seed) => {
      expect(text).toBe(chatChunk(String(seed)) + DONE);
    });
  });
});

describe("many large bodies", () => {
  it("beyond the budget are refused with a time to retry, and ended ones make room", async () => {
    const waiting: (() => void)[] = [];
    const slow: Script = (response) => {
      waiting.push(() => streamAll(response, ["a"]));
    };
    const limits = { bodyBytes: 4_000, inflightBodyBytes: 6_000 };
    const { fleet } = await setUp([slow], { config: { limits } });
    const large = { padding: "x".repeat(3_500) };
    const first = stream(fleet.url, large);
    await eventually(() => waiting.length === 1);
    const refused = await stream(fleet.url, large);
    expect([refused.status, (await refused.json()).error.code]).toEqual([503, "overloaded"]);
    expect(refused.headers.get("retry-after")).toBe("1");
    const small = stream(fleet.url);
    await eventually(() => waiting.length === 2);
    for (const finish of waiting) finish();
    expect(await (await first).text()).toContain(DONE);
    expect(await (await small).text()).toContain(DONE);
    const again = stream(fleet.url, large);
    await eventually(() => waiting.length === 3);
    waiting[2]!();
    expect((await again).status).toBe(200);
  });
});
