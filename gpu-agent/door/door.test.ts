/** The door against real sockets: nobody without a good plan reaches an engine; answers pass true; streams are judged; errors keep their code. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { connect } from "node:net";
import fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import type { KedgeError } from "../../src/errors/index.ts";
import { createAgentTransport } from "../../src/node/agent-transport.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { BodySink, TransportResponse } from "../../src/plan/transport.ts";
import { startTestDoor, type TestDoor, type TestDoorOptions } from "../../test/e2e/gateway-door.ts";
import { eventually, ManualClock } from "../../test/e2e/gateway-fleet.ts";
import {
  chatChunk,
  DONE,
  openStream,
  type Script,
  startUpstream,
  streamAll,
  usageChunk,
} from "../../test/e2e/gateway-upstream.ts";
import { Ingress } from "../ingress/index.ts";

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const LEDGER = { admitted() {}, firstData() {}, progressed() {}, finished() {} };
const PATH = "/v1/chat/completions";

interface SetUp extends TestDoorOptions {
  readonly manual?: ManualClock;
  readonly heartbeatMs?: number;
}

async function setUp(script: Script, { manual, heartbeatMs = 15_000, ...options }: SetUp = {}) {
  const engine = await startUpstream(script);
  closing.push(() => engine.close());
  const clock = manual ?? {
    now: () => performance.now(),
    setTimeout: (callback: () => void, delayMs: number) => setTimeout(callback, delayMs),
    clearTimeout: (handle: unknown) => clearTimeout(handle as NodeJS.Timeout),
  };
  const ingress = new Ingress({ ledger: LEDGER, timers: clock, heartbeatMs });
  ingress.addEngine({ worker: "w", url: engine.url, dpSize: 1 });
  closing.push(() => ingress.drain(0));
  const test = await startTestDoor(ingress, { clock, ...options });
  closing.push(() => test.close());
  return { engine, ingress, ...test };
}

let nextId = 0;
function plan(overrides: Partial<Plan> = {}): Plan {
  return {
    agent: null,
    requestId: `r-${nextId++}`,
    model: "m",
    worker: "w",
    rank: 0,
    incarnation: "1",
    role: "aggregated",
    deadlineMs: null,
    load: { promptTokens: 32, overlapTokens: 0, blocks: 2 },
    dropUsage: false,
    cacheSalt: null,
    ...overrides,
  };
}

const bytes = (text: string) => new TextEncoder().encode(text);
const BODY = '{"model":"m","messages":[],"seed":1.50}';

/** Sent as a gateway sends it, and read raw. */
async function raw(
  { signer, agent }: Pick<TestDoor, "signer" | "agent">,
  given: Plan,
  init: { body?: string; headers?: Record<string, string>; path?: string; method?: string } = {},
): Promise<Response> {
  const token = await signer.sign({ ...given, agent });
  const method = init.method ?? "POST";
  return fetch(agent.url + (init.path ?? PATH), {
    method,
    headers: {
      authorization: `Bearer ${token}`,
      "content-type": "application/json",
      "x-request-id": given.requestId,
      ...init.headers,
    },
    ...(method === "POST" && { body: init.body ?? BODY }),
  });
}

class Collector implements BodySink {
  text = "";
  readonly ended: Promise<KedgeError | null>;
  private settle!: (error: KedgeError | null) => void;

  constructor() {
    this.ended = new Promise((resolve) => {
      this.settle = resolve;
    });
  }

  data(chunk: Uint8Array): boolean {
    this.text += new TextDecoder().decode(chunk);
    return true;
  }

  end(): void {
    this.settle(null);
  }

  fail(error: KedgeError): void {
    this.settle(error);
  }
}

/** Through the Node transport, read to its end. */
async function through({ transport }: TestDoor, given: Plan, body = BODY) {
  const response = await transport.send(
    given,
    { path: PATH, body: bytes(body), headers: { "x-request-id": given.requestId } },
    new AbortController().signal,
  );
  return { response, ...(await read(response)) };
}

async function read(response: TransportResponse) {
  const sink = new Collector();
  response.body.start(sink);
  const error = await sink.ended;
  return { text: sink.text, error };
}

