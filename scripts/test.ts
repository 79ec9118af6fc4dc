/**
 * The whole test command: static checks, then every suite, those inside workerd last. Arguments go to vitest
 * (`npm test -- src/routing`), and then only it runs. `--long`: the long run instead, which takes tens of minutes.
 */

import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { addCounts, type Counts, countsOf, LONG, NO_COUNTS, planRuns, summary } from "./runs.ts";
import { ensureServers } from "./servers.ts";

/** Three times what all suites take on a slow machine: a run that hangs must fail and not stay. */
const HUNG_MS = 20 * 60_000;

function run(command: string, args: readonly string[], timeoutMs?: number): number {
  const { status, signal } = spawnSync(command, args, {
    stdio: "inherit",
    ...(timeoutMs !== undefined && { timeout: timeoutMs, killSignal: "SIGKILL" as const }),
  });
  if (signal === "SIGKILL") console.error(`FAIL killed, after ${(timeoutMs ?? 0) / 60_000} minutes at most`);
  return status ?? 1;
}

function check(): boolean {
  return run(process.execPath, ["--disable-warning=ExperimentalWarning", "scripts/check.ts"]) === 0;
}

/** Runs the suites and closes with one plain line of counts, for whoever reads only the end of a log. */
function suites(args: readonly string[]): boolean {
  const folder = mkdtempSync(join(tmpdir(), "kedge-test-"));
  let passed = true;
  let counts: Counts = NO_COUNTS;
  for (const [i, { config, args: given }] of planRuns(args, existsSync).entries()) {
    const file = join(folder, `results-${i}.json`);
    const reporters = ["--reporter=default", "--reporter=json", `--outputFile.json=${file}`];
    const vitest = ["node_modules/vitest/vitest.mjs", "run", "--config", config, ...reporters, ...given];
    passed = run(process.execPath, vitest, config === LONG ? undefined : HUNG_MS) === 0 && passed;
    if (existsSync(file)) counts = addCounts(counts, countsOf(JSON.parse(readFileSync(file, "utf8"))));
  }
  rmSync(folder, { recursive: true });
  console.log(summary(counts));
  return passed;
}

const args = process.argv.slice(2);
const passed = ensureServers() && (args.length > 0 || check()) && suites(args);
process.exitCode = passed ? 0 : 1;
