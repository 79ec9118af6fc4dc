/** Mock engines as child processes: started on free ports, read from their first line of output, ended with their parent. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { KedgeError } from "../errors/index.ts";

export interface MockFleetOptions {
  /** Number of engines. */
  readonly workers: number;
  /** Whose timing to simulate: `8b-h100`, `70b-tp4-h100` or `zero`. */
  readonly profile: string;
  /** Simulated seconds per second. */
  readonly speed: number;
  /** KV blocks of each engine; null: the profile's. */
  readonly blocks: number | null;
  /** Tokens per streamed chunk. */
  readonly streamInterval: number;
}

export interface MockProcess {
  readonly url: string;
  readonly events: readonly string[];
  readonly replay: readonly string[];
  readonly pid: number;
  /** Resolves when it has ended, whoever ended it. */
  readonly ended: Promise<void>;
  /** Ends it at once; safe to call twice. */
  close(): Promise<void>;
}

/** The name that all mock engines serve. */
export const MOCK_MODEL = "mock";

const START_TIMEOUT_MS = 30_000;
const CLOSE_TIMEOUT_MS = 3_000;
const STDERR_KEPT = 4_096;

const EVENTS = JSON.stringify({
  enable_kv_cache_events: true,
  publisher: "zmq",
  endpoint: "tcp://*:0",
  replay_endpoint: "tcp://*:0",
  topic: "kv-events",
});

/** Starts them side by side. Errors: `upstream_unreachable` with what the process said, after ending the others. */
export async function startMockFleet(options: MockFleetOptions): Promise<MockProcess[]> {
  const starts = Array.from({ length: options.workers }, (_, i) => startMockProcess(options, i));
  const results = await Promise.allSettled(starts);
  const processes = results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
  const failed = results.find((result) => result.status === "rejected");
  if (failed === undefined) return processes;
  await Promise.all(processes.map((each) => each.close()));
  throw failed.reason;
}

async function startMockProcess(options: MockFleetOptions, index: number): Promise<MockProcess> {
  const child = spawn(process.execPath, [...process.execArgv, mainScript(), ...commandLine(options, index)], {
    // The channel carries nothing: its end tells the child that this process is gone, however it went.
    stdio: ["ignore", "pipe", "pipe", "ipc"],
    // Its own process group: Ctrl-C reaches the parent alone, which lets running requests finish first.
    detached: true,
  });
  const stderr = keepTail(child);
  const ended = once(child, "exit").then(() => undefined);
  try {
    const facts = await firstLine(child, ended);
    return { ...facts, pid: child.pid ?? 0, ended, close: () => end(child, ended) };
  } catch (cause) {
    await end(child, ended);
    throw new KedgeError("upstream_unreachable", `A mock engine did not start. ${stderr()}`.trim(), {
      cause,
    });
  }
}

/** The CLI beside this file, in the sources or in dist/. */
function mainScript(): string {
  const extension = import.meta.url.endsWith(".ts") ? "ts" : "js";
  return fileURLToPath(new URL(`./cli/main.${extension}`, import.meta.url));
}

function commandLine(options: MockFleetOptions, index: number): string[] {
  const args = ["mock-engine", "--port", "0", "--profile", options.profile, "--speed", String(options.speed)];
  args.push("--served-model-name", MOCK_MODEL, "--seed", String(index), "--kv-events-config", EVENTS);
  args.push("--stream-interval", String(options.streamInterval));
  if (options.blocks !== null) args.push("--num-gpu-blocks-override", String(options.blocks));
  return args;
}

interface Facts {
  readonly url: string;
  readonly events: readonly string[];
  readonly replay: readonly string[];
}

async function firstLine(child: ChildProcess, ended: Promise<void>): Promise<Facts> {
  if (child.stdout === null) throw new Error("no standard output");
  const lines = createInterface({ input: child.stdout });
  const timer = AbortSignal.timeout(START_TIMEOUT_MS);
  const gone = ended.then(() => Promise.reject(new Error("it ended before it listened")));
  const [line] = await Promise.race([once(lines, "line", { signal: timer }), gone]);
  child.stdout.resume();
  return JSON.parse(String(line)) as Facts;
}

function keepTail(child: ChildProcess): () => string {
  let tail = "";
  child.stderr?.setEncoding("utf8").on("data", (text: string) => {
    tail = (tail + text).slice(-STDERR_KEPT);
  });
  return () => tail.trim();
}

async function end(child: ChildProcess, ended: Promise<void>): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill("SIGINT");
  const force = setTimeout(() => child.kill("SIGKILL"), CLOSE_TIMEOUT_MS);
  await ended;
  clearTimeout(force);
}