const lastError = (text: string) =>
  JSON.parse(
    text
      .trimEnd()
      .split("\n\n")
      .at(-1)!
      .replace(/^data: /, ""),
  ).error.code;

describe("without a good plan", () => {
  it("nothing reaches an engine, whatever is asked and however", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const { url } = test.agent;
    const stolen = await test.signer.sign(plan({ agent: { id: "other", url } }));
    const headers: Record<string, string>[] = [
      {},
      { authorization: "Bearer x" },
      { authorization: "Basic x" },
      { authorization: `Bearer ${stolen}` },
      { authorization: `Bearer ${stolen}`, "x-request-id": "r-0" },
    ];
    for (const path of [
      PATH,
      "/v1/completions",
      "/v1/models",
      "/metrics%00",
      "/",
      "//",
      "/v1/../health",
      "/reset_prefix_cache",
    ]) {
      for (const method of ["POST", "GET", "DELETE", "OPTIONS"]) {
        for (const given of headers) {
          const response = await fetch(url + path, { method, headers: given });
          expect(response.status).toBe(403);
          expect(response.headers.get("x-kedge-error")).toBe("plan_rejected");
          expect(await response.text()).not.toMatch(/audience|key|expired|agent/);
        }
      }
    }
    expect(test.engine.connections).toBe(0);
    expect(test.logged.length).toBeGreaterThan(0);
    expect(test.logged.length).toBeLessThan(5);
    expect(test.logged[0]).toContain("it came without a plan");
  });

  it("a plan is carried out once", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const given = plan();
    const token = await test.signer.sign({ ...given, agent: test.agent });
    const send = () =>
      fetch(test.agent.url + PATH, {
        method: "POST",
        headers: { authorization: `Bearer ${token}`, "x-request-id": given.requestId },
        body: BODY,
      });
    const answers = await Promise.all([send(), send(), send(), send()]);
    expect(answers.map(({ status }) => status).sort()).toEqual([200, 403, 403, 403]);
    expect(test.engine.requests).toHaveLength(1);
  });

  it("a large body is refused without being kept, and its sender reads why", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const response = await fetch(test.agent.url + PATH, { method: "POST", body: "x".repeat(4_000_000) });
    expect(response.status).toBe(403);
  });

  it("survives bytes that are no HTTP, targets that are no paths, and clients that stop halfway", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const port = Number(new URL(test.agent.url).port);
    const lines = [
      "\u0000\u0001\u0002\r\n\r\n",
      "GET // HTTP/1.1\r\nhost: x\r\n\r\n",
      "GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
      "CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
      "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc",
      "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
      `GET /live HTTP/1.1\r\nhost: x\r\nx: ${"y".repeat(40_000)}\r\n\r\n`,
      "GET /live HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ];
    for (const line of lines) {
      await new Promise<void>((resolve) => {
        const socket = connect(port, "127.0.0.1", () => socket.end(line));
        socket.on("error", () => {});
        socket.on("close", () => resolve());
        socket.resume();
      });
    }
    expect((await fetch(`${test.agent.url}/live`)).status).toBe(200);
    expect(test.engine.connections).toBe(0);
  });
});

