/** `kedge up` as a user runs it: a process that serves, says where, and leaves nothing behind. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { afterEach, expect, it } from "vitest";

interface Summary {
  readonly url: string;
  readonly models: string[];
  readonly engines: { worker: string; url: string; events: string | null; pid: number | null }[];
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
  const ended = once(child, "exit").then(([code]) => Promise.reject(new Error(`kedge up ended with ${code}`)));
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

function chat(url: string): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
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
