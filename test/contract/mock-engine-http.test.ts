/** The mock's HTTP bodies, streams, errors and metrics against those of a recorded vLLM, field by field. */

import { readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { type MockEngine, startMockEngine } from "../../gpu-agent/engines/mock/index.ts";
import { eventsOf, type RawRequest, type RawResponse, send } from "./mock-engine-client.ts";

const FIXTURES = new URL("../fixtures/vllm/", import.meta.url);

interface Case {
  readonly case: string;
  readonly request: RawRequest;
  readonly response: {
    readonly status: number;
    readonly headers: readonly (readonly [string, string])[];
    readonly body: string;
    readonly chunk_sizes?: readonly number[];
  };
}

function cases(name: string): Case[] {
  return readFileSync(new URL(name, FIXTURES), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Case);
}

/** Keys in order with the types of their values; of an array, its first element's. */
function shape(value: unknown): unknown {
  if (value === null) return "null";
  if (Array.isArray(value)) return value.length === 0 ? "[]" : [shape(value[0])];
  if (typeof value !== "object") return typeof value;
  // A map from tokens to numbers: its keys are the model's words.
  if ("top_logprobs" in value && value.top_logprobs !== null) return shape({ ...value, top_logprobs: null });
  return Object.entries(value as object).map(([key, item]) => [key, shape(item)]);
}

/** What does not depend on the model's weights: kinds, reasons, indices. */
function facts(value: unknown, out: unknown[] = []): unknown[] {
  if (Array.isArray(value)) for (const item of value) facts(item, out);
  else if (typeof value === "object" && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      if (["object", "finish_reason", "stop_reason", "role", "type", "index", "owned_by"].includes(key))
        out.push([key, item]);
      facts(item, out);
    }
  }
  return out;
}

