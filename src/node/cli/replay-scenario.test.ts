/** `kedge replay-scenario` finds what differs, and says plainly what it cannot read. */

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, it } from "vitest";
import { KedgeError } from "../../errors/index.ts";
import { replayFile } from "./replay-scenario.ts";

const directory = mkdtempSync(join(tmpdir(), "kedge-replay-"));
afterAll(() => rmSync(directory, { recursive: true }));

function file(...lines: unknown[]): string {
  const path = join(directory, `${Math.abs(JSON.stringify(lines).length)}-${lines.length}.jsonl`);
  writeFileSync(
    path,
    lines.map((line) => (typeof line === "string" ? line : JSON.stringify(line))).join("\n"),
  );
  return path;
}

interface RecordedStep {
  readonly op: string;
  readonly candidates: number[][];
  readonly chosen: Record<string, number>;
}
interface Recorded {
  steps: RecordedStep[];
  readonly both: { readonly lookups: Record<string, number>[]; readonly blocks: Record<string, number> };
}

/** The first session of a recorded file, to be spoilt. */
function firstOf(name: string): Recorded {
  const url = new URL(`../../../test/fixtures/dynamo/${name}`, import.meta.url);
  return JSON.parse(readFileSync(fileURLToPath(url), "utf8").split("\n", 1)[0]!);
}

describe("differences", () => {
  it.each([
    ["a cost", 2.812, 2.9, "cost"],
    ["a load", 29, 30, "potential prefill tokens"],
  ])("%s that was recorded otherwise is reported with its place", async (_name, from, to, what) => {
    const scenario = firstOf("scenarios-0.9.jsonl");
    const step = scenario.steps.findIndex((one) => one.op === "route");
    const row = scenario.steps[step]!.candidates[0]!;
    row[row.lastIndexOf(from)] = to;
    const reported: string[] = [];
    const tally = await replayFile(file(scenario), (difference) => reported.push(difference.what));
    expect(reported).toEqual([`step ${step} r0 worker 0:0 ${what}`]);
    expect(tally.differences[0]).toMatchObject({
      line: 1,
      session: "scenario 0 (default)",
      expected: `${to}`,
    });
  });

  it("a choice that was not the cheapest is reported", async () => {
    const scenario = firstOf("scenarios-0.9.jsonl");
    const step = scenario.steps.find((one) => one.op === "route")!;
    Object.assign(step.chosen, { worker: 0, cost: 2.812, overlap_blocks: 0, tree_size: 0 });
    scenario.steps = scenario.steps.slice(0, scenario.steps.indexOf(step) + 1);
    const tally = await replayFile(file(scenario));
    expect(tally.differences.map((one) => one.what)).toEqual([expect.stringContaining("r0 choice")]);
  });

  it("a lookup and a block count that were recorded otherwise are reported", async () => {
    const history = firstOf("radix-histories.jsonl");
    history.both.lookups[0]!["0:0"] = 99;
    history.both.blocks["1:0"] = 99;
    const tally = await replayFile(file(history));
    expect(tally.differences.map((one) => one.what)).toEqual(["lookup 0, rank 0:0", "blocks of rank 1:0"]);
  });
});

describe("files that cannot be read", () => {
  const scenario = firstOf("scenarios-0.9.jsonl");
  const withStep = (step: object) => ({ ...scenario, steps: [step] });
  const route = { op: "route", request: "r", prompt: 0, tokens: 1, candidates: [] };

  it.each([
    ["no JSON", ["{}".slice(1)], "line 1: not JSON"],
    ["neither format", [{ version: 1 }], "line 1: neither"],
    [
      "a fault in the second line",
      [scenario, { id: 1, kind: "engine", events: [["z"]] }],
      "line 2: events.0",
    ],
    ["no session", [""], "holds no session"],
    ["an unsafe number", ['{"id":1,"kind":"x","events":[["q",[18446744073709551615]]]}'], "line 1: events.0"],
    ["a prompt that is not there", [withStep({ ...route, prompt: 99 })], "steps.0: no such prompt"],
    [
      "more tokens than the prompt has",
      [withStep({ ...route, tokens: 1e6 })],
      "steps.0: the prompt is shorter",
    ],
    [
      "a worker that is not there",
      [withStep({ op: "clear", worker: 99, dp_rank: 0 })],
      "steps.0: no such worker",
    ],
  ])("%s", async (_name, lines, message) => {
    const thrown = await replayFile(file(...lines)).catch((error: unknown) => error);
    expect(thrown).toBeInstanceOf(KedgeError);
    expect(thrown).toMatchObject({ code: "invalid_request", message: expect.stringContaining(message) });
  });

  it("no such file", async () => {
    const missing = replayFile(join(directory, "missing.jsonl"));
    await expect(missing).rejects.toMatchObject({ code: "invalid_request", message: /ENOENT/ });
  });
});