describe("a request", () => {
  it("reaches the engine byte for byte with its trace, and nothing else of its headers", async () => {
    const test = await setUp((response) => {
      response.writeHead(200, {
        "content-type": "application/json",
        "set-cookie": "engine=1",
        server: "engine",
        "x-kedge-worker": "engine",
      });
      response.end('{"a":1.50}');
    });
    const given = plan();
    const trace = { traceparent: "00-1-2-01", tracestate: "a=b" };
    const response = await raw(test, given, {
      headers: { ...trace, cookie: "c=1", "x-data-parallel-rank": "7" },
    });
    expect(await response.text()).toBe('{"a":1.50}');
    expect(Object.fromEntries(response.headers)).not.toMatchObject({ server: "engine" });
    for (const name of ["set-cookie", "server", "x-kedge-worker", "x-kedge-vouched", "x-kedge-error"]) {
      expect(response.headers.get(name)).toBeNull();
    }
    const [{ headers, body } = { headers: {}, body: "" }] = test.engine.requests;
    expect(body).toBe(BODY);
    expect(headers).toMatchObject({ ...trace, "x-request-id": given.requestId });
    for (const name of ["authorization", "cookie", "x-data-parallel-rank"])
      expect(headers).not.toHaveProperty(name);
  });

  it("takes its salt from the plan", async () => {
    const test = await setUp((response) => void response.end("{}"));
    await raw(test, plan({ cacheSalt: "s" }), { body: '{"cache_salt":"mine","n":1.0}' });
    expect(test.engine.requests[0]!.body).toBe('{"cache_salt":"s","n":1.0}');
  });

  it("with a plan for another path or method is not found", async () => {
    const test = await setUp((response) => void response.end("{}"));
    expect((await raw(test, plan(), { path: "/v1/models" })).status).toBe(404);
    expect((await raw(test, plan(), { method: "GET" })).status).toBe(404);
    expect(test.engine.connections).toBe(0);
  });

  it("larger than allowed is refused, announced or not, and the next one is served", async () => {
    const test = await setUp((response) => void response.end("{}"), { limits: { bodyBytes: 1_000 } });
    const error = await through(test, plan(), "x".repeat(1_001)).catch((thrown: KedgeError) => thrown);
    expect(error).toMatchObject({ code: "payload_too_large" });
    const given = plan();
    const token = await test.signer.sign({ ...given, agent: test.agent });
    const status = await new Promise((resolve, reject) => {
      const request = httpRequest(
        test.agent.url + PATH,
        { method: "POST", headers: { authorization: `Bearer ${token}`, "x-request-id": given.requestId } },
        (response: IncomingMessage) => {
          response.resume();
          resolve(response.statusCode);
        },
      );
      request.on("error", reject);
      for (let i = 0; i < 3; i++) request.write("x".repeat(500));
      request.end();
    });
    expect(status).toBe(413);
    expect((await through(test, plan(), "x".repeat(1_000))).response.status).toBe(200);
    expect(test.engine.requests).toHaveLength(1);
  });

  it("beyond what may be held at once goes elsewhere", async () => {
    let answer: () => void = () => {};
    const test = await setUp(
      (response) => {
        answer = () => void response.end("{}");
      },
      { limits: { inflightBodyBytes: 1_500 } },
    );
    const first = through(test, plan(), "x".repeat(1_000));
    await test.engine.arrival(0);
    const error = await through(test, plan(), "x".repeat(1_000)).catch((thrown: KedgeError) => thrown);
    expect(error).toMatchObject({ code: "upstream_busy", retryAfterSeconds: 1 });
    answer();
    expect((await first).text).toBe("{}");
    const third = through(test, plan(), "x".repeat(1_000));
    await test.engine.arrival(1);
    answer();
    expect((await third).error).toBeNull();
  });
});

describe("a whole answer", () => {
  it("passes with status, Retry-After and bytes as they are", async () => {
    const test = await setUp((response) => {
      response.writeHead(429, { "content-type": "application/json", "retry-after": "9" });
      response.end('{"error":{"message":"full"}}');
    });
    const { response, text } = await through(test, plan());
    expect(response).toMatchObject({ status: 429, headers: { "retry-after": "9" } });
    expect(response.vouched).toBe(false);
    expect(text).toBe('{"error":{"message":"full"}}');
  });

  it("that was cut is cut, not whole", async () => {
    const test = await setUp((response) => {
      response.writeHead(200, { "content-type": "application/json", "content-length": 1_000 });
      response.write("{", () => response.destroy());
    });
    expect((await through(test, plan())).error?.code).toBe("stream_interrupted");
  });

  it("that failed before any of it came is an error by status", async () => {
    const test = await setUp((response) => {
      response.writeHead(200, { "content-type": "application/json", "content-length": 1_000 });
      response.flushHeaders();
      setImmediate(() => response.destroy());
    });
    await expect(through(test, plan())).rejects.toMatchObject({ code: "upstream_error" });
  });
});

