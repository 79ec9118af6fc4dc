/** The gateway Worker in workerd: streams tell the truth on the cheap pipe too, clients that leave end their requests, keys are needed. */

import { once } from "node:events";
import { type IncomingMessage, request } from "node:http";
import { connect, type Socket } from "node:net";
import { createLocalJWKSet, jwtVerify } from "jose";
import { describe, expect, it } from "vitest";
import { MODEL } from "../e2e/gateway-fleet.ts";
import { chatChunk, DONE, type Script } from "../e2e/gateway-upstream.ts";
import {
  AUTHORIZED,
  chatInit,
  eventually,
  JSON_ANSWER,
  KEYS,
  startStack,
  startWorker,
  UNVOUCHED,
  VOUCHED,
} from "./worker-stack.ts";

const PIPED = "kedge_piped_streams_total";
const served = (status: string, stream: boolean) =>
  `kedge_requests_total{model="${MODEL}",endpoint="chat",stream="${stream}",status="${status}"}`;
const INFLIGHT = `kedge_inflight_requests{model="${MODEL}"}`;

const whole: Script = (response) => {
  response.writeHead(200, JSON_ANSWER);
  response.end('{"choices":[{"index":0}],"usage":{"prompt_tokens":9,"completion_tokens":1}}');
};

/** Holds an agent's script until the test lets it go on. */
class Gate {
  private open: (() => void)[] = [];
  readonly passed = (): Promise<void> => new Promise((resolve) => this.open.push(resolve));

  /** The whole text; the script goes on once its first data has been read, so that the rest is another delivery. */
  async read(answer: Response): Promise<string> {
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return text;
      text += value;
      for (const go of this.open.splice(0)) go();
    }
  }
}

const inTwo =
  (gate: Gate, headers: Record<string, string>, rest: string): Script =>
  async (response) => {
    response.writeHead(200, headers);
    response.write(chatChunk("a"));
    await gate.passed();
    response.end(rest);
  };

describe("answers", () => {
  it("come whole and streamed, by a plan that this gateway signed for that agent", async () => {
    const { agents, chat, metric } = await startStack([whole]);
    const answer = await chat(false);
    expect(answer.status).toBe(200);
    expect(await answer.json()).toMatchObject({ choices: [{ index: 0 }] });
    expect(answer.headers.get("x-kedge-rung")).not.toBeNull();
    const token = agents[0]!.requests[0]!.headers.authorization!.replace("Bearer ", "");
    const { payload } = await jwtVerify(token, createLocalJWKSet(KEYS.publicJwks), { audience: "r/c/n0" });
    expect(payload.jti).toBe(answer.headers.get("x-request-id"));
    expect(await metric(served("200", false))).toBe(1);
  });

  it("that are vouched for go by the runtime's own pipe, byte for byte", async () => {
    const rest = chatChunk("y".repeat(1_000)).repeat(500) + DONE;
    const gate = new Gate();
    const { chat, metric } = await startStack([inTwo(gate, VOUCHED, rest)]);
    expect(await gate.read(await chat(true))).toBe(chatChunk("a") + rest);
    expect(await metric(PIPED)).toBe(1);
    expect(await metric(served("200", true))).toBe(1);
    expect(await metric(INFLIGHT)).toBe(0);
  });

  it("that nobody vouches for are looked into", async () => {
    const gate = new Gate();
    const { chat, metric } = await startStack([inTwo(gate, UNVOUCHED, chatChunk("b") + DONE)]);
    expect(await gate.read(await chat(true))).toBe(chatChunk("a") + chatChunk("b") + DONE);
    expect(await metric(PIPED)).toBe(0);
  });
});

describe("a stream that fails after its first data", () => {
  const cut =
    (gate: Gate, headers: Record<string, string>): Script =>
    async (response) => {
      response.writeHead(200, headers);
      response.write(chatChunk("a"));
      await gate.passed();
      response.write(chatChunk("b"), () => response.destroy());
    };

  it.each([
    ["on the pipe", VOUCHED, 1],
    ["looked into", UNVOUCHED, 0],
  ])("by a cut, %s, ends with an error and no end mark", async (_name, headers, pipes) => {
    const gate = new Gate();
    const { chat, metric } = await startStack([cut(gate, headers)]);
    const text = await gate.read(await chat(true));
    expect(text.startsWith(chatChunk("a"))).toBe(true);
    expect(text).toContain('"code":"stream_interrupted"');
    expect(text).not.toContain(DONE);
    expect(await metric(PIPED)).toBe(pipes);
    await eventually(
      async () =>
        (await metric(`kedge_stream_errors_total{model="${MODEL}",code="stream_interrupted"}`)) === 1,
    );
    expect(await metric(INFLIGHT)).toBe(0);
  });

  const silent =
    (headers: Record<string, string>): Script =>
    (response) => {
      response.writeHead(200, headers);
      response.write(chatChunk("a"));
    };

  it("by silence ends with an error where the gateway looks", async () => {
    const { agents, chat } = await startStack([silent(UNVOUCHED)], { KEDGE_STALL_TIMEOUT_MS: "300" });
    expect(await (await chat(true)).text()).toContain('"code":"stream_stalled"');
    await agents[0]!.requests[0]!.abandoned;
  });

  it("by silence on the pipe ends at the deadline", async () => {
    const { agents, chat, metric } = await startStack([silent(VOUCHED)], { KEDGE_REQUEST_TIMEOUT_MS: "500" });
    expect(await (await chat(true)).text()).toContain('"code":"deadline_exceeded"');
    await agents[0]!.requests[0]!.abandoned;
    expect(await metric(PIPED)).toBe(1);
  });
});

