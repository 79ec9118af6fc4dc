/** What a fetch transport owes the gateway: the door's errors as they were, nothing leaked by aborts, streams that tell the truth also when piped. */

import { afterEach, describe, expect, it } from "vitest";
import {
  chatChunk,
  DONE,
  type Received,
  type Script,
  type ScriptedUpstream,
  startUpstream,
} from "../../test/e2e/gateway-upstream.ts";
import { KedgeError } from "../errors/index.ts";
import type { Plan } from "../plan/index.ts";
import type { BodySink, TransportResponse } from "../plan/transport.ts";
import { Attempt, type AttemptInput, type AttemptResult } from "./attempt.ts";
import { WebClient } from "./client.ts";
import { createFetchTransport } from "./fetch-transport.ts";

const DOOR = { "x-kedge-door": "1" };

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function door(script: Script): Promise<ScriptedUpstream> {
  const upstream = await startUpstream(script);
  closing.push(() => upstream.close());
  return upstream;
}

const plan = (url: string | null): Plan => ({
  agent: url === null ? null : { id: "r/c/n", url },
  requestId: "request-1",
  model: "m",
  worker: "w",
  rank: 0,
  incarnation: "1",
  role: "aggregated",
  deadlineMs: null,
  load: { promptTokens: 1, overlapTokens: 0, blocks: 1 },
  dropUsage: true,
  cacheSalt: null,
});

const transport = createFetchTransport({ signer: { sign: async () => "signed", jwks: { keys: [] } } });
const request = {
  path: "/v1/chat/completions",
  body: new TextEncoder().encode("{}"),
  headers: {
    "x-request-id": "request-1",
    traceparent: "t",
    cookie: "canary",
    authorization: "Bearer client",
  },
};
const send = (url: string | null, signal = new AbortController().signal) =>
  transport.send(plan(url), request, signal);