describe("a stream", () => {
  it("passes byte for byte, and is vouched for", async () => {
    const test = await setUp((response) => streamAll(response, ["a", "b"]));
    const response = await raw(test, plan());
    expect(response.headers.get("x-kedge-vouched")).toBe("1");
    expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
    expect(response.headers.get("x-internal")).toBeNull();
    expect(await response.text()).toBe(chatChunk("a") + chatChunk("b") + usageChunk(32, 16) + DONE);
  });

  it("has no usage chunk if the plan says so", async () => {
    const test = await setUp((response) => streamAll(response, ["a", "b"]));
    const response = await raw(test, plan({ dropUsage: true }));
    expect(await response.text()).toBe(chatChunk("a") + chatChunk("b") + DONE);
  });

  it("keeps it for a Node gateway, which looks into the stream and takes it out itself", async () => {
    const test = await setUp((response) => streamAll(response, ["a"]));
    const { response, text } = await through(test, plan({ dropUsage: true }));
    expect(text).toContain(usageChunk(32, 16));
    expect(response.vouched).toBe(false);
    expect((await through(test, plan({ dropUsage: false }))).response.vouched).toBe(true);
  });

  it.each([1, 2, 3, 7, 50])("survives pieces of %i bytes", async (size) => {
    const text = chatChunk("ä🚢") + chatChunk("b") + usageChunk(32, 0) + DONE;
    const test = await setUp(async (response) => {
      openStream(response);
      const all = Buffer.from(text);
      for (let at = 0; at < all.length; at += size) {
        response.write(all.subarray(at, at + size));
        if (at % 5 === 0) await new Promise(setImmediate);
      }
      response.end();
    });
    const response = await raw(test, plan({ dropUsage: true }));
    expect(await response.text()).toBe(chatChunk("ä🚢") + chatChunk("b") + DONE);
  });

  it("has its headers at once and comments while the engine is silent", async () => {
    const manual = new ManualClock();
    let speak: () => void = () => {};
    const test = await setUp(
      (response) => {
        openStream(response);
        speak = () => response.end(chatChunk("a") + DONE);
      },
      { manual, heartbeatMs: 1_000 },
    );
    const response = await raw(test, plan());
    expect(response.status).toBe(200);
    const reader = response.body!.getReader();
    for (let i = 0; i < 2; i++) {
      manual.advance(1_000);
      expect(new TextDecoder().decode((await reader.read()).value)).toBe(": keep-alive\n\n");
    }
    // Silence before the first data is not a stall: the gateway judges it.
    manual.advance(600_000);
    speak();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read())
      rest += new TextDecoder().decode(part.value);
    expect(rest.replaceAll(": keep-alive\n\n", "")).toBe(chatChunk("a") + DONE);
  });

  it.each<[string, Script]>([
    [
      "cut inside an event",
      (response) => void response.write(chatChunk("b").slice(0, 30), () => response.destroy()),
    ],
    ["cut between events", (response) => void response.destroy()],
    ["ended without its end mark", (response) => void response.end()],
  ])("%s ends with an error in it, and with no end mark", async (_name, end) => {
    const test = await setUp((response, request) => {
      openStream(response);
      response.write(chatChunk("a"), () => void end(response, request));
    });
    const response = await raw(test, plan());
    const text = await response.text();
    expect(text.startsWith(chatChunk("a"))).toBe(true);
    expect(lastError(text)).toBe("stream_interrupted");
    expect(text).not.toContain("[DONE]");
    expect(text.split("\n\n")).toHaveLength(3);
    expect(test.registry.encode()).toContain('kedge_agent_requests_total{outcome="stream_interrupted"} 1');
  });

  it("that stalls ends with an error, and its engine is aborted", async () => {
    const manual = new ManualClock();
    const test = await setUp(
      (response) => {
        openStream(response);
        response.write(chatChunk("a"));
      },
      { manual, limits: { stallTimeoutMs: 3_000 } },
    );
    const response = await raw(test, plan());
    const reader = response.body!.getReader();
    await reader.read();
    const { abandoned } = await test.engine.arrival(0);
    manual.advance(3_001);
    expect(lastError(new TextDecoder().decode((await reader.read()).value))).toBe("stream_stalled");
    expect((await reader.read()).done).toBe(true);
    await abandoned;
  });

  it("that fails before its first data says so as the engine did, or as an error event", async () => {
    const own = 'data: {"error":{"message":"no","code":500}}\n\n';
    const told = await setUp((response) => {
      openStream(response);
      response.end(own + DONE);
    });
    expect(await (await raw(told, plan())).text()).toBe(own + DONE);
    const silent = await setUp((response) => {
      openStream(response);
      response.end();
    });
    expect(lastError(await (await raw(silent, plan())).text())).toBe("stream_interrupted");
  });

  it("waits for a gateway that reads slowly, is no stall, and is not kept in memory", async () => {
    const manual = new ManualClock();
    let written = 0;
    const test = await setUp(
      async (response) => {
        openStream(response);
        const chunk = chatChunk("x".repeat(60_000));
        for (let i = 0; i < 300; i++) {
          written++;
          if (!response.write(chunk)) await new Promise((resolve) => response.once("drain", resolve));
        }
        response.end(DONE);
      },
      { manual, limits: { stallTimeoutMs: 1_000 } },
    );
    const given = plan();
    const response = await test.transport.send(
      given,
      { path: PATH, body: bytes(BODY), headers: { "x-request-id": given.requestId } },
      new AbortController().signal,
    );
    let held = true;
    let length = 0;
    const sink = new Collector();
    response.body.start({
      data: (chunk) => {
        length += chunk.length;
        return !held;
      },
      end: () => sink.end(),
      fail: (error) => sink.fail(error),
    });
    let before = -1;
    await eventually(() => {
      const isStill = written === before;
      before = written;
      return written > 0 && isStill;
    });
    for (let i = 0; i < 200; i++) await new Promise(setImmediate);
    expect(written).toBeLessThan(300);
    for (let i = 0; i < 20; i++) manual.advance(1_000);
    held = false;
    response.body.resume();
    expect(await sink.ended).toBeNull();
    expect(length).toBeGreaterThan(300 * 60_000);
  });
});