describe("before the first data", () => {
  it("another worker is tried, and nothing was sent", async () => {
    const busy: Script = (response) => {
      response.writeHead(503, { "x-kedge-door": "1", "x-kedge-error": "upstream_busy", "retry-after": "1" });
      response.end("{}");
    };
    const gate = new Gate();
    const { chat, metric } = await startStack([busy, inTwo(gate, VOUCHED, DONE)]);
    for (let i = 0; i < 6; i++) {
      expect(await gate.read(await chat(true))).toBe(chatChunk("a") + DONE);
    }
    expect(await metric(PIPED)).toBe(6);
  });
});

describe("a client that leaves", () => {
  it.each([
    ["on the pipe", VOUCHED],
    ["looked into", UNVOUCHED],
  ])("in the middle of a stream, %s, ends the agent's request", async (_name, headers) => {
    // Without Cloudflare's network before it, workerd sees that a client has left when it next writes to it.
    const { url, agents, metric } = await startStack([
      (response) => {
        response.writeHead(200, headers);
        const tokens = setInterval(() => response.write(chatChunk("a")), 20);
        response.on("close", () => clearInterval(tokens));
      },
    ]);
    const { body, ...init } = chatInit(true);
    const client = request(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: init.headers as Record<string, string>,
    });
    client.on("error", () => {});
    client.end(body);
    const [response] = (await once(client, "response")) as [IncomingMessage];
    await once(response, "data");
    client.destroy();
    await agents[0]!.requests[0]!.abandoned;
    await eventually(
      async () => (await metric(`kedge_aborts_total{model="${MODEL}",phase="streaming"}`)) === 1,
    );
    expect(await metric(INFLIGHT)).toBe(0);
    expect(await metric('kedge_breaker_open{worker="w0"}')).toBe(0);
  });

  it.each([
    ["before headers", true, null, "before_headers"],
    ["before first data", true, UNVOUCHED, "before_first_data"],
    ["inside a whole answer", false, JSON_ANSWER, "before_first_data"],
  ] as const)("%s ends the agent's request", async (_name, isStream, headers, phase) => {
    const { url, agents, metric } = await startStack([
      (response) => {
        if (headers === null) return;
        response.writeHead(200, headers);
        response.write(isStream ? ": thinking\n\n" : "{");
      },
    ]);
    const socket = upload(url, chatInit(isStream).body as string);
    const { abandoned } = await agents[0]!.arrival(0);
    // Cloudflare's network tells workerd of a client that leaves; on loopback only a reset does, while nothing is written.
    socket.resetAndDestroy();
    await abandoned;
    await eventually(async () => (await metric(INFLIGHT)) === 0);
    const aborts = (one: string) => metric(`kedge_aborts_total{model="${MODEL}",phase="${one}"}`);
    // Whether the agent's headers had come by then is chance.
    expect((await aborts(phase)) + (phase === "before_headers" ? 0 : await aborts("before_headers"))).toBe(1);
  });

  it("while it sends its body gives its room back", async () => {
    const { url, chat } = await startStack([whole], {
      KEDGE_BODY_LIMIT_BYTES: "50000",
      KEDGE_INFLIGHT_BODY_BYTES: "50000",
    });
    const another = async () => (await chat(false)).status;
    await eventually(async () => (await another()) === 200);
    const socket = upload(url, '{"model":', 50_000);
    await eventually(async () => (await another()) === 503);
    socket.resetAndDestroy();
    await eventually(async () => (await another()) === 200);
  });
});

/** A client on a bare socket; its body may be longer than what it sends. */
function upload(url: string, body: string, length = body.length): Socket {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on("error", () => {});
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: ${AUTHORIZED.authorization}\r\n` +
      `content-type: application/json\r\ncontent-length: ${length}\r\n\r\n${body}`,
  );
  return socket;
}

describe("a gateway", () => {
  it("without keys answers 503 and names what is missing", async () => {
    const { url } = await startWorker([], { KEDGE_API_KEYS: "", KEDGE_PLAN_KEY: "" });
    const answer = await fetch(`${url}/v1/models`);
    expect(answer.status).toBe(503);
    const { error } = (await answer.json()) as { error: { code: string; message: string } };
    expect(error.code).toBe("service_unconfigured");
    expect(error.message).toContain("KEDGE_API_KEYS");
    expect(error.message).toContain("KEDGE_PLAN_KEY");
    expect(error.message).not.toContain("KEDGE_REDIS_URL");
  });

  it("with a setting that makes no sense answers 500 and names it", async () => {
    const { url } = await startWorker([], { KEDGE_STALL_TIMEOUT_MS: "soon", KEDGE_STAL_TIMEOUT: "1" });
    const answer = await fetch(`${url}/live`);
    expect(answer.status).toBe(500);
    expect(await answer.text()).toMatch(/KEDGE_STAL_TIMEOUT.*KEDGE_STALL_TIMEOUT_MS/s);
  });

  it("lets in only who has a key, and publishes its plan keys to all", async () => {
    const { url, call } = await startWorker([]);
    expect((await fetch(`${url}/v1/models`)).status).toBe(401);
    expect((await fetch(`${url}/v1/models`, { headers: { authorization: "Bearer other" } })).status).toBe(
      401,
    );
    expect((await call("/v1/models")).status).toBe(200);
    const keys = await (await fetch(`${url}/.well-known/jwks.json`)).json();
    expect(keys).toEqual(KEYS.publicJwks);
  });

  it("explains nothing unless the operator says so", async () => {
    const { call } = await startWorker([]);
    expect((await call("/v1/route", chatInit(false))).status).toBe(404);
    expect((await call("/v1/models", { headers: AUTHORIZED })).status).toBe(200);
  });
});
