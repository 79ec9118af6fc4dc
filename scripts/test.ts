/**
 * The whole test command: static checks, then every suite, those inside workerd last. Arguments go to vitest
 * (`npm test -- src/routing`), and then only it runs. `--long`: the long run instead, which takes tens of minutes.
 */

import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { addCounts, type Counts, countsOf, NO_COUNTS, planRuns, summary } from "./runs.ts";
import { ensureServers } from "./servers.ts";

function run(command: string, args: readonly string[]): number {
  return spawnSync(command, args, { stdio: "inherit" }).status ?? 1;
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
    passed = run(process.execPath, vitest) === 0 && passed;
    if (existsSync(file)) counts = addCounts(counts, countsOf(JSON.parse(readFileSync(file, "utf8"))));
  }
  rmSync(folder, { recursive: true });
  console.log(summary(counts));
  return passed;
}

const args = process.argv.slice(2);
const passed = ensureServers() && (args.length > 0 || check()) && suites(args);
process.exitCode = passed ? 0 : 1;