describe("a gateway that leaves", () => {
  it.each(["before headers", "before data", "inside a stream"])("%s: the engine is aborted", async (when) => {
    const test = await setUp((response) => {
      if (when === "before headers") return;
      openStream(response);
      if (when === "inside a stream") response.write(chatChunk("a"));
    });
    const controller = new AbortController();
    const given = plan();
    const sending = test.transport.send(
      given,
      { path: PATH, body: bytes(BODY), headers: { "x-request-id": given.requestId } },
      controller.signal,
    );
    const { abandoned } = await test.engine.arrival(0);
    if (when === "before headers") {
      controller.abort();
      await expect(sending).rejects.toMatchObject({ code: "client_closed" });
    } else (await sending).body.cancel();
    await abandoned;
    await eventually(() => test.ingress.activeRequests === 0);
    await eventually(() => test.registry.encode().includes("kedge_agent_inflight_requests 0"));
  });

  it.each(["half", "all"])(
    "with %s of its body sent, while its plan is looked at, keeps no room",
    async (part) => {
      let lookedAt: () => void = () => {};
      const seen = new Promise<void>((resolve) => {
        lookedAt = resolve;
      });
      let goOn: () => void = () => {};
      const gate = new Promise<void>((resolve) => {
        goOn = resolve;
      });
      const beforePlan = () => {
        lookedAt();
        return gate;
      };
      const limits = { inflightBodyBytes: 1_500 };
      const test = await setUp((response) => void response.end("{}"), { beforePlan, limits });
      const given = plan();
      const token = await test.signer.sign({ ...given, agent: test.agent });
      const socket = connect(Number(new URL(test.agent.url).port), "127.0.0.1");
      socket.write(
        `POST ${PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${token}\r\nx-request-id: ${given.requestId}\r\n` +
          `content-length: 1000\r\n\r\n${"x".repeat(part === "half" ? 500 : 1_000)}`,
      );
      await seen;
      socket.destroy();
      await once(socket, "close");
      // The door has met the closed connection once it has answered on another.
      await fetch(`${test.agent.url}/live`);
      goOn();
      await eventually(() =>
        test.registry.encode().includes('kedge_agent_requests_total{outcome="client_closed"} 1'),
      );
      expect(test.registry.encode()).toContain("kedge_agent_inflight_requests 0");
      expect((await through(test, plan(), "x".repeat(1_000))).response.status).toBe(200);
      expect(test.engine.requests).toHaveLength(1);
    },
  );
});

