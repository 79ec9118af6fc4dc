/** The ingress against real sockets: pinning, allow-lists, reuse, resets, aborts, heartbeats, drain, ledger. */

import { afterEach, describe, expect, it } from "vitest";
import type { KedgeError } from "../../src/errors/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { BodySink, TransportResponse } from "../../src/plan/transport.ts";
import {
  chatChunk,
  DONE,
  openStream,
  type Script,
  type ScriptedUpstream,
  startUpstream,
  streamAll,
} from "../../test/e2e/gateway-upstream.ts";
import { Ingress, type Timers } from "./index.ts";

class ManualTimers implements Timers {
  readonly pending = new Map<number, { callback: () => void; delayMs: number }>();
  private next = 1;

  setTimeout(callback: () => void, delayMs: number): number {
    this.pending.set(this.next, { callback, delayMs });
    return this.next++;
  }

  clearTimeout(handle: unknown): void {
    this.pending.delete(handle as number);
  }

  fire(delayMs: number): void {
    for (const [handle, timer] of [...this.pending]) {
      if (timer.delayMs !== delayMs) continue;
      this.pending.delete(handle);
      timer.callback();
    }
  }
}

class Collector implements BodySink {
  text = "";
  error: KedgeError | null = null;
  readonly ended: Promise<void>;
  private finish!: () => void;
  private waiters: { text: string; resolve: () => void }[] = [];

  constructor() {
    this.ended = new Promise((resolve) => {
      this.finish = resolve;
    });
  }

  data(chunk: Uint8Array): boolean {
    this.text += new TextDecoder().decode(chunk);
    for (const waiter of this.waiters) if (this.text.includes(waiter.text)) waiter.resolve();
    return true;
  }

  has(text: string): Promise<void> {
    return new Promise((resolve) => {
      if (this.text.includes(text)) resolve();
      else this.waiters.push({ text, resolve });
    });
  }

  end(): void {
    this.finish();
  }

  fail(error: KedgeError): void {
    this.error = error;
    this.finish();
  }
}

const BODY = new TextEncoder().encode('{"model":"m","messages":[],"seed":1.50}');
const REQUEST = { path: "/v1/chat/completions", body: BODY, headers: { "x-request-id": "r" } };
const plan = (overrides: Partial<Plan> = {}): Plan => ({
  requestId: "r",
  agent: null,
  dropUsage: false,
  model: "m",
  worker: "w",
  rank: 0,
  incarnation: "1",
  role: "aggregated",
  deadlineMs: null,
  load: { promptTokens: 32, overlapTokens: 0, blocks: 2 },
  cacheSalt: null,
  ...overrides,
});

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function setUp(script: Script, dpSize = 1) {
  const upstream = await startUpstream(script);
  closing.push(() => upstream.close());
  const { ingress, ledger, timers } = ingressFor(upstream, dpSize);
  return { upstream, ingress, ledger, timers };
}

function ingressFor(upstream: Pick<ScriptedUpstream, "url">, dpSize = 1) {
  const ledger: string[] = [];
  const timers = new ManualTimers();
  const ingress = new Ingress({
    timers,
    heartbeatMs: 15_000,
    ledger: {
      admitted: ({ requestId }) => ledger.push(`admitted ${requestId}`),
      firstData: (id) => ledger.push(`first ${id}`),
      progressed: (id, tokens) => ledger.push(`progressed ${id} ${tokens}`),
      finished: (id) => ledger.push(`finished ${id}`),
    },
  });
  ingress.addEngine({ worker: "w", url: upstream.url, dpSize });
  closing.push(() => ingress.drain(0));
  return { ingress, ledger, timers };
}

const send = (ingress: Ingress, overrides: Partial<Plan> = {}, headers: Record<string, string> = {}) =>
  ingress.send(
    plan(overrides),
    { ...REQUEST, headers: { ...REQUEST.headers, ...headers } },
    new AbortController().signal,
  );

async function collect(response: TransportResponse): Promise<Collector> {
  const collector = new Collector();
  response.body.start(collector);
  await collector.ended;
  return collector;
}

const codeOf = async (promise: Promise<unknown>) =>
  promise.then(
    () => "resolved",
    (error: KedgeError) => error.code,
  );

