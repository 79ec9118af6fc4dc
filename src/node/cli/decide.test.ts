/** `kedge decide` as a command: the arithmetic that others check, and what it says of lines it cannot read. */

import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { answerLine } from "./decide.ts";

const MAIN = fileURLToPath(new URL("./main.ts", import.meta.url));

interface Run {
  readonly answers: readonly Record<string, unknown>[];
  readonly exitCode: number | null;
  readonly stderr: string;
}

/** The real command with these lines on its stdin. */
async function kedgeDecide(lines: readonly string[], ...flags: string[]): Promise<Run> {
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", MAIN, "decide", ...flags]);
  const output: Record<"stdout" | "stderr", string> = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const) {
    child[name].setEncoding("utf8").on("data", (text: string) => {
      output[name] += text;
    });
  }
  child.stdin.end(`${lines.join("\n")}\n`);
  const exitCode = await new Promise<number | null>((resolve) => child.once("close", resolve));
  const answers = output.stdout
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line));
  return { answers, exitCode, stderr: output.stderr };
}

interface Ranked {
  readonly worker: string;
  readonly prefill_blocks: number;
  readonly decode_blocks: number;
  readonly cost: number;
  readonly weight: number;
}

const ranking = (answer: Record<string, unknown> | undefined): readonly Ranked[] =>
  answer?.ranking as readonly Ranked[];

const logOf = (answer: Record<string, unknown> | undefined): readonly string[] =>
  answer?.log as readonly string[];

/** One worker's parts: weight, prefill, decode, cost. */
const parts = (one: Ranked | undefined) => [one?.weight, one?.prefill_blocks, one?.decode_blocks, one?.cost];

const answer = (line: unknown) =>
  answerLine(1, typeof line === "string" ? line : JSON.stringify(line), () => 0.5);

describe("the walk-through", () => {
  const weighted = { block_size: 16, overlap_score_weight: 1.5 };
  const questions = [
    {
      request: { prompt_blocks: 10 },
      workers: [
        { worker: "first", overlap_blocks: 2, decode_blocks: 10 },
        { worker: "second", overlap_blocks: 5, decode_blocks: 5 },
        { worker: "third", overlap_blocks: 8, decode_blocks: 9 },
      ],
      config: { overlap_score_weight: 1 },
    },
    { request: { prompt_tokens: 34 }, workers: [{ worker: "a" }], config: weighted },
    {
      request: { prompt_tokens: 36 },
      workers: [{ worker: "cold" }, { worker: "warm", overlap_blocks: 1 }],
      config: weighted,
    },
    { request: { prompt_tokens: 44 }, workers: [{ worker: "a" }], config: { ...weighted, role: "decode" } },
    {
      request: { prompt_tokens: 40 },
      workers: [{ worker: "warm", overlap_blocks: 1, active_decode_blocks: 7 }, { worker: "cold" }],
      config: { ...weighted, role: "prefill" },
    },
    {
      request: { prompt_tokens: 36, overrides: { overlap_score_weight: 1 } },
      workers: [{ worker: "a" }],
      config: weighted,
    },
  ];

  it("comes out to the digit", async () => {
    const { answers, exitCode, stderr } = await kedgeDecide(questions.map((one) => JSON.stringify(one)));
    expect({ exitCode, stderr, lines: answers.map((one) => one.line) }).toEqual({
      exitCode: 0,
      stderr: "",
      lines: [1, 2, 3, 4, 5, 6],
    });
    const [table, half, warm, decode, prefill, override] = answers;
    expect(ranking(table).map((one) => [one.worker, one.cost])).toEqual([
      ["second", 10],
      ["third", 11],
      ["first", 18],
    ]);
    expect(parts(ranking(half)[0])).toEqual([1.5, 2.125, 2, 5.1875]);
    expect(half?.log).toEqual([
      "Formula for worker_id=a dp_rank=0 with 0 cached blocks: 5.188 = 1.5 * 2.125 + 2.000",
      "Selected worker: worker_id=a dp_rank=0, logit: 5.188, cached blocks: 0, tree size: 0",
    ]);
    expect(ranking(warm).map(parts)).toEqual([
      [1.5, 1.25, 2, 3.875],
      [1.5, 2.25, 2, 5.375],
    ]);
    expect(logOf(warm)[0]).toBe(
      "Formula for worker_id=warm dp_rank=0 with 1 cached blocks: 3.875 = 1.5 * 1.250 + 2.000",
    );
    expect(parts(ranking(decode)[0])).toEqual([0, 2.75, 2, 2]);
    expect(logOf(decode)[0]).toContain(": 2.000 = 0.0 * 2.750 + 2.000");
    expect(ranking(prefill).map(parts)).toEqual([
      [1.5, 1.5, 0, 2.25],
      [1.5, 2.5, 0, 3.75],
    ]);
    expect(ranking(override)[0]?.cost).toBe(4.25);
  });

  it("comes out of whole terms too, without the prompt", () => {
    const given = (prefill_blocks: number, decode_blocks: number, role: string) =>
      answer({
        request: {},
        workers: [{ worker: "a", prefill_blocks, decode_blocks }],
        config: { ...weighted, role },
      });
    const cost = (...terms: Parameters<typeof given>) => {
      const one = given(...terms);
      return "ranking" in one ? one.ranking[0]?.cost : null;
    };
    expect(cost(2.125, 2, "aggregated")).toBe(5.1875);
    expect(cost(2.25, 2, "aggregated")).toBe(5.375);
    expect(cost(1.25, 2, "aggregated")).toBe(3.875);
    expect(cost(2.75, 2, "decode")).toBe(2);
    expect(cost(1.5, 2, "prefill")).toBe(2.25);
    expect(cost(2.5, 2, "prefill")).toBe(3.75);
  });
});