describe("a failure", () => {
  it("of an engine out of reach has its code at the gateway", async () => {
    const test = await setUp((_response, { socket }) => void socket.resetAndDestroy());
    await expect(through(test, plan())).rejects.toMatchObject({ code: "upstream_unreachable" });
    await expect(through(test, plan({ worker: "nobody" }))).rejects.toMatchObject({
      code: "upstream_unreachable",
    });
  });

  it.each([
    ["void", "upstream_busy", false],
    ["absent", "upstream_unreachable", true],
  ] as const)("a worker whose life is %s is not asked: %s", async (standing, code, counts) => {
    const test = await setUp((response) => void response.end("{}"), { standing: () => standing });
    const error = await through(test, plan()).catch((thrown: KedgeError) => thrown);
    expect(error).toMatchObject({ code, kind: { retryable: true, countsAgainstBreaker: counts } });
    expect(test.engine.connections).toBe(0);
  });

  it("of a node out of reach, of one that is no agent and of one that refuses, is known as such", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const given = plan();
    const send = (agent: Plan["agent"]) =>
      test.remote
        .send(
          { ...given, agent },
          { path: PATH, body: bytes(BODY), headers: { "x-request-id": given.requestId } },
          new AbortController().signal,
        )
        .catch((thrown: KedgeError) => thrown);
    expect(await send({ id: "a", url: "http://127.0.0.1:1" })).toMatchObject({
      code: "upstream_unreachable",
    });
    for (const url of ["nowhere", "ftp://127.0.0.1:1", "file:///etc/hosts", "data:x", "http://", "http:x y"])
      expect([url, await send({ id: "a", url })]).toMatchObject([url, { code: "upstream_unreachable" }]);
    expect(await send(null)).toMatchObject({ code: "upstream_unreachable" });
    expect(await send({ id: "a", url: test.engine.url })).toMatchObject({
      code: "upstream_error",
      message: expect.stringContaining("no Kedge agent"),
    });
    expect(await send({ id: "another", url: test.agent.url })).toMatchObject({ code: "upstream_error" });
  });

  it("of a node that hangs in the middle of an error is left behind with the client", async () => {
    const test = await setUp((response) => void response.end("{}"));
    let halfSent: Promise<void> = Promise.resolve();
    const hanging = await startUpstream((response) => {
      response.writeHead(503, { "x-kedge-door": "1", "x-kedge-error": "upstream_busy" });
      halfSent = new Promise((resolve) => response.write("{", () => resolve()));
    });
    closing.push(() => hanging.close());
    const controller = new AbortController();
    const sending = test.remote.send(
      { ...plan(), agent: { id: "a", url: hanging.url } },
      { path: PATH, body: bytes(BODY), headers: {} },
      controller.signal,
    );
    const { abandoned } = await hanging.arrival(0);
    await halfSent;
    // What lay in a socket of this process has been read once another exchange is over.
    await fetch(`${test.agent.url}/live`);
    controller.abort();
    await expect(sending).rejects.toMatchObject({
      code: "upstream_busy",
    });
    await abandoned;
  });

  it("of a node that takes no connections is known within the connect timeout", async () => {
    // Its process hangs: the kernel takes a few connections for it and then no more.
    const hang = "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)";
    const listen = `require("net").createServer().listen(0, "127.0.0.1", 1, function () { console.log(this.address().port); ${hang}; })`;
    const child = spawn(process.execPath, ["-e", listen], { stdio: ["ignore", "pipe", "ignore"] });
    closing.push(async () => void child.kill("SIGKILL"));
    const [text] = await once(child.stdout, "data");
    const port = Number(text);
    for (let i = 0; i < 4; i++) {
      const socket = connect(port, "127.0.0.1");
      socket.on("error", () => {});
      closing.push(async () => void socket.destroy());
    }
    const { signer } = await setUp((response) => void response.end("{}"));
    const remote = createAgentTransport({ signer, connectTimeoutMs: 200 });
    closing.push(async () => remote.close());
    const agent = { id: "a", url: `http://127.0.0.1:${port}` };
    const request = { path: PATH, body: bytes(BODY), headers: {} };
    await expect(remote.send(plan({ agent }), request, new AbortController().signal)).rejects.toMatchObject({
      code: "upstream_unreachable",
      kind: { retryable: true, countsAgainstBreaker: true },
    });
  });

  it("of a connection that the door closed while it lay idle is none", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const { keys } = test;
    const port = Number(new URL(test.agent.url).port);
    expect((await through(test, plan())).text).toBe("{}");
    await test.door.close();
    const next = await startTestDoor(test.ingress, { port, keys });
    closing.push(() => next.close());
    expect((await through(test, plan())).text).toBe("{}");
  });

  it("of a connection that broke after the door had taken the plan is the node's, not the plan's", async () => {
    let calls = 0;
    const node = await startUpstream((response, { socket }) => {
      calls++;
      if (calls === 2) socket.resetAndDestroy();
      else if (calls === 3)
        response.writeHead(403, { "x-kedge-door": "1", "x-kedge-error": "plan_rejected" });
      else response.setHeader("x-kedge-door", "1");
      response.end("{}");
    });
    closing.push(() => node.close());
    const { remote } = await setUp((response) => void response.end("{}"));
    const send = async () => {
      const request = { path: PATH, body: bytes(BODY), headers: {} };
      const agent = { id: "a", url: `${node.url}/base/` };
      return read(await remote.send(plan({ agent }), request, new AbortController().signal));
    };
    expect((await send()).text).toBe("{}");
    await expect(send()).rejects.toMatchObject({ code: "upstream_unreachable" });
    expect(calls).toBe(3);
    expect(node.requests.map(({ path }) => path)).toEqual(Array(3).fill(`/base${PATH}`));
    const tokens = node.requests.map(({ headers }) => headers.authorization);
    expect(tokens[1]).toBe(tokens[2]);
  });
});

