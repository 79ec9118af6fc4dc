/** Streams tell the truth (guarantees 4.2, 4.3): commit on first data, retries before it, in-band errors after it. */

import { describe, expect, it } from "vitest";
import { KedgeError } from "../../src/errors/index.ts";
import { eventually, type FleetOptions, ManualClock, MODEL } from "./gateway-fleet.ts";
import { answerWhole, body, good, post, setUp, status, stream, whole } from "./gateway-scripts.ts";
import { chatChunk, DONE, openStream, type Script, usageChunk } from "./gateway-upstream.ts";

describe("a good stream", () => {
  it("passes byte for byte, without the usage chunk that only the gateway asked for", async () => {
    const { fleet, engines } = await setUp([good]);
    const response = await stream(fleet.url);
    expect(response.status).toBe(200);
    expect(await response.text()).toBe(chatChunk("a") + chatChunk("b") + DONE);
    expect(JSON.parse(engines[0]!.requests[0]!.body).stream_options).toEqual({ include_usage: true });
    await eventually(
      () => fleet.metric(`kedge_reported_cached_tokens_total{model="${MODEL}",worker="a"}`) === 16,
    );
  });

  it("keeps the usage chunk for a client that asked for it", async () => {
    const { fleet } = await setUp([good]);
    const response = await stream(fleet.url, { stream_options: { include_usage: true } });
    expect(await response.text()).toBe(chatChunk("a") + chatChunk("b") + usageChunk(32, 16) + DONE);
  });

  it("survives every way to cut it into chunks", async () => {
    const text = chatChunk("ä🚢") + chatChunk("b") + usageChunk(32, 0) + DONE;
    const bytes = Buffer.from(text);
    const { fleet } = await setUp([
      async (response, { body: sent }) => {
        const cut = Number(JSON.parse(sent).seed);
        openStream(response);
        for (const piece of [bytes.subarray(0, cut), bytes.subarray(cut)]) {
          if (piece.length > 0) response.write(piece);
          await new Promise(setImmediate);
        }
        response.end();
      },
    ]);
    const cuts = Array.from({ length: 40 }, (_, i) => Math.floor((i * bytes.length) / 40));
    for (const seed of cuts) {
      const response = await stream(fleet.url, { seed });
      expect(await response.text()).toBe(chatChunk("ä🚢") + chatChunk("b") + DONE);
    }
  });
});

/** As vLLM sends it ahead of the first token. */
const PREAMBLE =
  'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_text":null}\n\n';

