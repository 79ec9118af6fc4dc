/** The gateway's HTTP face: routes, keys, limits, allow-lists, request ids, web streams. */

import { createHash } from "node:crypto";
import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { describe, expect, it } from "vitest";
import { chat, setUp } from "./gateway-calls.ts";
import { eventually, ManualClock, MODEL, registration } from "./gateway-fleet.ts";
import { chatChunk, DONE, streamAll } from "./gateway-upstream.ts";

describe("routes", () => {
  it("answers what is not there with 404 and wrong methods with 405, both typed", async () => {
    const { call } = await setUp();
    const missing = await call("/v1/nope");
    expect([missing.status, (await missing.json()).error.code]).toEqual([404, "not_found"]);
    const wrong = await call("/v1/chat/completions");
    expect([wrong.status, (await wrong.json()).error.code, wrong.headers.get("allow")]).toEqual([
      405,
      "method_not_allowed",
      "POST",
    ]);
  });

  it("are open without keys to this machine's programs, and to no page whose name was made to point here", async () => {
    const { fleet } = await setUp();
    const statuses = await Promise.all(
      ["/v1/models", "/busy_threshold", "/metrics"].flatMap((path) =>
        ["localhost", "evil.example"].map(async (host) => {
          const request = httpRequest(fleet.url + path, { headers: { host } }).end();
          const [response] = (await once(request, "response")) as [IncomingMessage];
          response.resume();
          return response.statusCode;
        }),
      ),
    );
    expect(statuses).toEqual([200, 401, 200, 401, 200, 401]);
  });

  it("lists base models and adapters in OpenAI's shape", async () => {
    const { call } = await setUp(["a"], { registrations: [registration("a", { adapters: ["tide"] })] });
    const { object, data } = await (await call("/v1/models")).json();
    expect(object).toBe("list");
    expect(data).toMatchObject([
      { id: MODEL, object: "model", owned_by: "kedge", parent: null, max_model_len: 8_192 },
      { id: "tide", object: "model", parent: MODEL },
    ]);
    expect(Number.isInteger(data[0].created)).toBe(true);
    expect((await (await call("/v1/models/tide")).json()).parent).toBe(MODEL);
    expect((await call("/v1/models/none")).status).toBe(404);
  });

  it("says that a model is out of service while it has no worker, and unknown when it never had one", async () => {
    const clock = new ManualClock();
    const { call, fleet } = await setUp(["a", "b"], {
      clock,
      registrations: [registration("a"), registration("b", { model: "other", servedNames: ["other"] })],
    });
    const ask = async (model: string) => {
      const response = await call("/v1/chat/completions", { body: { ...chat("x"), model } });
      return [response.status, (await response.json()).error?.code, response.headers.get("retry-after")];
    };
    expect(await ask(MODEL)).toEqual([200, undefined, null]);
    fleet.store.retire(registration("a"));
    clock.advance(1_000);
    expect(await ask(MODEL)).toEqual([503, "no_workers", "1"]);
    expect(await ask("none")).toEqual([404, "model_not_found", null]);
    clock.advance(600_000);
    expect(await ask(MODEL)).toEqual([404, "model_not_found", null]);
    fleet.store.retire(registration("b", { model: "other", servedNames: ["other"] }));
    clock.advance(1_000);
    expect(await ask("none")).toEqual([503, "no_workers", "1"]);
  });

  it("tells health, life and readiness", async () => {
    const { call, fleet } = await setUp();
    expect((await call("/live")).status).toBe(200);
    expect(await (await call("/health")).json()).toEqual({ status: "healthy", models: 1, workers: 1 });
    expect((await call("/ready")).status).toBe(200);
    fleet.store.retire(registration("a"));
    expect((await call("/ready")).status).toBe(503);
  });

  it("serves its metrics in Prometheus' format", async () => {
    const { call } = await setUp();
    await call("/v1/chat/completions", { body: chat("hi") });
    const response = await call("/metrics");
    expect(response.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
    expect(await response.text()).toContain(
      `kedge_requests_total{model="${MODEL}",endpoint="chat",stream="false",status="200"} 1`,
    );
  });
});

describe("API keys", () => {
  const digest = (key: string) => createHash("sha256").update(key).digest("hex");
  const keyed = { apiKeyDigests: [digest("alpha"), digest("beta")] };

  it("lets in whoever holds a key and nobody else, on every service route", async () => {
    const { call } = await setUp(["a"], { config: keyed });
    const bodies: [string, unknown][] = [
      ["/v1/chat/completions", chat("x")],
      ["/v1/completions", { model: MODEL, prompt: "x" }],
      ["/v1/route", chat("x")],
      ["/v1/models", undefined],
      ["/busy_threshold", undefined],
      ["/metrics", undefined],
    ];
    for (const [path, body] of bodies) {
      const as = (authorization: string | null) =>
        call(path, {
          ...(body !== undefined && { body }),
          headers: authorization === null ? {} : { authorization },
        });
      for (const bad of [null, "Bearer gamma", "Bearer ", "Basic alpha", `Bearer ${digest("alpha")}`]) {
        const refused = await as(bad);
        expect([path, bad, refused.status]).toEqual([path, bad, 401]);
        expect((await refused.json()).error.code).toBe("unauthorized");
      }
      for (const good of ["Bearer alpha", "bearer beta"]) expect((await as(good)).status).toBe(200);
    }
    expect((await call("/live")).status).toBe(200);
  });

  it("gives no service off loopback without keys, and says why", async () => {
    const { fleet } = await setUp(["a"], { config: { host: "0.0.0.0" } });
    const url = fleet.url.replace("0.0.0.0", "127.0.0.1");
    for (const path of ["/v1/models", "/busy_threshold", "/metrics"]) {
      const response = await fetch(url + path);
      expect(response.status).toBe(503);
      const { error } = await response.json();
      expect(error.code).toBe("service_unconfigured");
      expect(error.message).toContain("KEDGE_API_KEYS");
    }
    const refused = await fetch(`${url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(chat("x")),
    });
    expect(refused.status).toBe(503);
    expect((await fetch(`${url}/health`)).status).toBe(200);
  });
});

describe("bodies", () => {
  it("takes a body of exactly the limit and refuses one byte more, announced or not", async () => {
    const limit = 4_096;
    const { fleet, call, engine } = await setUp(["a"], { config: { limits: { bodyBytes: limit } } });
    const empty = JSON.stringify(chat(""));
    const sized = (bytes: number) => JSON.stringify(chat("x".repeat(bytes - empty.length)));
    expect((await call("/v1/chat/completions", { body: sized(limit) })).status).toBe(200);
    const refused = await call("/v1/chat/completions", { body: sized(limit + 1) });
    expect([refused.status, (await refused.json()).error.code]).toEqual([413, "payload_too_large"]);
    const chunked = httpRequest(`${fleet.url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
    });
    chunked.on("error", () => {});
    chunked.write("x".repeat(limit));
    chunked.write("x".repeat(limit));
    const [response] = (await once(chunked, "response")) as [IncomingMessage];
    expect(response.statusCode).toBe(413);
    chunked.destroy();
    expect(engine.requests).toHaveLength(1);
  });

  it.each([
    ["not JSON", "{", 400, "invalid_json"],
    ["a list", "[]", 400, "invalid_request"],
    ["no model", '{"messages":[]}', 400, "invalid_request"],
    ["an unknown model", '{"model":"none","messages":[]}', 404, "model_not_found"],
    ["nesting without end", `{"model":"${MODEL}","messages":${"[".repeat(5_000)}`, 400, "invalid_json"],
    ["no messages", `{"model":"${MODEL}"}`, 400, "invalid_request"],
  ])("refuses %s", async (_name, body, status, code) => {
    const { call, engine } = await setUp();
    const response = await call("/v1/chat/completions", { body });
    expect([response.status, (await response.json()).error.code]).toEqual([status, code]);
    expect(engine.requests).toHaveLength(0);
  });

  it("refuses what is not plain JSON by its headers", async () => {
    const { call } = await setUp();
    const refused: Record<string, string>[] = [
      { "content-type": "text/plain" },
      { "content-encoding": "gzip" },
    ];
    for (const path of ["/v1/chat/completions", "/v1/completions", "/v1/route", "/busy_threshold"]) {
      for (const headers of refused) {
        const response = await call(path, { body: chat("x"), headers });
        expect([response.status, (await response.json()).error.code]).toEqual([
          415,
          "unsupported_media_type",
        ]);
      }
    }
  });

  it("passes unknown fields, number forms and order on, and takes kv_transfer_params out", async () => {
    const { call, engine } = await setUp();
    const body = `{"zeta": 1.50,"model":"${MODEL}","kv_transfer_params":{"remote_host":"evil"},"messages":[{"content":"hi","role":"user","odd":1e5}],"top_k":12345678901234567890}`;
    await call("/v1/chat/completions", { body });
    expect(engine.requests[0]!.body).toBe(body.replace('"kv_transfer_params":{"remote_host":"evil"},', ""));
  });

  it("passes only allow-listed headers, both ways", async () => {
    const { call, engine } = await setUp();
    const response = await call("/v1/chat/completions", {
      body: chat("x"),
      headers: {
        authorization: "Bearer client-canary",
        cookie: "client-canary=1",
        "x-data-parallel-rank": "3",
        "x-kedge-internal": "client-canary",
        "x-forwarded-for": "1.2.3.4",
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      },
    });
    expect(JSON.stringify(engine.requests[0]!.headers)).not.toMatch(/canary|1\.2\.3\.4/);
    expect(engine.requests[0]!.headers["x-data-parallel-rank"]).toBeUndefined();
    expect(engine.requests[0]!.headers.traceparent).toContain("0af7651916cd43dd8448eb211c80319c");
    expect(JSON.stringify([...response.headers])).not.toContain("canary");
  });
});

describe("trace headers", () => {
  const PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

  it.each([
    [PARENT, "a=1,b=2", PARENT, "a=1,b=2"],
    [PARENT, "x".repeat(600), PARENT, undefined],
    [PARENT, "ä=1", PARENT, undefined],
    ["00-zz", "a=1", undefined, undefined],
    ["a".repeat(20_000), "a=1", undefined, undefined],
  ])("pass only in their own form: %.60s, %.20s", async (parent, state, sentParent, sentState) => {
    const { call, engine } = await setUp();
    const headers = { traceparent: parent, tracestate: state };
    expect((await call("/v1/chat/completions", { body: chat("x"), headers })).status).toBe(200);
    const sent = engine.requests[0]!.headers;
    expect([sent.traceparent, sent.tracestate]).toEqual([sentParent, sentState]);
  });
});

describe("request ids", () => {
  it("keeps a sane one, replaces another, and never gives the engine the same twice", async () => {
    const { call, engine } = await setUp();
    const ids = async (given: string) =>
      (
        await call("/v1/chat/completions", { body: chat("x"), headers: { "x-request-id": given } })
      ).headers.get("x-request-id");
    expect(await ids("order-66.a:b")).toBe("order-66.a:b");
    expect(await ids("order-66.a:b")).toBe("order-66.a:b");
    expect(await ids("two words")).toMatch(/^[0-9a-f]{32}$/);
    const sent = engine.requests.map(({ headers }) => headers["x-request-id"]);
    expect(sent[0]).toMatch(/^order-66\.a:b-[0-9a-f]{8}$/);
  });
});

describe("without a host's own connection", () => {
  it("serves by web streams: streaming, whole, and a reader that cancels", async () => {
    let go: () => void = () => {};
    const { fleet, engine } = await setUp(["a"], {}, (response, request) => {
      if (request.body.includes("hang")) {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.write(chatChunk("first"));
        go = () => response.end(DONE);
      } else streamAll(response, ["a"]);
    });
    const ask = (content: string) =>
      fleet.app.request("/v1/chat/completions", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(chat(content, { stream: true })),
      });
    expect(await (await ask("x")).text()).toBe(chatChunk("a") + DONE);
    const cut = await ask("hang");
    const reader = cut.body!.getReader();
    expect(new TextDecoder().decode((await reader.read()).value)).toBe(chatChunk("first"));
    await reader.cancel();
    await engine.requests[1]!.abandoned;
    go();
    await eventually(() => fleet.metric(`kedge_aborts_total{model="${MODEL}",phase="streaming"}`) === 1);
  });
});
