/** The whole test command: static checks, then every suite. Arguments go to vitest (`npm test -- src/routing`), and then only it runs. */

import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const filters = process.argv.slice(2);

function run(command: string, args: readonly string[]): number {
  return spawnSync(command, args, { stdio: "inherit" }).status ?? 1;
}

function check(): number {
  return run(process.execPath, ["--disable-warning=ExperimentalWarning", "scripts/check.ts"]);
}

/** Runs the suites and closes with one plain line of counts, for whoever reads only the end of a log. */
function suites(): number {
  const folder = mkdtempSync(join(tmpdir(), "kedge-test-"));
  const file = join(folder, "results.json");
  const reporters = ["--reporter=default", "--reporter=json", `--outputFile.json=${file}`];
  const status = run(process.execPath, ["node_modules/vitest/vitest.mjs", "run", ...reporters, ...filters]);
  if (existsSync(file)) console.log(counts(JSON.parse(readFileSync(file, "utf8"))));
  rmSync(folder, { recursive: true });
  return status;
}

interface Results {
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
}

function counts({ numPassedTests, numFailedTests, numPendingTests }: Results): string {
  const skipped = numPendingTests === 0 ? "" : `, ${numPendingTests} skipped`;
  return `tests: ${numPassedTests} passed, ${numFailedTests} failed${skipped}`;
}

process.exitCode = filters.length > 0 ? suites() : check() || suites();