describe("before the first data", () => {
  const failures: [string, Script, string][] = [
    ["502", status(502), "upstream_error"],
    ["500", status(500), "upstream_error"],
    ["504", status(504), "upstream_timeout"],
    ["503", status(503), "upstream_busy"],
    ["429", status(429), "upstream_busy"],
    ["529", status(529), "upstream_busy"],
    ["401 of the engine", status(401), "upstream_error"],
    ["a redirect", status(302, { location: "http://127.0.0.1:1/" }), "upstream_error"],
    ["connection reset", (_response, { socket }) => void socket.resetAndDestroy(), "upstream_unreachable"],
    [
      "an error behind a 200",
      (response) => {
        openStream(response);
        response.write(": warming up\n\n");
        response.end(`data: {"error":{"message":"secret engine words","code":500}}\n\n${DONE}`);
      },
      "upstream_error",
    ],
    [
      "an error after a chunk that only names the speaker",
      async (response) => {
        openStream(response);
        response.write(PREAMBLE);
        await new Promise(setImmediate);
        response.end(`data: {"error": {"message": "secret engine words", "code": 500}}\n\n${DONE}`);
      },
      "upstream_error",
    ],
    [
      "a cut after such a chunk",
      (response) => {
        openStream(response);
        response.write(PREAMBLE, () => response.destroy());
      },
      "upstream_error",
    ],
    [
      "a cut behind a 200",
      (response) => {
        openStream(response);
        response.write("data: {", () => response.destroy());
      },
      "upstream_error",
    ],
    [
      "an end without data",
      (response) => {
        openStream(response);
        response.end(DONE);
      },
      "upstream_error",
    ],
    [
      "an empty 200",
      (response) => {
        openStream(response);
        response.end();
      },
      "upstream_error",
    ],
  ];

  it.each(failures)(
    "goes to the next worker after %s, and the client sees one whole answer",
    async (_name, script, code) => {
      const { fleet, engines } = await setUp([script, good]);
      const response = await stream(fleet.url);
      expect(response.status).toBe(200);
      expect(response.headers.get("x-kedge-worker")).toBe("b/0");
      expect(await response.text()).toBe(chatChunk("a") + chatChunk("b") + DONE);
      expect(engines.map(({ requests }) => requests.length)).toEqual([1, 1]);
      expect(fleet.metric(`kedge_retries_total{model="${MODEL}",code="${code}"}`)).toBe(1);
    },
  );

  it.each(failures)(
    "answers a typed error without the engine's words when every worker gives %s",
    async (_name, script, code) => {
      const { fleet } = await setUp([script, script], { config: { explain: false } });
      const response = await stream(fleet.url);
      expect([502, 503, 504]).toContain(response.status);
      const text = await response.text();
      expect(JSON.parse(text).error.code).toBe(code);
      expect(text).not.toContain("secret");
      expect(response.headers.get("retry-after")).toBe(code === "upstream_busy" ? "1" : null);
    },
  );

  it("passes the engine's Retry-After on when all are busy", async () => {
    const { fleet } = await setUp([status(503, { "retry-after": "7" })]);
    const response = await stream(fleet.url);
    expect(response.status).toBe(503);
    expect(response.headers.get("retry-after")).toBe("7");
  });

  it("says when to come again where whoever was asked did not", async () => {
    const { fleet } = await setUp([good], {
      transport: () => ({ send: () => Promise.reject(new KedgeError("shutting_down", "Going.")) }),
    });
    const response = await stream(fleet.url);
    expect([response.status, response.headers.get("retry-after")]).toEqual([503, "1"]);
  });

  it.each([400, 404, 413, 422])("passes a %i through unchanged and does not retry it", async (code) => {
    const { fleet, engines } = await setUp([status(code), good]);
    const response = await stream(fleet.url);
    expect(response.status).toBe(code);
    expect((await response.json()).error.message).toBe("secret engine words");
    expect(engines[1]!.requests).toHaveLength(0);
  });

  it("passes on a client's fault that hides behind a 200", async () => {
    const event = 'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n';
    const { fleet, engines } = await setUp([
      (response) => {
        openStream(response);
        response.end(event + DONE);
      },
      good,
    ]);
    expect(await (await stream(fleet.url)).text()).toBe(event + DONE);
    expect(engines[1]!.requests).toHaveLength(0);
  });

  it("commits nothing on comments: a silent worker is left for the next after its time", async () => {
    const clock = new ManualClock();
    const { fleet, engines } = await setUp(
      [
        (response) => {
          openStream(response);
          response.write(": still here\n\n");
        },
        good,
      ],
      { clock, config: { limits: { firstByteTimeoutMs: 5_000, heartbeatMs: 1_000 } } },
    );
    const response = stream(fleet.url);
    const { abandoned } = await engines[0]!.arrival(0);
    clock.advance(4_999);
    expect(engines[1]!.requests).toHaveLength(0);
    clock.advance(1);
    expect(await (await response).text()).toBe(chatChunk("a") + chatChunk("b") + DONE);
    await abandoned;
  });

  it("passes a chunk that only names the speaker along with the first word, or alone when the engine thinks on", async () => {
    const clock = new ManualClock();
    let speak: () => void = () => {};
    const { fleet, engines } = await setUp(
      [
        (response) => {
          openStream(response);
          response.write(PREAMBLE);
          speak = () => response.end(chatChunk("a") + DONE);
        },
      ],
      { clock, config: { limits: { firstByteTimeoutMs: 500, stallTimeoutMs: 60_000 } } },
    );
    for (const thinks of [false, true]) {
      const answer = stream(fleet.url);
      await engines[0]!.arrival(Number(thinks));
      if (thinks) {
        let headers = false;
        void answer.then(() => {
          headers = true;
        });
        await eventually(() => {
          clock.advance(100);
          return headers;
        });
      }
      speak();
      expect(await (await answer).text()).toBe(PREAMBLE + chatChunk("a") + DONE);
    }
    expect(fleet.warnings).toEqual([]);
  });

  it("stops at the deadline, whoever is left", async () => {
    const clock = new ManualClock();
    const silent: Script = () => {};
    const { fleet, engines } = await setUp([silent, silent, silent], {
      clock,
      config: { limits: { firstByteTimeoutMs: 5_000, requestTimeoutMs: 8_000 } },
    });
    const response = stream(fleet.url);
    await engines[0]!.arrival(0);
    clock.advance(5_000);
    const { abandoned } = await engines[1]!.arrival(0);
    clock.advance(3_000);
    expect((await response).status).toBe(504);
    expect((await (await response).json()).error.code).toBe("deadline_exceeded");
    await abandoned;
    expect(engines[2]!.requests).toHaveLength(0);
  });

  it("tries no more workers than configured", async () => {
    const { fleet, engines } = await setUp([status(502), status(502), good], {
      config: { limits: { maxAttempts: 2 } },
    });
    expect((await stream(fleet.url)).status).toBe(502);
    expect(engines[2]!.requests).toHaveLength(0);
  });
});

