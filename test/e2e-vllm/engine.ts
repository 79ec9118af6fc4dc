/** Real vLLM engines for the suite: started in process groups of their own, asked for health, ended as a whole. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { openSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Folder with `venv`, `tiny-qwen3`, `tiny-gemma3`, `lora-tide` and `lora-gale`; undefined: the suite is skipped. */
export const VLLM_DIR = process.env.E2E_VLLM_DIR;

export const MODEL = "tiny-qwen3";

export interface EnginePorts {
  readonly http: number;
  /** The engine connects its PUB socket to this port of the loopback, so nobody but Kedge may have it. */
  readonly events: number;
  readonly replay: number;
}

export interface EngineOptions {
  /** Folder of the model; default tiny-qwen3, always served as {@link MODEL}. */
  readonly model?: "tiny-qwen3" | "tiny-gemma3";
  readonly maxModelLen?: number;
  /** KV blocks, one of which the engine keeps for itself. */
  readonly blocks?: number;
  readonly flags?: readonly string[];
  /** Adapters may be loaded and unloaded over HTTP. */
  readonly runtimeAdapters?: boolean;
  /** Default: free ones, with room for a second rank. */
  readonly ports?: EnginePorts;
}

export interface Engine {
  readonly url: string;
  readonly ports: EnginePorts;
  /** As `kedge up --engine` takes it. */
  readonly option: string;
  /** To the API server alone, as a supervisor would. */
  terminate(): void;
  hasEnded(): boolean;
  /** Resolves when the whole process group is gone: killed at once, as after a crash of the machine. */
  kill(): Promise<void>;
}

const READY_WITHIN_MS = 180_000;

/** Resolves when the engine is healthy. Rejects with the place of its log if it ends before. */
export async function startEngine(options: EngineOptions = {}): Promise<Engine> {
  if (VLLM_DIR === undefined) throw new Error("E2E_VLLM_DIR is not set");
  const ports = options.ports ?? (await freePorts());
  const url = `http://127.0.0.1:${ports.http}`;
  const log = join(tmpdir(), `kedge-vllm-${ports.http}.log`);
  const child = launch(VLLM_DIR, options, ports, log);
  const ended = once(child, "exit");
  const kill = async (): Promise<void> => {
    try {
      process.kill(-child.pid!, "SIGKILL");
    } catch {
      // The group is gone already.
    }
    if (child.exitCode === null && child.signalCode === null) await ended;
  };
  running.add(kill);
  try {
    await healthy(url, child, log);
  } catch (thrown) {
    await kill();
    throw thrown;
  }
  const { events, replay } = ports;
  return {
    url,
    ports,
    option: `${url},events=tcp://127.0.0.1:${events},replay=tcp://127.0.0.1:${replay},model=${join(VLLM_DIR, options.model ?? MODEL)}`,
    terminate: () => void child.kill("SIGTERM"),
    hasEnded: () => child.exitCode !== null || child.signalCode !== null,
    kill,
  };
}

const running = new Set<() => Promise<void>>();

/** Ends every engine that this test file has started. */
export async function killEngines(): Promise<void> {
  await Promise.all([...running].map((kill) => kill()));
  running.clear();
}

function launch(dir: string, options: EngineOptions, ports: EnginePorts, log: string): ChildProcess {
  const { model = MODEL, maxModelLen = 8_192, blocks = 1_024, flags = [] } = options;
  const output = openSync(log, "w");
  const kvEvents = {
    enable_kv_cache_events: true,
    publisher: "zmq",
    endpoint: `tcp://127.0.0.1:${ports.events}`,
    replay_endpoint: `tcp://127.0.0.1:${ports.replay}`,
    topic: "kv-events",
  };
  const args = [
    ["serve", model, "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", String(ports.http)],
    ["--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager", "--block-size", "16"],
    ["--max-model-len", String(maxModelLen), "--num-gpu-blocks-override", String(blocks)],
    ["--enable-prefix-caching", "--enable-prompt-tokens-details"],
    ["--kv-events-config", JSON.stringify(kvEvents), ...flags],
  ].flat();
  const env = {
    ...process.env,
    HF_HUB_OFFLINE: "1",
    VLLM_NO_USAGE_STATS: "1",
    DO_NOT_TRACK: "1",
    VLLM_HOST_IP: "127.0.0.1",
    VLLM_CPU_KVCACHE_SPACE: "1",
    VLLM_CPU_OMP_THREADS_BIND: "nobind",
    // For /reset_prefix_cache.
    VLLM_SERVER_DEV_MODE: "1",
    ...(options.runtimeAdapters && { VLLM_ALLOW_RUNTIME_LORA_UPDATING: "True" }),
  };
  return spawn(join(dir, "venv/bin/vllm"), args, {
    cwd: dir,
    env,
    // Its engine and worker processes outlive the API server; as a group they can be ended together.
    detached: true,
    stdio: ["ignore", output, output],
  });
}

async function healthy(url: string, child: ChildProcess, log: string): Promise<void> {
  const deadline = Date.now() + READY_WITHIN_MS;
  while (Date.now() < deadline) {
    if (child.exitCode !== null || child.signalCode !== null) {
      throw new Error(`vLLM ended before it was ready; see ${log}`);
    }
    const answer = await fetch(`${url}/health`).catch(() => null);
    if (answer?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  throw new Error(`vLLM was not ready within ${READY_WITHIN_MS / 1_000} s; see ${log}`);
}

/**
 * Below the range that the kernel hands out: a socket that keeps connecting to an unbound port of that range may be given the very same port as
 * its own and end up connected to itself.
 */
let nextPort = 20_000 + ((process.pid * 16) % 8_000);

async function freePorts(): Promise<EnginePorts> {
  for (;;) {
    const http = nextPort;
    nextPort += 8;
    const ports = [0, 2, 3, 4, 5].map((offset) => http + offset);
    const free = await Promise.all(ports.map(isFree));
    if (free.every(Boolean)) return { http, events: http + 2, replay: http + 4 };
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}