describe("lines that cannot be read", () => {
  it("are answered in their place, the rest goes on, and the exit code says so", async () => {
    const good = JSON.stringify({
      request: { isl: 16 },
      workers: [{ worker_id: 7, dp_rank: 1, cached_blocks: 1 }],
    });
    const { answers, exitCode } = await kedgeDecide([good, "", "{", good]);
    expect(exitCode).toBe(1);
    expect(answers.map((one) => one.line)).toEqual([1, 3, 4]);
    expect(answers[1]).toMatchObject({ error: { code: "invalid_request", message: /^line 3: not JSON/ } });
    expect(answers[2]).toMatchObject({ chosen: { worker: "7", rank: 1 } });
  });

  const workers = [{ worker: "a" }];
  it("takes the short names of settings as well", () => {
    const workers = [{ worker: "a" }, { worker: "b", overlap_blocks: 1 }];
    const ask = (config: object): unknown =>
      answerLine(1, JSON.stringify({ request: { isl: 64 }, workers, config }), () => 0);
    expect(ask({ mode: "kv", weight: 2, temperature: 0 })).toEqual(
      ask({ router_mode: "kv", overlap_score_weight: 2, router_temperature: 0 }),
    );
  });

  it.each([
    [{ request: {}, workers }, "request: give prompt_tokens or prompt_blocks"],
    [{ request: { isl: 1, prompt_blocks: 1 }, workers }, "request: give either"],
    [{ request: { isl: -1 }, workers }, "request.prompt_tokens"],
    [{ request: { isl: 1 }, workers: [{ worker: "a", overlap: 3 }] }, "workers.0"],
    [{ request: { isl: 1 }, workers: [{ rank: 1 }] }, "workers.0.worker"],
    [
      { request: { isl: 1 }, workers: [{ worker: "a", decode_blocks: 1, new_blocks: 1 }] },
      "workers.0: decode_blocks",
    ],
    [
      { request: { isl: 64 }, workers: [{ worker: "a", prefill_blocks: 1 }] },
      "workers.0.prefill_blocks: is less",
    ],
    [{ request: { isl: 1 }, workers, config: { router_mode: "best" } }, "config.router_mode"],
    [{ request: { isl: 1 }, workers, config: { overlap_score_weigth: 1 } }, "config"],
    [[], "expected object"],
  ])("%j names its fault", (line, fault) => {
    expect(answer(line)).toMatchObject({ error: { message: expect.stringContaining(fault) } });
  });
});

describe("answers", () => {
  it("a rejection is an answer with its reasons", () => {
    const busy = { worker: "a", total_blocks: 100, active_decode_blocks: 81 };
    expect(
      answer({ request: { isl: 16 }, workers: [busy], config: { active_decode_blocks_threshold: 0.8 } }),
    ).toMatchObject({
      chosen: null,
      ranking: [],
      rejection: { code: "workers_busy" },
      excluded: [{ worker: "a", reason: "busy" }],
    });
  });

  it("unknown load ranks behind, or as Dynamo has it", () => {
    const question = (unknown_load: string) => ({
      request: { isl: 220 },
      workers: [
        { worker: "known", active_decode_blocks: 500 },
        { worker: "unknown", load_known: false },
      ],
      config: { unknown_load },
    });
    expect(answer(question("behind"))).toMatchObject({ chosen: { worker: "known" } });
    expect(answer(question("dynamo"))).toMatchObject({
      chosen: { worker: "unknown" },
      ranking: [{ cost: 26.75 }, {}],
    });
  });

  it("whoever reads them may stop early", async () => {
    const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", MAIN, "decide"]);
    let stderr = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      stderr += text;
    });
    child.stdout.once("data", () => child.stdout.destroy());
    child.stdin.on("error", () => {});
    child.stdin.end('{"request":{"isl":16},"workers":[{"worker":"a"}]}\n'.repeat(20_000));
    const exitCode = await new Promise((resolve) => child.once("close", resolve));
    expect({ exitCode, stderr }).toEqual({ exitCode: 0, stderr: "" });
  });

  it("the same seed draws the same ties", async () => {
    const tied = JSON.stringify({
      request: { isl: 16 },
      workers: [..."abcdefgh"].map((worker) => ({ worker })),
    });
    const lines = Array.from({ length: 20 }, () => tied);
    const [first, again, other] = await Promise.all([
      kedgeDecide(lines, "--seed", "1"),
      kedgeDecide(lines, "--seed", "1"),
      kedgeDecide(lines, "--seed", "2"),
    ]);
    expect(again).toEqual(first);
    expect(other).not.toEqual(first);
  });
});