describe("whatever comes", () => {
  const text = fc.string({ unit: "binary", maxLength: 60 });
  const ascii = fc.string({ unit: "grapheme-ascii", maxLength: 60 });

  it("from callers: refused, and the door stands", async () => {
    const test = await setUp((response) => void response.end("{}"));
    const good = await test.signer.sign(plan({ agent: test.agent }));
    const token = fc.oneof(
      ascii,
      fc.nat(good.length - 1).map((at) => good.slice(0, at)),
      fc
        .tuple(fc.nat(good.length - 1), ascii)
        .map(([at, with_]) => good.slice(0, at) + with_ + good.slice(at)),
      fc
        .json()
        .map(
          (header) => `${Buffer.from(header).toString("base64url")}.${good.split(".").slice(1).join(".")}`,
        ),
    );
    await fc.assert(
      fc.asyncProperty(token, ascii, fc.webPath(), text, async (bearer, id, path, payload) => {
        fc.pre(bearer.trim() !== good);
        const response = await fetch(test.agent.url + (path.startsWith("/") ? path : `/${path}`), {
          method: "POST",
          headers: { authorization: `Bearer ${bearer}`, "x-request-id": id },
          body: payload,
        });
        expect(response.status).toBe(403);
      }),
      { numRuns: 150, seed: 4 },
    );
    expect(test.engine.connections).toBe(0);
  });

  it("in bodies: reaches the engine as it is, or is the client's fault where the salt must go in", async () => {
    const test = await setUp((response, { body }) => void response.end(JSON.stringify(body)));
    await fc.assert(
      fc.asyncProperty(fc.oneof(text, fc.json()), fc.boolean(), async (body, salted) => {
        const response = await raw(test, plan({ cacheSalt: salted ? "s" : null }), { body });
        const answer = await response.text();
        if (response.status === 200 && !salted) expect(JSON.parse(answer)).toBe(body);
        else if (response.status !== 200) expect([salted, response.status]).toEqual([true, 400]);
      }),
      { numRuns: 100, seed: 4 },
    );
  });

  it("from an engine: a stream has an end mark, or an error last, and never an end that the engine did not send", async () => {
    let pieces: readonly string[] = [];
    let isCut = false;
    const test = await setUp(async (response) => {
      openStream(response);
      for (const piece of pieces) {
        response.write(piece);
        await new Promise(setImmediate);
      }
      if (isCut) response.destroy();
      else response.end();
    });
    const piece = fc.oneof(
      text,
      fc.constantFrom(
        chatChunk("a"),
        chatChunk("b").slice(0, 20),
        ": c\n\n",
        usageChunk(3, 0),
        "\n\n",
        "data: ",
        'data: {"error":{"code":500}}\n\n',
        DONE,
      ),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(piece, { maxLength: 8 }),
        fc.boolean(),
        fc.boolean(),
        async (sent, cut, drop) => {
          pieces = sent;
          isCut = cut;
          const answer = await (await raw(test, plan({ dropUsage: drop }))).text();
          const last = answer.trimEnd().split("\n\n").at(-1)!;
          const isOurs = last.includes('"code":"stream_interrupted"');
          const told = sent.join("");
          if (!isOurs) expect(told).toMatch(/\[DONE\]|error/);
          if (!told.includes("[DONE]")) expect(answer).not.toContain("[DONE]");
          if (cut) expect(isOurs).toBe(true);
        },
      ),
      { numRuns: 150, seed: 4 },
    );
  });
});

