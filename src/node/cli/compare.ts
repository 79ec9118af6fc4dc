/** `kedge compare`: one workload under several router modes, and a table of what each made of it. */

import { readFileSync } from "node:fs";
import { Command, InvalidArgumentError } from "commander";
import { KedgeError } from "../../errors/index.ts";
import { type ComparePlan, compare, type Fleet } from "../compare/compare.ts";
import type { RunKey } from "../compare/curve.ts";
import { checkMode, liveFleet, startFleet } from "../compare/fleet.ts";
import { type Probe, probe } from "../compare/probe.ts";
import { type Progress, progress, SILENT } from "../compare/progress.ts";
import { runJob } from "../compare/runner.ts";
import { renderReport } from "../compare/table.ts";
import type { NodeLog } from "../node-engines.ts";

interface Options {
  readonly modes: string[];
  readonly seeds: number[];
  readonly concurrency?: number;
  readonly rate?: number;
  readonly sweep?: number[];
  readonly groups: number;
  readonly users: number;
  readonly turns: number;
  readonly systemTokens: number;
  readonly questionTokens: number;
  readonly outputTokens: number;
  readonly spread: number;
  readonly scale: number;
  readonly file?: string;
  readonly requests?: number;
  readonly warmup?: number;
  readonly maxSeconds: number;
  readonly timeout: number;
  readonly sloTtft: number;
  readonly url?: string;
  readonly model?: string;
  readonly apiKey?: string;
  readonly workers: number;
  readonly profile: string;
  readonly speed: number;
  readonly blocks?: number;
  readonly streamInterval: number;
  readonly json?: true;
  readonly quiet?: true;
}

const DEFAULT_CONCURRENCY = 32;

export function compareCommand(): Command {
  const command = new Command("compare").description(
    "Run one workload under several router modes and print what each made of it.\n\n" +
      "Without --url every run starts a fresh fleet of mock engines; with it, a live gateway that has explanations on is used: " +
      "modes are chosen per request and prompts salted per run.",
  );
  addComparison(command);
  addWorkload(command);
  addFleet(command);
  return command.action(async (options: Options) => run(options)).addHelpText("after", EXAMPLES);
}

const EXAMPLES = `
Examples:
  kedge compare                                   round robin against kv on 4 mock workers
  kedge compare --sweep 8,16,32,64 --seeds 1,2,3  the whole load curve, with the knee of each mode
  kedge compare --modes kv,kv:no-events --groups 40
  kedge compare --url http://127.0.0.1:8787 --file chats.jsonl --concurrency 4 --json`;

function addComparison(command: Command): void {
  command
    .option(
      "--modes <a,b,…>",
      "router modes, the first is the baseline; kv:no-events is prediction mode",
      modes,
      ["round-robin", "kv"],
    )
    .option("--seeds <n,n,…>", "seeds of the workload; one run per mode, load and seed", integers(0), [1])
    .option(
      "--concurrency <n>",
      `closed loop of so many conversations (default: ${DEFAULT_CONCURRENCY})`,
      integer(1),
    )
    .option(
      "--rate <r>",
      "open loop: Poisson arrivals of so many requests per simulated second",
      number(0.001),
    )
    .option(
      "--sweep <n,n,…>",
      "load curve over these concurrencies (with --rate: over these rates)",
      numbers(0.001),
    )
    .option(
      "--requests <n>",
      "measured requests of a run (default: 10 per conversation, at least 200; all of a file)",
      integer(1),
    )
    .option(
      "--warmup <n>",
      "unmeasured requests before them (default: 2 per conversation; none of a file)",
      integer(0),
    )
    .option("--max-seconds <s>", "wall-clock bound of a run", number(1), 600)
    .option("--timeout <s>", "silence after which a request counts as failed", number(0.1), 120)
    .option("--slo-ttft <ms>", "time to first token that users accept, in simulated ms", number(1), 2000)
    .option("--json", "print the report as JSON (schema kedge.compare/1, see bench/README.md)")
    .option("--quiet", "no progress on stderr");
}

function addWorkload(command: Command): void {
  command
    .option("--groups <n>", "shared system prompts", integer(1), 150)
    .option("--users <n>", "users of each", integer(1), 5)
    .option(
      "--turns <n>",
      "questions of a conversation, which carries the model's answers along",
      integer(1),
      3,
    )
    .option("--system-tokens <n>", "tokens of a system prompt", integer(1), 6000)
    .option("--question-tokens <n>", "tokens of a question, on average", integer(1), 1200)
    .option("--output-tokens <n>", "tokens of an answer, on average", integer(1), 1000)
    .option("--spread <f>", "questions and answers vary by ± this fraction", number(0, 1), 0.3)
    .option(
      "--scale <f>",
      "multiplies the three lengths; scale --blocks alike to keep the cache pressure",
      number(0.001),
      1,
    )
    .option(
      "--file <path>",
      "instead: OpenAI chat requests, one JSON object per line, optionally with at_ms",
    );
}

function addFleet(command: Command): void {
  command
    .option("--workers <n>", "mock engines of a fresh fleet", integer(1), 4)
    .option("--profile <name>", "their timing: 8b-h100, 70b-tp4-h100 or zero", "8b-h100")
    .option(
      "--speed <f>",
      "their clock against the wall's; lower it where a warning says that the machine is saturated",
      number(0.001),
      1,
    )
    .option("--blocks <n>", "KV blocks of each (default: the profile's)", integer(16))
    .option("--stream-interval <n>", "tokens per streamed chunk of theirs", integer(1), 4)
    .option("--url <url>", "a live gateway instead, e.g. http://127.0.0.1:8787", origin)
    .option("--model <name>", "model to ask for (default: the first that is served)")
    .option("--api-key <key>", "bearer token for the gateway");
}

