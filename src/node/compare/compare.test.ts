/** Client, load process, report and table over real HTTP against a scripted gateway. */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type ChatClient, chatClient } from "./client.ts";
import { type ComparePlan, compare, type Fleet } from "./compare.ts";
import { probe } from "./probe.ts";
import { progress, SILENT } from "./progress.ts";
import { runJob } from "./runner.ts";
import { grid, renderReport } from "./table.ts";

type Script = (request: IncomingMessage, response: ServerResponse, body: string) => void;

const data = (value: unknown): string =>
  `data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`;
const delta = (content: string): string => data({ choices: [{ index: 0, delta: { content } }] });
const words = (body: string): number => body.split(" ").length;

/** A gateway that answers as Kedge does, at once; `kv` has most of the prompt cached. */
const answer: Script = (request, response, body) => {
  const asked = JSON.parse(body) as { stream?: boolean; model: string };
  const usage = {
    prompt_tokens: 2 * words(body),
    completion_tokens: 3,
    prompt_tokens_details: {
      cached_tokens: request.headers["x-kedge-router-mode"] === "kv" ? words(body) : 0,
    },
  };
  const headers = {
    "x-kedge-worker": `w${body.length % 2}`,
    "x-kedge-rung": "exact",
    "x-kedge-overlap-tokens": String(usage.prompt_tokens_details.cached_tokens),
  };
  if (asked.stream !== true) {
    response.writeHead(200, headers).end(JSON.stringify({ model: asked.model, usage }));
    return;
  }
  response.writeHead(200, { ...headers, "content-type": "text/event-stream" });
  response.write(delta("one "));
  setImmediate(() => response.end(delta("two three") + data({ choices: [], usage }) + data("[DONE]")));
};

let server: Server;
let url: string;
let script: Script = answer;

