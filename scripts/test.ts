/** The whole test command: static checks, then every suite. Arguments go to vitest (`npm test -- src/routing`), and then only it runs. */

import { spawnSync } from "node:child_process";

const filters = process.argv.slice(2);

function run(command: string, args: readonly string[]): void {
  const done = spawnSync(command, args, { stdio: "inherit" });
  if (done.status !== 0) process.exit(done.status ?? 1);
}

if (filters.length === 0)
  run(process.execPath, ["--disable-warning=ExperimentalWarning", "scripts/check.ts"]);
run(process.execPath, ["node_modules/vitest/vitest.mjs", "run", ...filters]);