describe("Ingress", () => {
  it("passes the body byte for byte and only allow-listed headers, both ways", async () => {
    const { upstream, ingress } = await setUp((response) => streamAll(response, ["a", "b"]));
    const response = await send(
      ingress,
      {},
      {
        authorization: "Bearer client-secret",
        cookie: "c=1",
        "x-data-parallel-rank": "7",
        traceparent: "00-1-2-01",
      },
    );
    const { text } = await collect(response);
    expect(text.startsWith(chatChunk("a") + chatChunk("b"))).toBe(true);
    expect(text.endsWith(DONE)).toBe(true);
    expect(response.headers).toEqual({ "content-type": "text/event-stream; charset=utf-8" });
    const { headers, body } = upstream.requests[0]!;
    expect(body).toBe(new TextDecoder().decode(BODY));
    expect(headers).toMatchObject({
      "content-type": "application/json",
      "x-request-id": "r",
      traceparent: "00-1-2-01",
    });
    for (const name of ["authorization", "cookie", "x-data-parallel-rank"])
      expect(headers[name]).toBeUndefined();
  });

  it("pins the planned rank of a data-parallel engine and sets the planned salt", async () => {
    const { upstream, ingress } = await setUp((response) => streamAll(response, []), 2);
    const response = await send(ingress, { rank: 1, cacheSalt: "tenant" }, { "x-data-parallel-rank": "0" });
    await collect(response);
    expect(upstream.requests[0]!.headers["x-data-parallel-rank"]).toBe("1");
    expect(upstream.requests[0]!.body).toBe('{"model":"m","messages":[],"seed":1.50,"cache_salt":"tenant"}');
  });

  it("keeps connections alive and never more of them than requests at once", async () => {
    const { upstream, ingress } = await setUp((response) => streamAll(response, ["x"]));
    for (let i = 0; i < 5; i++) await collect(await send(ingress));
    expect(upstream.connections).toBe(1);
    await Promise.all(Array.from({ length: 3 }, async () => collect(await send(ingress))));
    expect(upstream.connections).toBe(3);
  });

  it("tells the ledger of admission, first data, progress and end", async () => {
    const { ingress, ledger } = await setUp((response) => streamAll(response, ["a", "b"]));
    await collect(await send(ingress));
    expect(ledger.slice(0, 2)).toEqual(["admitted r", "first r"]);
    expect(ledger).toContain("progressed r 4");
    expect(ledger.at(-1)).toBe("finished r");
    expect(ingress.activeRequests).toBe(0);
  });

  it("retries once on a fresh connection when a reused one is reset before any answer", async () => {
    let resets = 0;
    const { upstream, ingress, ledger } = await setUp((response, { socket }) => {
      if (upstream.requests.length === 2) {
        resets++;
        socket.resetAndDestroy();
      } else streamAll(response, ["ok"]);
    });
    await collect(await send(ingress));
    const { text } = await collect(await send(ingress));
    expect(resets).toBe(1);
    expect(text).toContain("ok");
    expect(upstream.connections).toBe(2);
    expect(ledger.filter((entry) => entry.startsWith("admitted"))).toHaveLength(2);
  });

  it("does not retry a reset of a fresh connection, nor a second one", async () => {
    const { upstream, ingress } = await setUp((response, { socket }) => {
      if (upstream.requests.length === 2) streamAll(response, []);
      else socket.resetAndDestroy();
    });
    expect(await codeOf(send(ingress))).toBe("upstream_unreachable");
    expect(upstream.requests).toHaveLength(1);
    await collect(await send(ingress));
    expect(await codeOf(send(ingress))).toBe("upstream_unreachable");
    expect(upstream.requests).toHaveLength(4);
  });

  it("says that an engine cannot be reached, and forgets the request", async () => {
    const { ingress, ledger } = ingressFor({ url: "http://127.0.0.1:1" });
    expect(await codeOf(send(ingress))).toBe("upstream_unreachable");
    expect(await codeOf(send(ingress, { worker: "nobody" }))).toBe("upstream_unreachable");
    expect(ledger).toEqual(["admitted r", "finished r"]);
  });

  it("reports a cut body as interrupted, never as ended", async () => {
    const { ingress } = await setUp((response) => {
      openStream(response);
      response.write(chatChunk("a"), () => response.destroy());
    });
    const { error, text } = await collect(await send(ingress));
    expect(error?.code).toBe("stream_interrupted");
    expect(text).toBe(chatChunk("a"));
  });

  it("aborts the engine before its headers", async () => {
    const { upstream, ingress, ledger } = await setUp(() => {});
    const controller = new AbortController();
    const sent = codeOf(ingress.send(plan(), REQUEST, controller.signal));
    const { abandoned } = await upstream.arrival(0);
    controller.abort();
    expect(await sent).toBe("client_closed");
    await abandoned;
    expect(ledger.at(-1)).toBe("finished r");
  });

  it("aborts the engine before its first data and in the middle of its stream", async () => {
    const { upstream, ingress } = await setUp((response, { body }) => {
      openStream(response);
      if (upstream.requests.length === 2) response.write(chatChunk(body));
    });
    const before = await send(ingress);
    before.body.cancel();
    await (await upstream.arrival(0)).abandoned;
    const during = await send(ingress);
    const collector = new Collector();
    during.body.start(collector);
    await collector.has("data:");
    during.body.cancel();
    during.body.cancel();
    await (await upstream.arrival(1)).abandoned;
    expect(collector.error).toBeNull();
    expect(ingress.activeRequests).toBe(0);
  });

  it("sends comments while an event stream is silent, until its first data", async () => {
    let go: () => void = () => {};
    const { ingress, timers } = await setUp((response) => {
      openStream(response);
      go = () => {
        response.write(chatChunk("late"));
        response.end(DONE);
      };
    });
    const response = await send(ingress);
    const collector = new Collector();
    response.body.start(collector);
    timers.fire(15_000);
    timers.fire(15_000);
    go();
    await collector.ended;
    expect(collector.text).toBe(`: keep-alive\n\n: keep-alive\n\n${chatChunk("late")}${DONE}`);
    expect(timers.pending.size).toBe(0);
  });

  it("gives up what stays silent at a lost engine, wherever it stands, and lets the engine see it", async () => {
    const { upstream, ingress, timers } = await setUp((response, { body }) => {
      if (upstream.requests.length === 1) return;
      openStream(response);
      if (upstream.requests.length === 3) response.write(chatChunk(body));
    });
    const unanswered = codeOf(send(ingress, { requestId: "1" }));
    await upstream.arrival(0);
    const bodies = [];
    for (const requestId of ["2", "3"]) bodies.push(collect(await send(ingress, { requestId })));
    ingress.watched("w", true);
    const late = codeOf(send(ingress, { requestId: "4" }).then(collect));
    await upstream.arrival(3);
    for (let i = 0; i < 3; i++) timers.fire(5_000);
    expect(await unanswered).toBe("upstream_unreachable");
    for (const body of bodies) expect((await body).error?.code).toBe("stream_interrupted");
    await late;
    for (let i = 0; i < 4; i++) await (await upstream.arrival(i)).abandoned;
    expect(ingress.activeRequests).toBe(0);
    expect(timers.pending.size).toBe(0);
  });

  it("waits for a lost engine that still sends, and for one that is found again", async () => {
    let write: (text: string) => void = () => {};
    const { ingress, timers } = await setUp((response) => {
      openStream(response);
      write = (text) => response.write(text);
      write(chatChunk("1"));
    });
    const response = await send(ingress);
    const collector = new Collector();
    response.body.start(collector);
    await collector.has(chatChunk("1"));
    ingress.watched("w", true);
    ingress.watched("w", true);
    write(chatChunk("2"));
    await collector.has(chatChunk("2"));
    timers.fire(5_000);
    expect(collector.error).toBeNull();
    ingress.watched("w", false);
    timers.fire(5_000);
    write(DONE);
    await collector.has(DONE);
    expect(collector.error).toBeNull();
    ingress.watched("w", true);
    timers.fire(5_000);
    await collector.ended;
    expect(collector.error?.code).toBe("stream_interrupted");
  });

  it("ends a request whose plan has run out of time by itself", async () => {
    const { upstream, ingress, timers } = await setUp(() => {});
    const sent = codeOf(send(ingress, { deadlineMs: 5_000 }));
    const { abandoned } = await upstream.arrival(0);
    timers.fire(5_000);
    expect(await sent).toBe("upstream_timeout");
    await abandoned;
  });

  it("holds the engine while the sink is full, in bounded memory, and loses nothing", async () => {
    const block = "x".repeat(64 * 1024);
    const total = 400;
    let written = 0;
    const { ingress } = await setUp(async (response) => {
      response.writeHead(200, { "content-type": "application/octet-stream" });
      for (let i = 0; i < total; i++) {
        written++;
        if (!response.write(block)) await new Promise((resolve) => response.once("drain", resolve));
      }
      response.end();
    });
    const response = await send(ingress);
    let received = 0;
    let held: () => void = () => {};
    const firstHold = new Promise<void>((resolve) => {
      held = resolve;
    });
    const done = new Promise<void>((resolve, reject) => {
      response.body.start({
        data: (chunk) => {
          received += chunk.length;
          held();
          return false;
        },
        end: resolve,
        fail: reject,
      });
    });
    await firstHold;
    const poll = async (condition: () => boolean) => {
      for (let i = 0; i < 2_000 && !condition(); i++) await new Promise(setImmediate);
    };
    let last = -1;
    await poll(() => {
      const still = last === written;
      last = written;
      return still && written > 1;
    });
    expect(written).toBeLessThan(total);
    expect(received).toBeLessThan(4 * 64 * 1024);
    let over = false;
    void done.finally(() => {
      over = true;
    });
    while (!over) {
      response.body.resume();
      await new Promise(setImmediate);
    }
    await done;
    expect(received).toBe(total * block.length);
  });

  it("drains: refuses the new, lets the old finish, ends what overstays", async () => {
    let finish: () => void = () => {};
    const { ingress, upstream, timers } = await setUp((response) => {
      openStream(response);
      response.write(chatChunk("a"));
      if (upstream.requests.length === 1) finish = () => response.end(DONE);
    });
    const first = collect(await send(ingress));
    const second = collect(await send(ingress));
    const drained = ingress.drain(30_000);
    expect(await codeOf(send(ingress))).toBe("shutting_down");
    finish();
    expect((await first).error).toBeNull();
    timers.fire(30_000);
    await drained;
    expect((await second).error?.code).toBe("shutting_down");
    await upstream.requests[1]!.abandoned;
  });
});