async function errorOf(sent: Promise<unknown>): Promise<KedgeError> {
  const error = await sent.then(
    () => null,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(KedgeError);
  return error as KedgeError;
}

/** Collects a body until it ends or fails. */
function collect({ body }: TransportResponse): Promise<{ text: string; error: KedgeError | null }> {
  return new Promise((resolve) => {
    let text = "";
    body.start({
      data: (chunk) => {
        text += new TextDecoder().decode(chunk);
        return true;
      },
      end: () => resolve({ text, error: null }),
      fail: (error) => resolve({ text, error }),
    });
  });
}

const vouchedStream: Script = (response) => {
  response.writeHead(200, { ...DOOR, "content-type": "text/event-stream", "x-kedge-vouched": "1" });
};

describe("the request to an agent", () => {
  it("carries the signed plan and allow-listed headers only", async () => {
    const upstream = await door((response) => {
      response.writeHead(200, {
        "content-type": "application/json",
        ...DOOR,
        "set-cookie": "a=1",
        "x-internal": "1",
      });
      response.end("{}");
    });
    const response = await send(`${upstream.url}/`);
    expect(response.headers).toEqual({ "content-type": "application/json" });
    expect(response.vouched).toBe(false);
    expect(await collect(response)).toEqual({ text: "{}", error: null });
    const { headers, path, body } = upstream.requests[0]!;
    expect([path, body]).toEqual(["/v1/chat/completions", "{}"]);
    expect(headers).toMatchObject({
      authorization: "Bearer signed",
      "x-request-id": "request-1",
      traceparent: "t",
    });
    expect(headers).not.toHaveProperty("cookie");
  });

  it("goes through the fetcher that the host chose for the agent", async () => {
    const seen: string[] = [];
    const bound = createFetchTransport({
      signer: { sign: async () => "signed", jwks: { keys: [] } },
      fetcherFor: ({ id }) => ({
        fetch: async (url) => {
          seen.push(`${id} ${url}`);
          return new Response("{}", { headers: DOOR });
        },
      }),
    });
    await bound.send(plan("https://node.internal"), request, new AbortController().signal);
    expect(seen).toEqual(["r/c/n https://node.internal/v1/chat/completions"]);
  });
});

describe("failures before headers", () => {
  it.each([
    ["upstream_busy", 503, "7", 7],
    ["upstream_unreachable", 502, undefined, null],
    ["payload_too_large", 413, undefined, null],
  ])("%s of the door is the same error here", async (code, status, retryAfter, retryAfterSeconds) => {
    const upstream = await door((response) => {
      response.writeHead(status, {
        ...DOOR,
        "x-kedge-error": code,
        ...(retryAfter !== undefined && { "retry-after": retryAfter }),
      });
      response.end(JSON.stringify({ error: { message: "what the door said", param: null } }));
    });
    const error = await errorOf(send(upstream.url));
    expect(error.code).toBe(code);
    expect(error.message).toBe("what the door said");
    expect(error.retryAfterSeconds).toBe(retryAfterSeconds);
  });

  it("a refusal without end or sense is cut short and still an error", async () => {
    const upstream = await door((response) => {
      response.writeHead(502, { ...DOOR, "x-kedge-error": "upstream_error" });
      response.write("x".repeat(100_000));
    });
    expect((await errorOf(send(upstream.url))).code).toBe("upstream_error");
    await upstream.requests[0]!.abandoned;
  });

  it("whatever answers at the address without being a door is an error of that worker", async () => {
    const upstream = await door((response) => {
      response.end("{}");
    });
    expect((await errorOf(send(upstream.url))).code).toBe("upstream_error");
  });

  it("nobody there, and nobody named, are unreachable", async () => {
    const upstream = await startUpstream(() => {});
    await upstream.close();
    expect((await errorOf(send(upstream.url))).code).toBe("upstream_unreachable");
    expect((await errorOf(send(null))).code).toBe("upstream_unreachable");
  });

  it("an abort closes the connection", async () => {
    const upstream = await door(() => {});
    const abort = new AbortController();
    const sent = errorOf(send(upstream.url, abort.signal));
    const { abandoned } = await upstream.arrival(0);
    abort.abort();
    expect((await sent).code).toBe("client_closed");
    await abandoned;
    expect((await errorOf(send(upstream.url, abort.signal))).code).toBe("client_closed");
    expect(upstream.requests).toHaveLength(1);
  });
});

describe("a pushed body", () => {
  it("that is cut says so", async () => {
    const upstream = await door((response) => {
      vouchedStream(response, {} as Received);
      response.write(chatChunk("a"), () => response.destroy());
    });
    const { text, error } = await collect(await send(upstream.url));
    expect([text, error?.code]).toEqual([chatChunk("a"), "stream_interrupted"]);
  });

  it("waits for its sink and loses nothing", async () => {
    const block = "x".repeat(64 * 1024);
    const upstream = await door((response) => {
      response.writeHead(200, DOOR);
      response.end(block.repeat(40));
    });
    const { body } = await send(upstream.url);
    let length = 0;
    await new Promise<void>((resolve, reject) => {
      body.start({
        data: (chunk) => {
          length += chunk.length;
          setImmediate(() => body.resume());
          return false;
        },
        end: resolve,
        fail: reject,
      });
    });
    expect(length).toBe(40 * block.length);
  });

  const phases: [string, (response: TransportResponse) => void][] = [
    ["before its start", () => {}],
    ["while it is read", ({ body }) => body.start(silentSink())],
    ["once its rest was handed over", ({ body }) => handOver(body)],
  ];
  it.each(phases)(
    "cancelled %s, also twice, closes the connection and tells nobody",
    async (_name, prepare) => {
      const upstream = await door((response, received) => {
        vouchedStream(response, received);
        response.write(chatChunk("a"));
      });
      const response = await send(upstream.url);
      prepare(response);
      await new Promise(setImmediate);
      response.body.cancel();
      response.body.cancel();
      await upstream.requests[0]!.abandoned;
    },
  );
});

function silentSink(): BodySink {
  const never = () => {
    throw new Error("a cancelled body spoke");
  };
  return { data: () => true, end: never, fail: never };
}

function handOver(body: TransportResponse["body"]): void {
  body.start({ ...silentSink(), data: () => body.rest!() !== undefined });
}

describe("the rest of a vouched stream", () => {
  /** One attempt through the transport, answered to a web client. */
  async function attempt(script: Script, options: { deadlineInMs?: number; client?: AbortSignal } = {}) {
    const upstream = await door(script);
    let pipes = 0;
    const init = options.client === undefined ? {} : { signal: options.client };
    const client = new WebClient(new Request("http://gateway/", init), {
      onPipe: () => {
        pipes++;
      },
    });
    const now = () => performance.now();
    const input: AttemptInput = {
      transport,
      client,
      clock: {
        now,
        wall: () => Date.now(),
        setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
        clearTimeout: (handle) => clearTimeout(handle as NodeJS.Timeout),
      },
      plan: plan(upstream.url),
      request,
      dropUsage: true,
      headers: { "x-request-id": "request-1" },
      firstDataTimeoutMs: 5_000,
      stallTimeoutMs: 5_000,
      deadlineAtMs: options.deadlineInMs === undefined ? null : now() + options.deadlineInMs,
      watcher: { firstData: () => {}, delivered: () => {} },
    };
    const run = new Attempt(input);
    client.onGone(() => run.abandon());
    const result: Promise<AttemptResult> = run.run(() => {});
    return { upstream, result, response: await client.response, pipes: () => pipes };
  }

  it("goes by the host's pipe, byte for byte", async () => {
    const rest = chatChunk("y".repeat(100_000)).repeat(20) + DONE;
    const { response, result, pipes } = await attempt((response, received) => {
      vouchedStream(response, received);
      response.write(chatChunk("a"), () => setImmediate(() => response.end(rest)));
    });
    expect(await response.text()).toBe(chatChunk("a") + rest);
    expect(await result).toEqual({ kind: "answered", status: 200, usage: null, seen: false });
    expect(pipes()).toBe(1);
  });

  it("is looked into if nobody vouches for it", async () => {
    const { response, result, pipes } = await attempt((response) => {
      response.writeHead(200, { ...DOOR, "content-type": "text/event-stream" });
      response.write(chatChunk("a"), () => setImmediate(() => response.end(chatChunk("b"))));
    });
    expect(await response.text()).toContain('"code":"stream_interrupted"');
    expect((await result).kind).toBe("broken");
    expect(pipes()).toBe(0);
  });

  it("that is cut ends with an error and no end mark", async () => {
    const { response, result, pipes } = await attempt((response, received) => {
      vouchedStream(response, received);
      response.write(chatChunk("a"), () => {
        setImmediate(() => response.write(chatChunk("b"), () => setImmediate(() => response.destroy())));
      });
    });
    const text = await response.text();
    expect(text.startsWith(chatChunk("a"))).toBe(true);
    expect(text).toContain('"code":"stream_interrupted"');
    expect(text).not.toContain(DONE);
    expect(await result).toMatchObject({ kind: "broken", error: { code: "stream_interrupted" } });
    expect(pipes()).toBe(1);
  });

  it("that outlasts the deadline ends with an error, and the agent's request is closed", async () => {
    const { upstream, response, result } = await attempt(
      (response, received) => {
        vouchedStream(response, received);
        response.write(chatChunk("a"));
      },
      { deadlineInMs: 200 },
    );
    expect(await response.text()).toContain('"code":"deadline_exceeded"');
    expect(await result).toMatchObject({ kind: "broken", error: { code: "deadline_exceeded" } });
    await upstream.requests[0]!.abandoned;
  });

  it.each(["by its reader", "by its signal"])(
    "whose client leaves, seen %s, closes the agent's request",
    async (how) => {
      const client = new AbortController();
      const { upstream, response, result } = await attempt(
        (response, received) => {
          vouchedStream(response, received);
          response.write(chatChunk("a"));
        },
        { client: client.signal },
      );
      const reader = response.body!.getReader();
      await reader.read();
      if (how === "by its reader") await reader.cancel();
      else client.abort();
      expect(await result).toEqual({ kind: "abandoned", phase: "streaming" });
      await upstream.requests[0]!.abandoned;
    },
  );

  it("never comes for a client that leaves before: the agent's request is closed as well", async () => {
    const client = new AbortController();
    let abandoned: Promise<void> | null = null;
    const { response, result } = await attempt(
      (_response, received) => {
        abandoned = received.abandoned;
        client.abort();
      },
      { client: client.signal },
    );
    expect(response.status).toBe(499);
    expect(await result).toEqual({ kind: "abandoned", phase: "before_headers" });
    await abandoned;
  });
});
