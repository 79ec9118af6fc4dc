/** Benchmark of the view: in memory and in Redis. `npm run bench:store -- [--quick] [--only memory|redis]`; see README.md beside it. */

import { parseArgs } from "node:util";
import { measureMemory } from "./memory.ts";
import type { Options, Verdict } from "./report.ts";

const HELP = `bench:store [--only memory|redis] [--quick] [--seed N] [--json] [--check]
  --only    one part: the view in memory, or the one in Redis (needs redis-server); default: both
  --quick   fewer shapes and requests
  --seed    of views and prompts (1)
  --json    figures as one line of JSON
  --check   exit with 1 if a target or budget is not met`;

const { values } = parseArgs({
  options: {
    only: { type: "string" },
    quick: { type: "boolean", default: false },
    seed: { type: "string", default: "1" },
    json: { type: "boolean", default: false },
    check: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

if (values.help) {
  console.log(HELP);
} else if (!/^\d+$/.test(values.seed) || !["memory", "redis", undefined].includes(values.only)) {
  console.error(HELP);
  process.exitCode = 2;
} else {
  await main();
}

async function main(): Promise<void> {
  const { json, quick, only } = values;
  const seed = Number(values.seed);
  const options: Options = {
    seed,
    quick,
    say: (line) => {
      if (!json) console.log(line);
    },
    progress: (text) => {
      if (process.stderr.isTTY) process.stderr.write(`\r\x1b[K${text}`);
    },
  };
  options.say(`seed ${seed}, Node ${process.version}`);
  const memory = only === "redis" ? null : measureMemory(options);
  const redis = only === "memory" ? null : await (await import("./redis/index.ts")).measureRedis(options);
  const verdicts = [...(memory?.verdicts ?? []), ...(redis?.verdicts ?? [])];
  options.say("");
  for (const verdict of verdicts) options.say(lineOf(verdict));
  if (json) {
    const figures = { memory: memory?.figures ?? null, redis: redis?.figures ?? null };
    console.log(JSON.stringify({ seed, node: process.version, ...figures, verdicts }));
  }
  if (values.check && verdicts.some(({ met }) => !met)) process.exitCode = 1;
}

function lineOf({ target, value, met }: Verdict): string {
  return `${met ? "met    " : "NOT met"} ${target}: ${value}`;
}