async function run(options: Options): Promise<void> {
  const plan = planOf(options);
  const view = options.quiet === true ? SILENT : progress(process.stderr, () => performance.now());
  const stop = stopOnSignals();
  const report = await compare(plan, {
    openFleet: fleetOpener(options, plan.speed, view),
    probe: (fleet) => probeFleet(fleet, options),
    runJob,
    progress: view,
    signal: stop,
    isoNow: () => new Date().toISOString(),
  });
  process.stdout.write(options.json === true ? `${JSON.stringify(report, null, 2)}\n` : renderReport(report));
  if (stop.aborted) process.exitCode = 130;
  else if (report.runs.length === 0) process.exitCode = 1;
}

function fleetOpener(options: Options, speed: number, view: Progress): (key: RunKey) => Promise<Fleet> {
  const { url, workers, profile, streamInterval, blocks = null, apiKey = null } = options;
  if (url !== undefined) return async (key) => liveFleet(key, { url, apiKey });
  const log: NodeLog = (level, message) => {
    if (level === "warn" || level === "error") view.say(`${level}: ${message}`);
  };
  return (key) => startFleet(key, { workers, profile, speed, blocks, streamInterval }, log);
}

/** The first Ctrl-C ends the run and prints what there is; the second one leaves at once. */
function stopOnSignals(): AbortSignal {
  const stop = new AbortController();
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.on(signal, () => {
      if (stop.signal.aborted) process.exit(130);
      stop.abort();
    });
  }
  return stop.signal;
}

async function probeFleet(fleet: Fleet, options: Options): Promise<Probe> {
  const { url, headers } = fleet;
  const found = await probe({
    url,
    headers,
    model: options.model ?? null,
    timeoutMs: options.timeout * 1000,
  });
  if (found.explains) return found;
  throw new KedgeError(
    "config_invalid",
    `${url} does not say which worker served, so modes cannot be chosen per request; start it with --explain.`,
  );
}

function planOf(options: Options): ComparePlan {
  const text = options.file === undefined ? null : readChats(options.file);
  const loads = loadsOf(options, text);
  const scaled = (tokens: number): number => Math.max(1, Math.round(tokens * options.scale));
  const parameters = {
    groups: options.groups,
    usersPerGroup: options.users,
    turns: options.turns,
    systemTokens: scaled(options.systemTokens),
    questionTokens: scaled(options.questionTokens),
    outputTokens: scaled(options.outputTokens),
    spread: options.spread,
  };
  const bounds = {
    requests: options.requests ?? null,
    warmUpRequests: options.warmup ?? null,
    maxSeconds: options.maxSeconds,
  };
  const fleet =
    options.url === undefined
      ? {
          workers: options.workers,
          profile: options.profile,
          blocks: options.blocks ?? "profile",
          streamInterval: options.streamInterval,
        }
      : { url: options.url };
  return {
    modes: options.modes,
    seeds: options.seeds,
    loads: loads.loads,
    loadUnit: loads.unit,
    workload: text === null ? { kind: "shared-prompts", parameters } : { kind: "file", text },
    ...bounds,
    requestTimeoutMs: options.timeout * 1000,
    speed: options.speed,
    sloTtftMs: options.sloTtft,
    setup: { fleet, workload: text === null ? parameters : { file: options.file }, ...bounds },
  };
}

function readChats(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    throw new KedgeError(
      "config_invalid",
      `--file: ${cause instanceof Error ? cause.message : String(cause)}.`,
      { cause },
    );
  }
}

function loadsOf(options: Options, chats: string | null): { loads: number[]; unit: ComparePlan["loadUnit"] } {
  const { concurrency, rate, sweep } = options;
  if (concurrency !== undefined && rate !== undefined) {
    throw new KedgeError(
      "config_invalid",
      "--concurrency and --rate exclude each other: a loop is closed or open.",
    );
  }
  if (rate !== undefined) return { loads: sweep ?? [rate], unit: "requests-per-second" };
  if (sweep === undefined && concurrency === undefined && chats?.includes('"at_ms"'))
    return { loads: [0], unit: "file" };
  const loads = sweep ?? [concurrency ?? DEFAULT_CONCURRENCY];
  if (loads.every(Number.isInteger)) return { loads, unit: "concurrency" };
  throw new KedgeError(
    "config_invalid",
    "--sweep: concurrencies are whole numbers; give --rate too to sweep rates.",
  );
}

function number(least: number, most = 1e9): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (text.trim() === "" || !(value >= least && value <= most)) {
      throw new InvalidArgumentError(`Expected a number from ${least}${most === 1e9 ? "" : ` to ${most}`}.`);
    }
    return value;
  };
}

function integer(least: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (text.trim() === "" || !Number.isSafeInteger(value) || value < least) {
      throw new InvalidArgumentError(`Expected a whole number from ${least}.`);
    }
    return value;
  };
}

function numbers(least: number): (text: string) => number[] {
  const one = number(least);
  return (text) => [...new Set(text.split(",").map((part) => one(part)))].sort((a, b) => a - b);
}

function integers(least: number): (text: string) => number[] {
  const one = integer(least);
  return (text) => [...new Set(text.split(",").map((part) => one(part)))];
}

function modes(text: string): string[] {
  try {
    return [...new Set(text.split(",").map((mode) => checkMode(mode.trim())))];
  } catch (thrown) {
    throw new InvalidArgumentError(thrown instanceof Error ? thrown.message : String(thrown));
  }
}

function origin(text: string): string {
  try {
    const url = new URL(text);
    if (url.protocol === "http:" || url.protocol === "https:") return url.origin;
  } catch {
    // Falls through to the one complaint.
  }
  throw new InvalidArgumentError("Expected an http(s) URL.");
}
