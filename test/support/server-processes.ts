/** redis-server and nats-server: found on the machine, started on loopback on a free port, ended with the process that asked. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { accessSync, constants, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { homedir, tmpdir } from "node:os";
import { delimiter, join } from "node:path";

export interface RunningServer {
  readonly pid: number;
  readonly port: number;
  /** Ends it (default by SIGTERM) and resolves when it is gone. Safe to call twice. */
  stop(signal?: NodeJS.Signals): Promise<void>;
  /** Stops it in its tracks, as a machine that hangs; `resume` lets it go on. */
  pause(): void;
  resume(): void;
}

export interface NatsServer extends RunningServer {
  /** Port of the client protocol. */
  readonly clientPort: number;
  /** `ws://…`, for nats.ws. */
  readonly url: string;
  /** Where streams are kept: give it to a later server to begin with them. */
  readonly storeDir: string;
}

const SEARCHED = [
  ...(process.env.PATH ?? "").split(delimiter),
  "/usr/bin",
  "/usr/sbin",
  "/usr/local/bin",
  "/usr/local/sbin",
  join(process.env.GOBIN ?? process.env.GOPATH ?? join(homedir(), "go"), process.env.GOBIN ? "" : "bin"),
];

function find(name: string): string[] {
  const found = SEARCHED.map((folder) => join(folder, name)).filter((path) => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
  return [...new Set(found)];
}

/** Path of redis-server or valkey-server; null: neither is here. */
export function findRedisServer(): string | null {
  return process.env.KEDGE_REDIS_SERVER_BIN ?? find("redis-server")[0] ?? find("valkey-server")[0] ?? null;
}

/** Every nats-server found, the newest first. */
export function findNatsServers(): string[] {
  const named = process.env.KEDGE_NATS_SERVER_BIN;
  return (named ? [named] : find("nats-server"))
    .map((path) => ({ path, version: versionOf(path) }))
    .sort((a, b) => b.version.localeCompare(a.version, undefined, { numeric: true }))
    .map(({ path }) => path);
}

/** As found when this process began. */
export const REDIS_SERVER: string | null = findRedisServer();
export const NATS_SERVERS: readonly string[] = findNatsServers();

function versionOf(path: string): string {
  return /\d+\.\d+\.\d+/.exec(spawnSync(path, ["--version"], { encoding: "utf8" }).stdout ?? "")?.[0] ?? "0";
}

export interface RedisOptions {
  /** Default: a free one. Give the port of a stopped server to begin anew, empty, at its place. */
  readonly port?: number;
  /** Further command-line arguments, e.g. `["--cluster-enabled", "yes"]`. */
  readonly args?: readonly string[];
}

/** An empty Redis that writes nothing to disk. */
export async function startRedis({ port, args = [] }: RedisOptions = {}): Promise<RunningServer> {
  if (REDIS_SERVER === null) throw new Error("redis-server is not installed");
  const folder = mkdtempSync(join(tmpdir(), "kedge-redis-"));
  const chosen = port ?? (await freePort());
  const fixed = ["--port", `${chosen}`, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
  const child = spawn(REDIS_SERVER, [...fixed, "--dir", folder, ...args], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  await said(child, child.stdout, "Ready to accept connections");
  return running(child, chosen, () => rmSync(folder, { recursive: true, force: true }));
}

export interface NatsOptions {
  /** WebSocket port; default: a free one. */
  readonly port?: number;
  /** Default: the newest that is here. */
  readonly binary?: string;
  readonly storeDir?: string;
  /** More of the configuration file, e.g. accounts. */
  readonly config?: string;
}

/** NATS with WebSocket and JetStream on loopback. */
export async function startNats(options: NatsOptions = {}): Promise<NatsServer> {
  const binary = options.binary ?? NATS_SERVERS[0];
  if (binary === undefined) throw new Error("nats-server is not installed");
  const folder = mkdtempSync(join(tmpdir(), "kedge-nats-"));
  folders.push(folder);
  const storeDir = options.storeDir ?? join(folder, "jetstream");
  const port = options.port ?? (await freePort());
  const clientPort = await freePort();
  const file = join(folder, "nats.conf");
  writeFileSync(
    file,
    `listen: "127.0.0.1:${clientPort}"
websocket { listen: "127.0.0.1:${port}", no_tls: true }
jetstream { store_dir: "${storeDir}" }
${options.config ?? ""}
`,
  );
  const child = spawn(binary, ["-c", file], { stdio: ["ignore", "ignore", "pipe"] });
  await said(child, child.stderr, "Server is ready");
  const server = running(child, port, () => undefined);
  return { ...server, clientPort, url: `ws://127.0.0.1:${port}`, storeDir };
}

/** What ends this process must end its servers too; a signal alone would skip that. */
function endWithThisProcess(): void {
  process.once("SIGTERM", () => process.exit(143));
  process.once("SIGINT", () => process.exit(130));
}

const children = new Set<ChildProcess>();
let endsThem = false;
/** Kept until this process ends, for a later server may begin with what an earlier one stored. */
const folders: string[] = [];
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

function running(child: ChildProcess, port: number, clean: () => void): RunningServer {
  if (!endsThem) {
    endsThem = true;
    endWithThisProcess();
  }
  children.add(child);
  // A server that a failed test left behind keeps nobody from ending.
  child.unref();
  const gone = new Promise<void>((resolve) => {
    child.once("exit", () => {
      children.delete(child);
      clean();
      resolve();
    });
  });
  return {
    pid: child.pid!,
    port,
    stop: (signal = "SIGTERM") => {
      child.ref();
      child.kill("SIGCONT");
      child.kill(signal);
      return gone;
    },
    pause: () => {
      child.kill("SIGSTOP");
      untilStopped(child.pid!);
    },
    resume: () => void child.kill("SIGCONT"),
  };
}

/** The signal is sent before it takes effect, and on a busy machine a process answers in between. */
function untilStopped(pid: number): void {
  const giveUpMs = performance.now() + 1_000;
  try {
    while (!/^State:\s+T/m.test(readFileSync(`/proc/${pid}/status`, "utf8")) && performance.now() < giveUpMs);
  } catch {
    // No /proc here, or it has ended: nothing to wait for.
  }
}

/** Resolves when the process has printed `text`; rejects if it ends before, with all that it printed. */
function said(child: ChildProcess, stream: NodeJS.ReadableStream | null, text: string): Promise<void> {
  return new Promise((resolve, reject) => {
    let heard = "";
    stream!.on("data", (chunk: Buffer) => {
      if (heard.includes(text)) return;
      heard += chunk.toString();
      if (!heard.includes(text)) return;
      // Read on, for a full pipe would stop it, but let this process end meanwhile.
      (stream as Socket).unref();
      resolve();
    });
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`it ended with ${code} before it was ready:\n${heard}`)));
  });
}

/** Below what systems give to outgoing connections (Linux from 32768 on): nobody takes one by chance while its server is being restarted. */
const PORTS = { from: 16_384, to: 32_768 };

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = PORTS.from + Math.floor(Math.random() * (PORTS.to - PORTS.from));
    if (await isFree(port)) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", (error: NodeJS.ErrnoException) => {
      if (error.code === "EADDRINUSE") resolve(false);
      else reject(error);
    });
    probe.listen(port, "127.0.0.1", () => probe.close(() => resolve(true)));
  });
}

/** Whether a process runs. One that ended and that its parent has not asked for yet does not. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch (error) {
    // No /proc here: it answered the signal.
    return (error as NodeJS.ErrnoException).syscall === "open" && !existsSync("/proc/self");
  }
}
