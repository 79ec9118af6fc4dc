/** `npm run dev:edge` as a developer runs it: one command, one URL that answers, and nothing left when it ends. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { createInterface } from "node:readline";
import { afterEach, expect, it } from "vitest";
import { describeWithServers, isAlive } from "../support/servers.ts";

interface Running {
  readonly url: string;
  readonly key: string;
  readonly model: string;
  readonly pids: Readonly<Record<string, number>>;
}

const PARTS = ["redis", "nats", "rest", "indexer", "agent-1", "agent-2", "gateway"];
const START_MS = 90_000;

const processes: ChildProcess[] = [];

function run(ports: string): { child: ChildProcess; stderr: () => string } {
  const child = spawn(
    process.execPath,
    [
      "--disable-warning=ExperimentalWarning",
      "scripts/dev-edge.ts",
      ...["--json", "--profile", "zero", "--ports", ports],
    ],
    { stdio: ["ignore", "pipe", "pipe"] },
  );
  processes.push(child);
  let stderr = "";
  child.stderr.on("data", (text: Buffer) => {
    stderr += text.toString();
  });
  return { child, stderr: () => stderr };
}

async function start(): Promise<{ child: ChildProcess; running: Running }> {
  const { child, stderr } = run("gateway=0");
  const ended = once(child, "exit").then(() => Promise.reject(new Error(stderr())));
  ended.catch(() => undefined);
  const [line] = await Promise.race([once(createInterface({ input: child.stdout! }), "line"), ended]);
  return { child, running: JSON.parse(String(line)) as Running };
}

function chat({ url, key, model }: Running): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({
      model,
      max_tokens: 8,
      stream: true,
      messages: [{ role: "user", content: "Where are the tides?" }],
    }),
  });
}

afterEach(() => {
  // A test that failed in between: its processes end as they do on Ctrl-C.
  for (const child of processes.splice(0)) child.kill("SIGINT");
});

describeWithServers("dev:edge", () => {
  it(
    "streams an answer through the Worker, and Ctrl-C leaves no process behind",
    async () => {
      const { child, running } = await start();
      expect(Object.keys(running.pids).sort()).toEqual([...PARTS].sort());
      const response = await chat(running);
      expect(response.status).toBe(200);
      expect(response.headers.get("content-type")).toContain("text/event-stream");
      expect(await response.text()).toMatch(/data: \{[\s\S]*data: \[DONE\]\n\n$/);
      child.kill("SIGINT");
      expect(await once(child, "exit")).toEqual([0, null]);
      expect(Object.entries(running.pids).filter(([, pid]) => isAlive(pid))).toEqual([]);
    },
    START_MS,
  );

  it(
    "a part that ends ends all the others, and its last words are told",
    async () => {
      const taken = createServer().listen(0, "127.0.0.1");
      await once(taken, "listening");
      const { port } = taken.address() as AddressInfo;
      const { child, stderr } = run(`gateway=0,redis=${port}`);
      expect(await once(child, "exit")).toEqual([1, null]);
      expect(stderr()).toMatch(/redis ended[\s\S]*in use/);
      taken.close();
    },
    START_MS,
  );
});
