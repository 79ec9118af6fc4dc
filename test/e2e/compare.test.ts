/** `kedge compare` as a user runs it: fresh fleets and a live one, prediction mode, Ctrl-C. Real processes, HTTP and ZMQ. */

import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test, vi } from "vitest";
import { defineConfig } from "../../src/config/index.ts";
import { startAllInOne } from "../../src/node/all-in-one.ts";
import type { CompareReport } from "../../src/node/compare/report.ts";

const MAIN = fileURLToPath(new URL("../../src/node/cli/main.ts", import.meta.url));
const SMALL =
  "--groups 8 --users 2 --turns 3 --system-tokens 600 --question-tokens 100 --output-tokens 20 --concurrency 3 --requests 48 --warmup 6";
const ENGINES = "--workers 2 --profile zero --speed 1";

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function compare(args: string): { child: ChildProcess; ended: Promise<Ended> } {
  const child = spawn(
    process.execPath,
    ["--disable-warning=ExperimentalWarning", MAIN, "compare", ...args.split(" ")],
    { stdio: ["ignore", "pipe", "pipe"] },
  );
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (text: Buffer) => {
    stdout += text.toString();
  });
  child.stderr.on("data", (text: Buffer) => {
    stderr += text.toString();
  });
  const ended = new Promise<Ended>((resolve) => {
    child.on("close", (code) => resolve({ code, stdout, stderr }));
  });
  return { child, ended };
}

async function report(args: string): Promise<CompareReport> {
  const { code, stdout, stderr } = await compare(`${args} --json`).ended;
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout) as CompareReport;
}

test("on fresh fleets kv finds what is cached, with events exactly and without them by prediction", async () => {
  const found = await report(`${SMALL} ${ENGINES} --modes round-robin,kv,kv:no-events`);
  expect(found.runs.map((run) => run.mode)).toEqual(["round-robin", "kv", "kv:no-events"]);
  for (const { figures } of found.runs) {
    expect(figures).toMatchObject({ requests: 48, errors: 0 });
    expect(Object.keys(figures.perWorker)).toHaveLength(2);
  }
  const [blind, exact, predicted] = found.runs.map((run) => run.figures);
  expect(exact?.cache.reported ?? 0).toBeGreaterThan(blind?.cache.reported ?? 1);
  // The bytes scheme may fall short by a chunk and a block, which is much of so short a prompt.
  expect(exact?.cache.exact ?? 0).toBeGreaterThan(0.9);
  expect(exact?.cache.bias ?? 1).toBeLessThan(0.01);
  expect(exact?.perRung).toEqual({ exact: 48 });
  expect(predicted?.perRung).toEqual({ predicted: 48 });
  expect(predicted?.cache.reported ?? 0).toBeGreaterThan(blind?.cache.reported ?? 1);
});

test("on a live fleet modes are chosen per request and caches kept apart", async () => {
  const fleet = await startAllInOne({
    config: defineConfig({ port: 0, explain: true }),
    mock: { workers: 2, profile: "zero", speed: 1, blocks: null, streamInterval: 1 },
  });
  try {
    const found = await report(`${SMALL} --url ${fleet.url} --modes kv,round-robin`);
    expect(found.runs).toHaveLength(2);
    for (const { mode, figures } of found.runs) {
      expect(figures.errors).toBe(0);
      const counts = Object.values(figures.perWorker);
      if (mode === "round-robin") expect(counts).toEqual([24, 24]);
      // Had one run's cache served the next, nearly everything would be cached.
      expect(figures.cache.reported ?? 1).toBeLessThan(0.95);
    }
  } finally {
    await fleet.close();
  }
});

test.runIf(process.platform === "linux")(
  "Ctrl-C prints what there is and leaves no process behind",
  async () => {
    const { child, ended } = compare(`${SMALL} ${ENGINES} --modes kv --requests 1000000 --json`);
    // Two engines and the process that makes the load.
    const started = await vi.waitUntil(() => childrenOf(child).length === 3 && childrenOf(child), WAIT);
    child.kill("SIGINT");
    const { code, stdout } = await ended;
    expect(code).toBe(130);
    expect(JSON.parse(stdout)).toMatchObject({ schema: "kedge.compare/1", complete: false });
    expect(started.filter(isAlive)).toEqual([]);
  },
);

const WAIT = { timeout: 15_000, interval: 20 };

function childrenOf({ pid }: ChildProcess): number[] {
  const text = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8");
  return text.split(" ").filter(Boolean).map(Number);
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

test.each([
  ["--modes kv,fastest", '"fastest" is not one of kv'],
  ["--url http://127.0.0.1:9 --modes kv:no-events", "needs a fleet of its own"],
  ["--concurrency 0", "a whole number from 1"],
  ["--url nowhere", "an http(s) URL"],
])("%s is refused before anything starts", async (args, message) => {
  const { code, stderr } = await compare(args).ended;
  expect(code).not.toBe(0);
  expect(stderr).toContain(message);
});
