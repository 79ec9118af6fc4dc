/** `kedge up` as a user runs it: a process that serves, says where, and leaves nothing behind. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { createInterface } from "node:readline";
import { afterEach, expect, it } from "vitest";

interface Summary {
  readonly url: string;
  readonly models: string[];
  readonly engines: {
    worker: string;
    url: string;
    serving: boolean;
    events: string | null;
    pid: number | null;
  }[];
}

const running: ChildProcess[] = [];

function up(...args: string[]): ChildProcess {
  const child = spawn(
    process.execPath,
    ["--disable-warning=ExperimentalWarning", "src/node/cli/main.ts", "up", "--port", "0", "--json", ...args],
    { stdio: ["ignore", "pipe", "pipe"] },
  );
  running.push(child);
  return child;
}

async function summaryOf(child: ChildProcess): Promise<Summary> {
  const ended = once(child, "exit").then(([code]) =>
    Promise.reject(new Error(`kedge up ended with ${code}`)),
  );
  const [line] = await Promise.race([once(createInterface({ input: child.stdout! }), "line"), ended]);
  ended.catch(() => undefined);
  return JSON.parse(String(line)) as Summary;
}

async function stop(child: ChildProcess, signal: NodeJS.Signals): Promise<number | null> {
  child.kill(signal);
  const [code] = await once(child, "exit");
  return code as number | null;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

afterEach(() => {
  for (const child of running.splice(0)) child.kill("SIGKILL");
});

const CHAT = JSON.stringify({
  model: "mock",
  max_tokens: 4,
  messages: [{ role: "user", content: "Where are the tides?" }],
});

const MOCK = ["--disable-warning=ExperimentalWarning", "src/node/cli/main.ts", "mock-engine"];

/** A port that nobody listens on, for an engine that comes later. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

function chat(url: string, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: CHAT,
  });
}

it.each(["SIGINT", "SIGTERM"] as const)("serves mock engines and ends cleanly on %s", async (signal) => {
  const child = up("--profile", "zero");
  const { url, models, engines } = await summaryOf(child);
  expect(models).toEqual(["mock"]);
  expect(engines.map(({ events }) => events !== null)).toEqual([true, true]);
  const answer = await chat(url);
  expect(answer.status).toBe(200);
  expect(answer.headers.get("x-kedge-worker")).toMatch(/^mock-[01]\/0$/);
  expect(await stop(child, signal)).toBe(0);
  expect(engines.map(({ pid }) => isAlive(pid!))).toEqual([false, false]);
});

it("leaves no mock engine behind when it is killed", async () => {
  const child = up("--profile", "zero");
  const { engines } = await summaryOf(child);
  await stop(child, "SIGKILL");
  await expect.poll(() => engines.some(({ pid }) => isAlive(pid!)), { timeout: 5_000 }).toBe(false);
});

it("a signal that arrives twice, from a supervisor and from a parent, is one wish", async () => {
  const child = up("--profile", "zero");
  const { engines } = await summaryOf(child);
  child.kill("SIGTERM");
  expect(await stop(child, "SIGTERM")).toBe(0);
  expect(engines.map(({ pid }) => isAlive(pid!))).toEqual([false, false]);
});

it("serves engines that already run, under the given name, and leaves them running", async () => {
  const fleet = up("--mock", "1", "--profile", "zero");
  const { engines } = await summaryOf(fleet);
  const [engine] = engines;
  const child = up(
    "--engine",
    `${engine!.url},id=named,events=${engine!.events},model=gpu-agent/engines/mock/model`,
  );
  const { url, engines: listed } = await summaryOf(child);
  expect(listed).toMatchObject([{ worker: "named", url: engine!.url, pid: null }]);
  expect((await chat(url)).headers.get("x-kedge-worker")).toBe("named/0");
  expect(await stop(child, "SIGTERM")).toBe(0);
  expect((await fetch(`${engine!.url}/health`)).status).toBe(200);
});

it("serves with the engines that answer; one that is down joins when it comes up", async () => {
  const port = await freePort();
  const there = up("--mock", "1", "--profile", "zero");
  const { engines } = await summaryOf(there);
  const model = "model=gpu-agent/engines/mock/model";
  const late = `http://127.0.0.1:${port}`;
  const child = up(
    "--engine",
    `${engines[0]!.url},id=there,${model}`,
    "--engine",
    `${late},id=late,${model}`,
  );
  const { url, engines: listed } = await summaryOf(child);
  expect(listed).toMatchObject([
    { worker: "there", serving: true },
    { worker: "late", serving: false },
  ]);
  expect((await chat(url)).headers.get("x-kedge-worker")).toBe("there/0");
  const engine = spawn(process.execPath, [...MOCK, "--port", String(port), "--profile", "zero"], {
    stdio: "ignore",
  });
  running.push(engine);
  await expect
    .poll(async () => (await chat(url, { "x-kedge-worker": "late" })).status, { timeout: 10_000 })
    .toBe(200);
  expect(await stop(child, "SIGTERM")).toBe(0);
}, 30_000);

it("no engine that answers is an error", async () => {
  const child = up("--engine", `http://127.0.0.1:${await freePort()}`);
  let stderr = "";
  child.stderr!.on("data", (text) => {
    stderr += String(text);
  });
  const [code] = await once(child, "exit");
  expect(code).toBe(1);
  expect(stderr).toContain("No engine answers");
});

it("an engine whose model files are elsewhere is an error that says what to add", async () => {
  const fleet = up("--mock", "1", "--profile", "zero");
  const { engines } = await summaryOf(fleet);
  const child = up("--engine", engines[0]!.url.replace("127.0.0.1", "localhost"));
  let stderr = "";
  child.stderr!.on("data", (text) => {
    stderr += String(text);
  });
  const [code] = await once(child, "exit");
  expect(code).toBe(2);
  expect(stderr).toContain("model=FOLDER");
});

it("a port in use is one clear line", async () => {
  const first = up("--profile", "zero");
  const { url, engines } = await summaryOf(first);
  const child = up("--profile", "zero", "--port", new URL(url).port);
  let stderr = "";
  child.stderr!.on("data", (text) => {
    stderr += String(text);
  });
  const [code] = await once(child, "exit");
  expect(code).not.toBe(0);
  expect(stderr).toContain(`port ${new URL(url).port} is in use`);
  expect(stderr).not.toContain("    at ");
  expect(engines.every(({ pid }) => isAlive(pid!))).toBe(true);
});
