/** The processes that the benchmark puts in turn before one engine: none, Kedge, and peers where they are installed. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export interface Target {
  readonly name: string;
  readonly port: number;
  /** CPU time of its process so far in milliseconds; NaN where /proc does not say. */
  cpuMs(): number;
  stop(): Promise<void>;
}

/** Linux counts CPU time in ticks of 10 ms. */
const TICK_MS = 10;

function cpuMs({ pid }: ChildProcess): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]!.split(" ");
    return (Number(fields[11]) + Number(fields[12])) * TICK_MS;
  } catch {
    return Number.NaN;
  }
}

const START_TIMEOUT_MS = 60_000;
const here = (name: string) => fileURLToPath(new URL(name, import.meta.url));

/** A Node child that prints where it listens: a port, or a line of JSON with a URL. */
async function startNode(
  name: string,
  script: string,
  args: readonly string[],
  flags: readonly string[] = [],
) {
  const child = spawn(process.execPath, [...flags, here(script), ...args], {
    stdio: ["ignore", "pipe", "inherit", "ipc"],
  });
  const [line] = (await once(child.stdout!, "data")) as [Buffer];
  const text = line.toString().trim();
  const port = text.startsWith("{") ? new URL((JSON.parse(text) as { url: string }).url).port : text;
  return { name, port: Number(port), cpuMs: () => cpuMs(child), stop: () => stop(child) };
}

export function startEngine(events: string, model: string, burst: boolean): Promise<Target> {
  return startNode("direct", "engine.ts", [events, model, burst ? "burst" : "turns"]);
}

/** `kedge up` as anybody runs it: gateway, view, agent and ingress in one process; keys by the mock's model files. */
export function startKedge(engineUrl: string, profileFolder: string | undefined): Promise<Target> {
  const model = here("../../gpu-agent/engines/mock/model");
  const flags = profileFolder === undefined ? [] : ["--cpu-prof", `--cpu-prof-dir=${profileFolder}`];
  const args = ["up", "--json", "--port", "0", "--no-explain", "--engine", `${engineUrl},model=${model}`];
  return startNode("kedge", "../../src/node/cli/main.ts", args, flags);
}

export interface PeerContext {
  readonly engineUrl: string;
  readonly model: string;
  /** Folder of a virtual environment's programs. */
  readonly bin: string;
}

type Launcher = (context: PeerContext, port: number) => { readonly program: string; readonly args: string[] };

const PEERS: Readonly<Record<string, Launcher>> = {
  "vllm-router": ({ bin, engineUrl }, port) => ({
    program: join(bin, "vllm-router"),
    args: [
      "--worker-urls",
      engineUrl,
      "--policy",
      "cache_aware",
      "--host",
      "127.0.0.1",
      "--port",
      `${port}`,
      "--log-level",
      "error",
    ],
  }),
  "sglang-router": ({ bin, engineUrl }, port) => ({
    program: join(bin, "sglang-router"),
    args: [
      "launch",
      "--worker-urls",
      engineUrl,
      "--policy",
      "cache_aware",
      "--host",
      "127.0.0.1",
      "--port",
      `${port}`,
    ],
  }),
  litellm: ({ bin, engineUrl, model }, port) => {
    const config = join(mkdtempSync(join(tmpdir(), "kedge-bench-")), "litellm.yaml");
    const params = `{model: openai/${model}, api_base: "${engineUrl}/v1", api_key: none}`;
    writeFileSync(config, `model_list:\n  - model_name: ${model}\n    litellm_params: ${params}\n`);
    return {
      program: join(bin, "litellm"),
      args: ["--config", config, "--host", "127.0.0.1", "--port", `${port}`],
    };
  },
};

/** Every peer whose program is in the folder. */
export async function startPeers(context: PeerContext): Promise<Target[]> {
  const targets: Target[] = [];
  for (const [name, launch] of Object.entries(PEERS)) {
    const port = await freePort();
    const { program, args } = launch(context, port);
    if (!existsSync(program)) continue;
    const child = spawn(program, args, { stdio: "ignore", cwd: tmpdir() });
    await untilAnswering(name, port, context.model, child);
    targets.push({ name, port, cpuMs: () => cpuMs(child), stop: () => stop(child) });
  }
  return targets;
}

async function untilAnswering(name: string, port: number, model: string, child: ChildProcess): Promise<void> {
  const deadline = performance.now() + START_TIMEOUT_MS;
  const body = JSON.stringify({ model, stream: true, messages: [{ role: "user", content: "hello" }] });
  while (performance.now() < deadline) {
    if (child.exitCode !== null) throw new Error(`${name} ended with code ${child.exitCode}.`);
    const answer = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body,
    }).catch(() => null);
    const text = await answer?.text();
    if (answer?.ok && text?.includes("[DONE]")) return;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  await stop(child);
  throw new Error(`${name} did not answer within ${START_TIMEOUT_MS} ms.`);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, "exit");
  child.kill(child.channel ? "SIGINT" : "SIGKILL");
  await ended;
}