describe("after the first data", () => {
  async function tail(script: Script, options: Partial<FleetOptions> = {}) {
    const { fleet, engines } = await setUp([script, good], options);
    const response = await stream(fleet.url);
    const text = await response.text();
    expect(response.status).toBe(200);
    expect(text).not.toContain("[DONE]");
    expect(engines[1]!.requests).toHaveLength(0);
    const last = text.trimEnd().split("\n\n").at(-1)!;
    return { fleet, text, error: JSON.parse(last.replace(/^data: /, "")).error };
  }

  it("reports a cut in-band and invents no end", async () => {
    const { text, error, fleet } = await tail((response) => {
      openStream(response);
      response.write(chatChunk("a") + chatChunk("half").slice(0, 30), () => response.destroy());
    });
    expect(error.code).toBe("stream_interrupted");
    expect(text.startsWith(chatChunk("a"))).toBe(true);
    expect(text).not.toContain("half");
    expect(fleet.metric(`kedge_stream_errors_total{model="${MODEL}",code="stream_interrupted"}`)).toBe(1);
  });

  it("does not take an end without the end mark for a good end", async () => {
    const { error } = await tail((response) => {
      openStream(response);
      response.end(chatChunk("a"));
    });
    expect(error.code).toBe("stream_interrupted");
  });

  it("ends a stalled stream by an error and aborts the engine", async () => {
    const clock = new ManualClock();
    const { fleet, engines } = await setUp(
      [
        (response) => {
          openStream(response);
          response.write(chatChunk("a"));
        },
      ],
      { clock, config: { limits: { stallTimeoutMs: 3_000 } } },
    );
    const response = await stream(fleet.url);
    const { abandoned } = await engines[0]!.arrival(0);
    clock.advance(3_001);
    expect(await response.text()).toContain('"code":"stream_stalled"');
    await abandoned;
  });

  it("passes an engine's own in-band error and end on untouched, and counts it", async () => {
    const rest = `data: {"error":{"message":"EngineCore died","code":500}}\n\n${DONE}`;
    const { fleet } = await setUp([
      (response) => {
        openStream(response);
        response.end(chatChunk("a") + rest);
      },
    ]);
    expect(await (await stream(fleet.url)).text()).toBe(chatChunk("a") + rest);
    await eventually(
      () => fleet.metric(`kedge_worker_failures_total{worker="a",code="upstream_error"}`) === 1,
    );
  });
});

describe("a whole answer", () => {
  it("passes byte for byte", async () => {
    const { fleet } = await setUp([answerWhole]);
    const response = await post(fleet.url, body());
    expect(response.headers.get("content-type")).toBe("application/json");
    expect(await response.text()).toBe(whole("fine"));
  });

  it.each([
    ["an error body", '{"error":{"message":"x","code":500}}'],
    ["an old flat error", '{"object":"error","message":"x","code":500}'],
    ["finish_reason error", '{"choices":[{"index":0,"finish_reason":"error"}]}'],
    ["half a body", '{"choices":['],
  ])("is retried when it is %s behind a 200", async (_name, text) => {
    const bad: Script = (response) => {
      response.writeHead(200, { "content-type": "application/json" });
      response.end(text);
    };
    const { fleet } = await setUp([bad, answerWhole]);
    expect(await (await post(fleet.url, body())).text()).toBe(whole("fine"));
    const lone = await setUp([bad]);
    expect((await post(lone.fleet.url, body())).status).toBe(502);
  });

  it("is retried when it is cut", async () => {
    const { fleet } = await setUp([
      (response) => {
        response.writeHead(200, { "content-type": "application/json", "content-length": 1_000 });
        response.write("{", () => response.destroy());
      },
      answerWhole,
    ]);
    expect((await post(fleet.url, body())).status).toBe(200);
  });
});
