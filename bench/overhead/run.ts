/** Gateway overhead: direct, Kedge and installed peers in turn before one zero-delay streaming engine. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import type { LoadJob, LoadResult } from "./protocol.ts";
import { startEngine, startKedge, startPeers, type Target } from "./targets.ts";

const HELP = `Usage: node bench/overhead/run.ts [options]

Adds up what a gateway costs: every target in turn before the same zero-delay streaming engine, kept-alive connections,
${"4 and 64 KB prompts, 1 and 16 clients. Rounds are interleaved and figures are medians over rounds, for noisy machines."}

  --quick            one short round
  --rounds <n>       rounds (5)
  --seconds <s>      measured time of one target in one round (2)
  --clients <a,b>    (1,16)
  --sizes <a,b>      prompt sizes in KB (4,64)
  --events <n>       events per stream (16)
  --burst            all events of a stream in one write instead of one per turn of the engine's loop
  --peers <folder>   folder with vllm-router, sglang-router, litellm; or KEDGE_BENCH_PEERS
  --cpu-prof <dir>   writes a CPU profile of Kedge
  --json             figures as one JSON object`;

const STALL_MS = 35;
const MODEL = "bench";
const WARM_UP_MS = 700;

interface Figures {
  readonly target: string;
  readonly promptKb: number;
  readonly clients: number;
  readonly requestsPerSecond: number;
  readonly firstByteMs: { readonly p50: number; readonly p99: number };
  readonly totalMs: { readonly p50: number; readonly p99: number };
  /** Share of requests that took longer than any honest work does: the mark of a delayed acknowledgement. */
  readonly stalled: number;
  /** CPU time of the target's process per request: says more than latency on a busy machine. */
  readonly cpuMsPerRequest: number;
}

interface Round extends LoadResult {
  readonly cpuMsPerRequest: number;
}

function options() {
  const { values } = parseArgs({
    options: {
      quick: { type: "boolean", default: false },
      rounds: { type: "string" },
      seconds: { type: "string" },
      clients: { type: "string", default: "1,16" },
      sizes: { type: "string", default: "4,64" },
      events: { type: "string", default: "16" },
      burst: { type: "boolean", default: false },
      peers: { type: "string", default: process.env.KEDGE_BENCH_PEERS ?? "" },
      "cpu-prof": { type: "string" },
      json: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  const list = (text: string) => text.split(",").map(Number);
  return {
    help: values.help,
    json: values.json,
    rounds: Number(values.rounds ?? (values.quick ? 1 : 5)),
    seconds: Number(values.seconds ?? (values.quick ? 0.7 : 2)),
    clients: list(values.clients),
    sizes: list(values.sizes),
    events: values.events,
    burst: values.burst,
    peers: values.peers,
    profile: values["cpu-prof"],
  };
}

async function load(job: LoadJob): Promise<LoadResult> {
  const child = spawn(
    process.execPath,
    [fileURLToPath(new URL("load.ts", import.meta.url)), JSON.stringify(job)],
    {
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  const chunks: Buffer[] = [];
  const errors: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => chunks.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => errors.push(chunk));
  const [code] = (await once(child, "close")) as [number];
  if (code !== 0) throw new Error(Buffer.concat(errors).toString());
  return JSON.parse(Buffer.concat(chunks).toString()) as LoadResult;
}

const quantile = (values: readonly number[], q: number): number => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] ?? Number.NaN;
};
const median = (values: readonly number[]): number => quantile(values, 0.5);

function summarise(target: string, promptKb: number, clients: number, rounds: readonly Round[]): Figures {
  const over = (pick: (round: Round) => number) => median(rounds.map(pick));
  const all = rounds.flatMap((round) => round.totalMs);
  return {
    target,
    promptKb,
    clients,
    requestsPerSecond: over(({ totalMs, durationMs }) => (totalMs.length / durationMs) * 1_000),
    firstByteMs: {
      p50: over((round) => quantile(round.firstByteMs, 0.5)),
      p99: over((round) => quantile(round.firstByteMs, 0.99)),
    },
    totalMs: {
      p50: over((round) => quantile(round.totalMs, 0.5)),
      p99: over((round) => quantile(round.totalMs, 0.99)),
    },
    cpuMsPerRequest: over((round) => round.cpuMsPerRequest),
    stalled: clients === 1 ? all.filter((ms) => ms > STALL_MS).length / all.length : 0,
  };
}

async function measureOnce(
  target: Target,
  job: Pick<LoadJob, "port" | "clients" | "promptBytes">,
  durationMs: number,
): Promise<Round> {
  const before = target.cpuMs();
  const result = await load({
    ...job,
    host: "127.0.0.1",
    model: MODEL,
    prompts: 64,
    warmUpMs: WARM_UP_MS,
    durationMs,
  });
  return { ...result, cpuMsPerRequest: (target.cpuMs() - before) / result.requests };
}

async function measure(targets: readonly Target[], settings: ReturnType<typeof options>): Promise<Figures[]> {
  const figures: Figures[] = [];
  for (const promptKb of settings.sizes) {
    for (const clients of settings.clients) {
      const rounds = new Map<string, Round[]>(targets.map(({ name }) => [name, []]));
      for (let round = 0; round < settings.rounds; round++) {
        for (const target of targets) {
          const job = { port: target.port, clients, promptBytes: promptKb * 1_024 };
          rounds.get(target.name)!.push(await measureOnce(target, job, settings.seconds * 1_000));
        }
      }
      const scenario = targets.map(({ name }) => summarise(name, promptKb, clients, rounds.get(name)!));
      if (!settings.json) print(scenario);
      figures.push(...scenario);
    }
  }
  return figures;
}

function print(scenario: readonly Figures[]): void {
  const direct = scenario[0]!;
  console.log(`\n${direct.promptKb} KB prompts, ${direct.clients} client${direct.clients === 1 ? "" : "s"}`);
  console.log(
    "target          first p50  first p99  total p50  total p99   added p50  requests/s  of direct  CPU/request  stalled",
  );
  for (const one of scenario) {
    const ms = (value: number) => value.toFixed(3).padStart(9);
    const added = one === direct ? "—".padStart(11) : ms(one.totalMs.p50 - direct.totalMs.p50).padStart(11);
    const share = `${((one.requestsPerSecond / direct.requestsPerSecond) * 100).toFixed(0)} %`.padStart(10);
    console.log(
      `${one.target.padEnd(14)}  ${ms(one.firstByteMs.p50)}  ${ms(one.firstByteMs.p99)}  ${ms(one.totalMs.p50)}  ${ms(one.totalMs.p99)} ${added}  ${one.requestsPerSecond.toFixed(0).padStart(10)} ${share}  ${ms(one.cpuMsPerRequest)} ms  ${(one.stalled * 100).toFixed(1)} %`,
    );
  }
}

async function main(): Promise<void> {
  const settings = options();
  if (settings.help) {
    console.log(HELP);
    return;
  }
  const engine = await startEngine(settings.events, MODEL, settings.burst);
  const engineUrl = `http://127.0.0.1:${engine.port}`;
  const targets: Target[] = [engine];
  try {
    targets.push(await startKedge(engineUrl, settings.profile));
    if (settings.peers !== "")
      targets.push(...(await startPeers({ engineUrl, model: MODEL, bin: settings.peers })));
    const figures = await measure(targets, settings);
    if (settings.json)
      console.log(JSON.stringify({ node: process.version, events: Number(settings.events), figures }));
  } finally {
    for (const target of targets.reverse()) await target.stop();
  }
}

await main();