beforeAll(async () => {
  server = createServer((request, response) => {
    if (request.url === "/v1/models") {
      response.end(JSON.stringify({ data: [{ id: "scripted" }] }));
      return;
    }
    let body = "";
    request.on("data", (chunk: Buffer) => {
      body += chunk.toString();
    });
    request.on("end", () => script(request, response, body));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

async function withClient<T>(use: (client: ChatClient) => Promise<T>, timeoutMs = 5000): Promise<T> {
  const client = chatClient({ url, model: "scripted", headers: {}, timeoutMs, now: () => performance.now() });
  try {
    return await use(client);
  } finally {
    script = answer;
    await client.close();
  }
}

const REQUEST = { messages: [{ role: "user", content: "a b c" }], max_tokens: 3 };
const NEVER = new AbortController().signal;

describe("client", () => {
  test("reads answer, usage and routing headers", async () => {
    const exchange = await withClient((client) => client.chat(REQUEST, NEVER));
    expect(exchange).toMatchObject({
      text: "one two three",
      completionTokens: 3,
      cachedTokens: 0,
      predictedTokens: 0,
      rung: "exact",
      error: null,
    });
    expect(exchange.worker).toMatch(/^w[01]$/);
    expect(exchange.firstTextMs! >= exchange.startMs).toBe(true);
    expect(exchange.endMs >= exchange.lastTextMs!).toBe(true);
  });

  test.each<[string, Script, string]>([
    [
      "a refusal by its code",
      (_, response) =>
        response.writeHead(503).end('{"error":{"message":"m","type":"t","code":"workers_busy"}}'),
      "http_503: workers_busy",
    ],
    [
      "a refusal without words by its status",
      (_, response) => response.writeHead(502).end("<html>"),
      "http_502",
    ],
    ["a stream without an end", (_, response) => response.end(delta("one")), "cut_stream"],
    ["an end without usage", (_, response) => response.end(delta("one") + data("[DONE]")), "no_usage"],
    [
      "an error within the stream",
      (_, response) => response.end(delta("one") + data({ error: { code: "stream_stalled" } })),
      "stream_stalled",
    ],
    ["a broken connection", (request) => request.socket.destroy(), "UND_ERR_SOCKET"],
  ])("names %s", async (_, failing, error) => {
    script = failing;
    expect((await withClient((client) => client.chat(REQUEST, NEVER))).error).toBe(error);
  });

  test("gives up on silence", async () => {
    script = () => {};
    expect((await withClient((client) => client.chat(REQUEST, NEVER), 200)).error).toBe("timeout");
  });

  test("aborts a running stream", async () => {
    const stop = new AbortController();
    const closed = new Promise<void>((resolve) => {
      script = (_, response) => {
        response.once("close", resolve);
        response.write(delta("one"));
        setImmediate(() => stop.abort());
      };
    });
    expect((await withClient((client) => client.chat(REQUEST, stop.signal))).error).toBe("aborted");
    await closed;
  });
});

test("the probe finds model and tokens per word", async () => {
  const found = await probe({ url, headers: {}, model: null, timeoutMs: 5000 });
  expect(found).toEqual({ model: "scripted", tokensPerWord: 2, explains: true });
  await expect(
    probe({ url: "http://127.0.0.1:1", headers: {}, model: null, timeoutMs: 500 }),
  ).rejects.toThrow("does not answer");
});

function plan(over: Partial<ComparePlan> = {}): ComparePlan {
  return {
    modes: ["round-robin", "kv"],
    seeds: [1, 2],
    loads: [2],
    loadUnit: "concurrency",
    workload: {
      kind: "shared-prompts",
      parameters: {
        groups: 3,
        usersPerGroup: 2,
        turns: 2,
        systemTokens: 50,
        questionTokens: 10,
        outputTokens: 3,
        spread: 0.3,
      },
    },
    requests: 12,
    warmUpRequests: 2,
    maxSeconds: 20,
    requestTimeoutMs: 5000,
    speed: 1,
    sloTtftMs: 2000,
    setup: { note: "scripted" },
    ...over,
  };
}

interface Opened {
  readonly opened: Fleet[];
  closed: number;
}

async function runPlan(over: Partial<ComparePlan>, stop = new AbortController()) {
  const fleets: Opened = { opened: [], closed: 0 };
  const report = await compare(plan(over), {
    openFleet: async (run) => {
      const fleet: Fleet = {
        url,
        headers: { "x-kedge-router-mode": run.mode },
        salt: `${run.mode}-${run.seed}`,
        hostsGateway: true,
        enginePids: [process.pid],
        close: async () => {
          fleets.closed++;
        },
      };
      fleets.opened.push(fleet);
      return fleet;
    },
    probe: (fleet) => probe({ url: fleet.url, headers: fleet.headers, model: null, timeoutMs: 5000 }),
    runJob,
    progress: SILENT,
    signal: stop.signal,
    isoNow: () => "2026-01-01T00:00:00.000Z",
  });
  return { report, fleets };
}

describe("comparison", () => {
  test("runs every mode and seed in a load process and reports as documented", async () => {
    const { report, fleets } = await runPlan({});
    expect(fleets.closed).toBe(4);
    expect(report.runs.map(({ mode, load, seed }) => [mode, load, seed])).toEqual([
      ["round-robin", 2, 1],
      ["kv", 2, 1],
      ["round-robin", 2, 2],
      ["kv", 2, 2],
    ]);
    for (const { mode, figures, machine } of report.runs) {
      expect(figures).toMatchObject({ requests: 12, errors: 0, endedBy: "requests", completionTokens: 36 });
      expect(figures.cache.reported).toBe(mode === "kv" ? 0.5 : 0);
      expect(Object.values(figures.perWorker).reduce((a, b) => a + b)).toBe(12);
      expect(figures.perRung).toEqual({ exact: 12 });
      expect(machine.client.processCores).toBeGreaterThan(0);
      expect(machine.gateway).not.toBeNull();
      if (process.platform === "linux") expect(machine.engineCores).not.toBeNull();
    }
    expect(report).toMatchObject({
      schema: "kedge.compare/1",
      finishedAt: "2026-01-01T00:00:00.000Z",
      complete: true,
      loadUnit: "concurrency",
      speed: 1,
      sloTtftMs: 2000,
      baseline: "round-robin",
      setup: { note: "scripted", model: "scripted", tokensPerWord: 2 },
    });
    expect(report.curve).toHaveLength(2);
    expect(report.gains.map((gain) => gain.mode)).toEqual(["kv"]);
    expect(report.knees.map((knee) => knee.load)).toEqual([null, null]);
    expect(JSON.parse(JSON.stringify(report))).toEqual(report);
    const text = renderReport(report);
    expect(text).toContain("medians of 2 seeds");
    expect(text).toContain("against round-robin");
    expect(text).toMatch(/kv, seed 2: w0 \d+, w1 \d+|kv, seed 2: w[01] 12/);
  });

  test("stopped midway, it reports what it has and closes its fleet", async () => {
    const stop = new AbortController();
    let served = 0;
    script = (request, response, body) => {
      if (++served === 30) stop.abort();
      answer(request, response, body);
    };
    const { report, fleets } = await runPlan({ requests: 100_000, seeds: [1] }, stop);
    script = answer;
    expect(report.complete).toBe(false);
    expect(report.runs).toHaveLength(1);
    expect(report.runs[0]?.figures.endedBy).toBe("stopped");
    expect(report.warnings[0]).toContain("Interrupted");
    expect(fleets.closed).toBe(fleets.opened.length);
  });

  test("replays a file's arrivals", async () => {
    const line = (atMs: number): string => JSON.stringify({ ...REQUEST, at_ms: atMs });
    const text = [0, 5, 10].map(line).join("\n");
    const { report } = await runPlan({
      workload: { kind: "file", text },
      loads: [0],
      loadUnit: "file",
      seeds: [1],
      warmUpRequests: 0,
    });
    expect(report.runs.map((run) => run.figures.requests)).toEqual([3, 3]);
  });

  test("a failing fleet is closed and its error passed on", async () => {
    script = (_, response) => response.writeHead(500).end("no");
    await expect(runPlan({})).rejects.toThrow("HTTP 500");
    script = answer;
  });
});

describe("text", () => {
  test("columns line up", () => {
    expect(
      grid([
        ["a", "mode", "1"],
        ["bb", "x", "22"],
      ]),
    ).toBe("a   mode   1\nbb  x     22");
  });

  test("nothing measured is said so", async () => {
    const stop = new AbortController();
    stop.abort();
    const { report } = await runPlan({}, stop);
    expect(renderReport(report)).toBe("Nothing was measured.\n");
  });

  test("progress rewrites a terminal's line and leaves one line per run elsewhere", () => {
    for (const isTTY of [true, false]) {
      let written = "";
      const view = progress({ write: (text) => (written += text), isTTY, columns: 40 }, () => 0);
      view.runStarts(1, 2, "kv");
      view.update({ phase: "measure", done: 1, total: 5, inFlight: 2, errors: 1 });
      view.runEnds("done");
      view.close();
      expect(written.includes("\r")).toBe(isTTY);
      expect(written.split("\n").filter((line) => line.includes("[1/2] kv: done"))).toHaveLength(1);
      expect(written.includes("measure 1/5")).toBe(isTTY);
    }
  });
});
