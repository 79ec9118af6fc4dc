/** The published runs of `kedge compare`: each is a command line that anyone can type; reports go to JSON files, tables to the screen. */

import { spawn } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Command } from "commander";
import type { CompareReport } from "../../src/node/compare/report.ts";
import { renderReport } from "../../src/node/compare/table.ts";

const root = join(import.meta.dirname, "../..");

/** Seeds, workload and bounds of each run; what is not said is the command's default. */
const RUNS: Readonly<Record<string, { what: string; args: string }>> = {
  knee: {
    what: "round robin against kv past round robin's knee",
    args: "--seeds 1,2,3 --concurrency 96 --turns 5 --output-tokens 300",
  },
  curve: {
    what: "the load curve of both",
    args: "--seeds 1,2,3 --sweep 8,16,32,48,64,96,128 --turns 5 --output-tokens 300",
  },
  prediction: {
    what: "kv with engine events against kv without, caches not full",
    args: "--modes kv,kv:no-events --seeds 1,2,3 --groups 40 --concurrency 48 --turns 5 --output-tokens 300",
  },
  modes: {
    what: "every mode at one load",
    args: "--modes round-robin,random,power-of-two,least-loaded,kv,kv-1.x --concurrency 96 --turns 5 --output-tokens 300",
  },
};

const command = new Command("bench/compare")
  .description("Runs the published comparisons of router modes on mock engines.")
  .argument("[run...]", `which: ${Object.keys(RUNS).join(", ")} (default: all)`)
  .option("--out <directory>", "where the JSON reports go", join(import.meta.dirname, "results"))
  .action(async (wanted: string[], options: { out: string }) => {
    mkdirSync(options.out, { recursive: true });
    for (const name of wanted.length > 0 ? wanted : Object.keys(RUNS)) {
      const run = RUNS[name];
      if (run === undefined) command.error(`No run is called ${name}.`);
      else if (!(await publish(name, run, options.out))) {
        process.exitCode = 130;
        break;
      }
    }
  });

/** True: the run was not interrupted. */
async function publish(
  name: string,
  run: { what: string; args: string },
  directory: string,
): Promise<boolean> {
  console.log(`\n${name}: ${run.what}\n$ kedge compare ${run.args}\n`);
  const report = JSON.parse(await compare(run.args.split(" "))) as CompareReport;
  writeFileSync(join(directory, `${name}.json`), `${JSON.stringify(report, null, 1)}\n`);
  console.log(renderReport(report));
  return report.complete;
}

/** Standard output of `kedge compare … --json`; its progress goes to our stderr. */
function compare(args: readonly string[]): Promise<string> {
  const child = spawn(
    process.execPath,
    [
      "--disable-warning=ExperimentalWarning",
      join(root, "src/node/cli/main.ts"),
      "compare",
      ...args,
      "--json",
    ],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  const parts: Buffer[] = [];
  child.stdout.on("data", (part: Buffer) => parts.push(part));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => {
      // 130: interrupted, and the report says so; what was measured until then is kept.
      if (code === 0 || code === 130) resolve(Buffer.concat(parts).toString("utf8"));
      else reject(new Error(`kedge compare ${args.join(" ")} ended with ${code}.`));
    });
  });
}

// Ctrl-C reaches the command that runs, which ends with what it has; that is then written.
process.on("SIGINT", () => {});
await command.parseAsync();