describe("operators", () => {
  it("see liveness and readiness; figures only from near, status only from this machine and through nothing", async () => {
    let isServing = false;
    const test = await setUp((response) => void response.end("{}"), {
      status: () => ({ workers: isServing ? [{ worker: "w", state: "serving" }] : [], requests: 0 }) as never,
    });
    const get = (path: string, headers: Record<string, string> = {}) =>
      fetch(test.agent.url + path, { headers });
    expect((await get("/live")).status).toBe(200);
    expect((await get("/ready")).status).toBe(503);
    isServing = true;
    expect((await get("/ready")).status).toBe(200);
    await through(test, plan());
    expect(await (await get("/metrics")).text()).toContain('kedge_agent_workers{state="serving"} 1');
    expect(await (await get("/status")).json()).toMatchObject({ workers: [{ worker: "w" }] });
    for (const name of ["x-forwarded-for", "cf-connecting-ip", "via", "forwarded"]) {
      expect((await get("/status", { [name]: "1.2.3.4" })).status).toBe(403);
      expect((await get("/metrics", { [name]: "1.2.3.4" })).status).toBe(403);
    }
    const rebound = await new Promise((resolve) => {
      httpRequest(`${test.agent.url}/status`, { headers: { host: "evil.example" } }, (response) => {
        response.resume();
        resolve(response.statusCode);
      }).end();
    });
    expect(rebound).toBe(403);
  });
});

describe("a shutdown", () => {
  it("refuses new requests, lets running ones end, and then closes", async () => {
    let finish: () => void = () => {};
    const test = await setUp((response) => {
      openStream(response);
      response.write(chatChunk("a"));
      finish = () => response.end(DONE);
    });
    const running = await raw(test, plan());
    await test.engine.arrival(0);
    test.door.refuse();
    await expect(through(test, plan())).rejects.toMatchObject({
      code: "shutting_down",
      kind: { retryable: true, countsAgainstBreaker: false },
    });
    expect((await fetch(`${test.agent.url}/ready`)).status).toBe(503);
    const drained = test.ingress.drain(60_000);
    finish();
    await drained;
    await test.door.close();
    expect(await running.text()).toBe(chatChunk("a") + DONE);
    await expect(fetch(`${test.agent.url}/live`)).rejects.toThrow();
  });

  it("tells a stream that outlasts it", async () => {
    const test = await setUp((response) => {
      openStream(response);
      response.write(chatChunk("a"));
    });
    const running = await raw(test, plan());
    await test.ingress.drain(0);
    const text = await running.text();
    expect(lastError(text)).toBe("shutting_down");
    expect(text.startsWith(chatChunk("a"))).toBe(true);
  });
});