const parsed = (text: string): unknown => (/^[[{]/.test(text) ? JSON.parse(text) : text);

/** Headers that say something of the protocol; lengths and dates vary. */
const headerNames = (headers: RawResponse["headers"]): string[] =>
  headers.map(([name]) => name).filter((name) => !["date", "connection", "keep-alive"].includes(name));

/** Shapes of a stream's events in order, repetitions once. */
function eventShapes(body: string): string[] {
  const shapes = eventsOf(body).map((event) =>
    JSON.stringify(event === "[DONE]" ? event : shape(withoutMetrics(parsed(event)))),
  );
  return shapes.filter((one, i) => one !== shapes[i - 1]);
}

/** `--enable-per-request-metrics` was on in one recording; the mock has no such flag. */
function withoutMetrics(value: unknown): unknown {
  if (typeof value !== "object" || value === null || !("metrics" in value)) return value;
  const { metrics: _, ...rest } = value as Record<string, unknown>;
  return rest;
}

const END_OF_TEXT = 11_258;
const LONG_PROMPT = "a b c d e f g h ".repeat(1100);

/** Recorded requests name things of Qwen's vocabulary or stand for long texts. */
function adapted(request: RawRequest): RawRequest {
  const text = JSON.stringify(request)
    .replaceAll("151645", String(END_OF_TEXT))
    .replaceAll(/"\(the 16 characters [^"]*times\)"/g, JSON.stringify(LONG_PROMPT));
  return JSON.parse(text) as RawRequest;
}

/** Compares an answer with the recorded one: exactly where it is an error, in shape and facts else. */
function compare(name: string, got: RawResponse, recorded: Case["response"]): void {
  expect([name, got.status]).toEqual([name, recorded.status]);
  expect([name, ...headerNames(got.headers)]).toEqual([name, ...headerNames(recorded.headers)]);
  if (recorded.chunk_sizes !== undefined) {
    expect([name, ...eventShapes(got.body)]).toEqual([name, ...eventShapes(recorded.body)]);
    expect(got.chunkSizes).toEqual(
      eventsOf(got.body).map((event) => Buffer.byteLength(`data: ${event}\n\n`)),
    );
    return;
  }
  const ours = withoutMetrics(parsed(got.body));
  const theirs = withoutMetrics(parsed(recorded.body));
  if (recorded.status >= 400) expect([name, ours]).toEqual([name, theirs]);
  expect([name, shape(ours)]).toEqual([name, shape(theirs)]);
  // The recorded model never got out of the white space before its JSON.
  if (name !== "chat-json-schema") expect([name, facts(ours)]).toEqual([name, facts(theirs)]);
}

/** Not spoken by the mock: other dialects, batch, weights; or only meaningful with Qwen's vocabulary. */
const NOT_SPOKEN =
  /^(messages|responses|count-tokens|chat-batch|render-(messages|responses)|get-get_world_size|get-weight_info|abort-requests-dev)/;
const OTHER_VOCABULARY = ["chat-stop-string", "chat-stream-stop-string"];
/** vLLM lists every member of a union of message types that did not match. */
const UNION_ERRORS = ["err-content-null-user"];

describe("default flags", () => {
  let engine: MockEngine;
  beforeAll(async () => {
    engine = await startMockEngine({
      servedModelNames: ["tiny-qwen3"],
      maxModelLen: 8192,
      profile: "zero",
      toolCallParser: null,
      vocabSize: 151_936,
      kvEvents: {
        enable_kv_cache_events: true,
        publisher: "zmq",
        endpoint: "tcp://*:0",
        replay_endpoint: "tcp://*:0",
        topic: "kv-events",
      },
    });
  });
  afterAll(() => engine.close());

  const all = cases("http/default-flags.jsonl").filter(
    ({ case: name }) =>
      !NOT_SPOKEN.test(name) && !OTHER_VOCABULARY.includes(name) && !UNION_ERRORS.includes(name),
  );

  it("covers the recording", () => {
    expect(all.length).toBeGreaterThan(80);
  });

  it.each(all.map((one) => [one.case, one] as const))("%s", async (name, { request, response }) => {
    compare(name, await send(engine.url, adapted(request)), response);
  });
});

describe("tool parser on", () => {
  let engine: MockEngine;
  beforeAll(async () => {
    engine = await startMockEngine({ servedModelNames: ["tiny-qwen3"], maxModelLen: 8192, profile: "zero" });
  });
  afterAll(() => engine.close());

  // Where the recorded model ran into its limit inside a call, the mock finishes the call.
  const all = cases("http/forced-output.jsonl").filter(
    ({ case: name }) =>
      !/^messages/.test(name) && !["tool-named-stream-1", "tool-required-finished-stream"].includes(name),
  );

  it.each(all.map((one) => [one.case, one] as const))("%s", async (name, { request, response }) => {
    const got = await send(engine.url, adapted(request));
    compare(name, got, response);
    if (response.chunk_sizes === undefined) return;
    expect(saidIn(got.body)).toEqual(
      name.startsWith("tool-named") || name.startsWith("per-request")
        ? expect.anything()
        : saidIn(response.body),
    );
  });

  it("a required call streams as a named one does and ends with tool_calls", async () => {
    const recorded = cases("http/forced-output.jsonl").find(
      (one) => one.case === "tool-required-finished-stream",
    )!;
    const got = await send(engine.url, recorded.request);
    expect(JSON.parse(saidIn(got.body).arguments)).toEqual({ port: "Oban", hour: "04" });
    expect(got.body).toContain('"finish_reason":"tool_calls"');
  });
});

/** All text and all tool arguments of a stream, joined. */
function saidIn(body: string): { text: string; arguments: string } {
  const said = { text: "", arguments: "" };
  for (const event of eventsOf(body)) {
    if (event === "[DONE]") continue;
    const { choices } = JSON.parse(event) as {
      choices: {
        text?: string;
        delta?: { content?: string | null; tool_calls?: { function: { arguments?: string } }[] };
      }[];
    };
    said.text += choices[0]?.text ?? choices[0]?.delta?.content ?? "";
    said.arguments += choices[0]?.delta?.tool_calls?.[0]?.function.arguments ?? "";
  }
  return said;
}

describe("more flags", () => {
  let engine: MockEngine;
  beforeAll(async () => {
    engine = await startMockEngine({
      servedModelNames: ["tiny-qwen3"],
      maxModelLen: 8192,
      profile: "zero",
      apiKeys: ["k-0123456789"],
      schedulingPolicy: "priority",
      enableRequestIdHeaders: true,
      enableForceIncludeUsage: true,
    });
  });
  afterAll(() => engine.close());

  const wanted =
    /^(auth-missing|auth-wrong|auth-health-open|auth-generate|auth-metrics-open-tokenize|models)$/;
  it.each(
    cases("http/more-flags.jsonl")
      .filter((one) => wanted.test(one.case))
      .map((one) => [one.case, one] as const),
  )("%s", async (name, { request, response }) => {
    const got = await send(engine.url, request);
    expect([name, got.status]).toEqual([name, response.status]);
    expect(shape(parsed(got.body))).toEqual(shape(parsed(response.body)));
    expect(got.headers.map(([header]) => header)).toContain("x-request-id");
  });

  it("the id that a client sends names the answer, in the body and in the header", async () => {
    const { request } = cases("http/more-flags.jsonl").find((one) => one.case === "request-id-header")!;
    const got = await send(engine.url, request);
    expect((JSON.parse(got.body) as { id: string }).id).toBe("chatcmpl-trace-77");
    expect(got.headers).toContainEqual(["x-request-id", "trace-77"]);
  });

  it("usage comes in every stream where the server forces it", async () => {
    const { request } = cases("http/more-flags.jsonl").find((one) => one.case === "stream-force-usage")!;
    const events = eventsOf((await send(engine.url, request)).body);
    expect(events.slice(0, -1).every((event) => "usage" in (JSON.parse(event) as object))).toBe(true);
  });
});

describe("prefill and decode legs", () => {
  it("answers with the recorded parameters, and takes them", async () => {
    interface Leg {
      readonly request: RawRequest;
      readonly response: Case["response"];
    }
    const steps = readFileSync(new URL("pd-nixl/pull.jsonl", FIXTURES), "utf8").trimEnd().split("\n");
    const { prefill, decode } = JSON.parse(steps[0]!) as { prefill: Leg; decode: Leg };
    const options = {
      servedModelNames: ["tiny-qwen3"],
      maxModelLen: 8192,
      profile: "zero",
      vocabSize: 151_936,
      kvTransfer: { kv_connector: "NixlConnector" },
    } as const;
    const engines = await Promise.all([startMockEngine(options), startMockEngine(options)]);
    try {
      const [first, second] = engines;
      const prefilled = await send(first!.url, prefill.request);
      compare("prefill", prefilled, prefill.response);
      const body = JSON.parse(prefilled.body) as {
        kv_transfer_params: { remote_num_tokens: number; remote_block_ids: number[][] };
      };
      expect(body.kv_transfer_params.remote_num_tokens).toBe(70);
      expect(body.kv_transfer_params.remote_block_ids[0]).toHaveLength(5);
      const request = {
        ...decode.request,
        body: { ...(decode.request.body as object), kv_transfer_params: body.kv_transfer_params },
      };
      compare("decode", await send(second!.url, request), decode.response);
      expect(second!.blockTable().map(({ hash }) => hash)).toEqual(
        first!.blockTable().map(({ hash }) => hash),
      );
      expect(second!.stats()[0]).toMatchObject({ prefixHits: 0, deferred: 0, running: 0 });
    } finally {
      await Promise.all(engines.map((engine) => engine.close()));
    }
  });
});

describe("metrics", () => {
  interface Family {
    readonly type: string;
    readonly labels: string[];
    readonly bounds: string[];
  }

  /** Family → type, label names and bucket bounds, in order of appearance. */
  function families(text: string): Map<string, Family> {
    const found = new Map<string, Family>();
    for (const line of text.split("\n")) {
      const type = /^# TYPE (\S+) (\S+)/.exec(line);
      if (type !== null) found.set(type[1]!, { type: type[2]!, labels: [], bounds: [] });
      const sample = /^(\w[\w:]*?)(_bucket|_count|_sum)?\{(.*)\} /.exec(line);
      if (sample === null) continue;
      const family = found.get(sample[1]!) ?? found.get(`${sample[1]}${sample[2] ?? ""}`);
      if (family === undefined) continue;
      const labels = [...sample[3]!.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)];
      const le = labels.find(([, label]) => label === "le");
      if (le !== undefined && !family.bounds.includes(le[2]!)) family.bounds.push(le[2]!);
      for (const [, label] of labels) if (!family.labels.includes(label!)) family.labels.push(label!);
    }
    return new Map([...found].filter(([name]) => name.startsWith("vllm:")));
  }

  it("has vLLM's families in vLLM's order, with its types, labels and buckets", async () => {
    const engine = await startMockEngine({ profile: "zero", servedModelNames: ["tiny-qwen3"] });
    try {
      const got = await send(engine.url, { method: "GET", path: "/metrics" });
      const ours = families(got.body);
      const theirs = families(readFileSync(new URL("metrics/start.txt", FIXTURES), "utf8"));
      expect([...ours.keys()]).toEqual([...theirs.keys()]);
      for (const [name, family] of theirs) expect([name, ours.get(name)]).toEqual([name, family]);
    } finally {
      await engine.close();
    }
  });

  it("counts what happened", async () => {
    const engine = await startMockEngine({ profile: "zero", dataParallelSize: 2, numGpuBlocks: 1024 });
    try {
      const prompt = Array.from({ length: 100 }, (_, i) => i);
      const request = {
        method: "POST",
        path: "/v1/completions",
        headers: { "x-data-parallel-rank": "1" },
        body: { prompt, max_tokens: 5, ignore_eos: true },
      };
      for (let i = 0; i < 3; i++) await send(engine.url, request);
      const { body } = await send(engine.url, { method: "GET", path: "/metrics" });
      const value = (sample: string): string | undefined =>
        body
          .split("\n")
          .find((line) => line.startsWith(`${sample} `))
          ?.split(" ")[1];
      const labels = 'engine="1",model_name="mock"';
      expect(value(`vllm:prefix_cache_queries_total{${labels}}`)).toBe("300.0");
      expect(value(`vllm:prefix_cache_hits_total{${labels}}`)).toBe("192.0");
      expect(value(`vllm:generation_tokens_total{${labels}}`)).toBe("15.0");
      expect(value(`vllm:request_success_total{engine="1",finished_reason="length",model_name="mock"}`)).toBe(
        "3.0",
      );
      expect(value(`vllm:time_to_first_token_seconds_count{${labels}}`)).toBe("3.0");
      expect(value(`vllm:inter_token_latency_seconds_count{${labels}}`)).toBe("12.0");
      expect(value(`vllm:prefix_cache_queries_total{engine="0",model_name="mock"}`)).toBe("0.0");
      expect(body).toContain('num_gpu_blocks="2048",num_gpu_blocks_override="1024"');
    } finally {
      await engine.close();
    }
  });
});
