/** `kedge agent` as a user runs it: real nats-server, processes and sockets; what gateways and indexers see of a node, and what is left of it. */

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, expect, it } from "vitest";
import { defineConfig, type KedgeConfigInput } from "../../src/config/index.ts";
import { connectNatsBus } from "../../src/events/nats/index.ts";
import type { LoadReport } from "../../src/fleet/types.ts";
import { createGateway } from "../../src/gateway/index.ts";
import { Indexer } from "../../src/indexer/index.ts";
import { startAgentHost } from "../../src/node/agent-host.ts";
import { createAgentTransport } from "../../src/node/agent-transport.ts";
import { parseEngineOption } from "../../src/node/engine-option.ts";
import { serveGateway } from "../../src/node/server.ts";
import type { Plan } from "../../src/plan/index.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { createPlanSigner } from "../../src/plan/sign.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { describeWithNats, freePort, startNats } from "../support/servers.ts";
import { realClock } from "./gateway-fleet.ts";

interface Summary {
  readonly url: string;
  readonly agent: { readonly id: string; readonly url: string };
  readonly engines: { worker: string; url: string; serving: boolean; events: string | null; pid: number }[];
}

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

const MAIN = ["--disable-warning=ExperimentalWarning", "src/node/cli/main.ts"];

function kedge(...args: string[]): ChildProcess {
  const child = spawn(process.execPath, [...MAIN, ...args], { stdio: ["ignore", "pipe", "pipe"] });
  closing.push(() => child.kill("SIGKILL"));
  return child;
}

async function firstLine(child: ChildProcess): Promise<string> {
  const errors: string[] = [];
  child.stderr!.on("data", (text) => errors.push(String(text)));
  const ended = once(child, "exit").then(([code]) =>
    Promise.reject(new Error(`it ended with ${code}: ${errors.join("")}`)),
  );
  ended.catch(() => undefined);
  const [line] = await Promise.race([once(createInterface({ input: child.stdout! }), "line"), ended]);
  return String(line);
}

const summaryOf = async (child: ChildProcess) => JSON.parse(await firstLine(child)) as Summary;

async function stop(child: ChildProcess, signal: NodeJS.Signals = "SIGTERM"): Promise<number | null> {
  child.kill(signal);
  const [code] = await once(child, "exit");
  return code as number | null;
}

/** A real process takes its time; waited for within a bound. */
async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  await expect.poll(condition, { timeout: 10_000, interval: 20 }).toBe(true);
}

/** The rest of a site: NATS, an indexer over a memory view, and a gateway whose keys agents read at its URL. */
async function startSite() {
  const nats = await startNats();
  closing.push(() => nats.stop());
  const keys = await newPlanKeys();
  const signer = await createPlanSigner({ keys: JSON.stringify(keys.privateJwks) });
  const store = new MemoryStore({ now: () => performance.now(), random: Math.random });
  const bus = connectNatsBus({
    servers: [nats.url],
    prefix: "kedge",
    stream: "KEDGE_KV",
    place: { region: "eu", cluster: "c1", node: "indexer" },
    role: "indexer",
    name: "indexer",
    timers: realClock,
    random: Math.random,
    onError: () => undefined,
  });
  const loads: LoadReport[] = [];
  bus.onLoad((report) => loads.push(report));
  const indexer = new Indexer({
    bus,
    store,
    now: () => performance.now(),
    name: "test",
    onError: () => undefined,
  });
  indexer.start();
  const tick = setInterval(() => indexer.tick(), 200);
  closing.push(async () => {
    clearInterval(tick);
    indexer.stop();
    await bus.close();
  });
  const remote = createAgentTransport({ signer });
  const app = createGateway({
    config: defineConfig({ port: 0, explain: true }),
    store,
    transport: remote,
    hasher: await createHasher(),
    clock: realClock,
    random: Math.random,
    log: { warn: () => undefined },
    registry: new Registry(),
    jwks: signer.jwks,
  });
  const gateway = await serveGateway({ app, host: "127.0.0.1", port: 0, drainTimeoutMs: 0 });
  closing.push(async () => {
    await gateway.close();
    remote.close();
  });
  const jwks = `${gateway.url}/.well-known/jwks.json`;
  const agent = (...args: string[]) =>
    kedge(
      ...["agent", "--json", "--port", "0", "--nats-url", nats.url, "--plan-jwks", jwks],
      ...["--region", "eu", "--cluster", "c1", "--node", "n1", "--profile", "zero", ...args],
    );
  const chat = (content: string, headers: Record<string, string> = {}, extra: object = {}) =>
    fetch(`${gateway.url}/v1/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify({ model: "mock", max_tokens: 4, messages: [{ role: "user", content }], ...extra }),
    });
  return { nats, store, loads, agent, chat, remote };
}

const LONG = "The quick brown fox jumps over the lazy dog. ".repeat(40);

describeWithNats("kedge agent", () => {
  it("registers its engines, serves plans, reports load and caches over NATS, and takes its leave", async () => {
    const { store, loads, agent, chat } = await startSite();
    const child = agent("--mock", "2");
    const summary = await summaryOf(child);
    expect(summary.agent).toEqual({ id: "eu/c1/n1", url: summary.url });
    expect(summary.engines.map(({ worker }) => worker)).toEqual(["eu/c1/n1/mock-0", "eu/c1/n1/mock-1"]);
    await until(() => store.fleet().length === 2);
    expect(store.fleet()[0]).toMatchObject({
      worker: "eu/c1/n1/mock-0",
      agent: summary.agent,
      region: "eu",
      cluster: "c1",
      node: "n1",
      kvEvents: true,
    });

    const first = await chat(LONG);
    expect(first.status).toBe(200);
    const worker = first.headers.get("x-kedge-worker");
    await first.text();
    // What the engine has cached is in the view, so the same prompt goes to the same worker by what is known of it.
    await until(async () => {
      const again = await chat(LONG);
      const { usage } = (await again.json()) as {
        usage: { prompt_tokens_details: { cached_tokens: number } };
      };
      return (
        again.headers.get("x-kedge-worker") === worker &&
        Number(again.headers.get("x-kedge-overlap-tokens")) > 300 &&
        usage.prompt_tokens_details.cached_tokens > 300
      );
    });
    const streamed = await chat(LONG, {}, { stream: true, max_tokens: 8 });
    const text = await streamed.text();
    expect(text.match(/^data: /gm)!.length).toBeGreaterThanOrEqual(8);
    expect(text.trimEnd().endsWith("data: [DONE]")).toBe(true);
    expect(text).not.toContain('"usage":{');
    await until(() => loads.some(({ admitted }) => admitted.length > 0));
    await until(() => store.fleet().every(({ reserved }) => reserved.requests === 0));

    expect(await stop(child)).toBe(0);
    await until(() => store.fleet().length === 0);
    for (const { pid } of summary.engines) expect(() => process.kill(pid, 0)).toThrow();
  });

  it("lets a running stream end, while the fleet knows already that it leaves", async () => {
    const { store, agent, chat } = await startSite();
    const child = agent("--mock", "1", "--profile", "8b-h100");
    await summaryOf(child);
    await until(() => store.fleet().length === 1);
    const response = await chat("hello", {}, { stream: true, max_tokens: 100 });
    const reader = response.body!.getReader();
    let text = new TextDecoder().decode((await reader.read()).value);
    const stopped = stop(child, "SIGINT");
    await until(() => store.fleet().length === 0);
    for (let part = await reader.read(); !part.done; part = await reader.read())
      text += new TextDecoder().decode(part.value);
    expect(text.trimEnd().endsWith("data: [DONE]")).toBe(true);
    expect(await stopped).toBe(0);
  });

  it("killed and started again, serves under its new address, and plans for its former life are void", async () => {
    const { store, agent, chat, remote } = await startSite();
    const first = agent("--mock", "1");
    await summaryOf(first);
    await until(() => store.fleet().length === 1);
    const before = store.fleet()[0]!;
    await stop(first, "SIGKILL");
    const failed = await chat("hello");
    expect(failed.status).toBe(502);
    expect(await failed.json()).toMatchObject({ error: { code: "upstream_unreachable" } });

    const second = agent("--mock", "1");
    const { agent: address } = await summaryOf(second);
    await until(() => store.fleet()[0]?.agent?.url === address.url);
    await until(async () => (await chat("hello")).status === 200);
    const plan: Plan = {
      ...{ agent: address, requestId: "late", model: "mock", worker: before.worker, rank: 0 },
      ...{ incarnation: before.incarnation, role: "aggregated", deadlineMs: null, dropUsage: false },
      load: { promptTokens: 1, overlapTokens: 0, blocks: 1 },
      cacheSalt: null,
    };
    const request = {
      path: "/v1/chat/completions",
      body: new TextEncoder().encode("{}"),
      headers: { "x-request-id": "late" },
    };
    await expect(remote.send(plan, request, new AbortController().signal)).rejects.toMatchObject({
      code: "upstream_busy",
    });
    expect(await stop(second)).toBe(0);
  });

  it("is there before its engine and before NATS, and joins when they come", async () => {
    const { nats, store, agent, chat } = await startSite();
    await nats.stop();
    const port = await freePort();
    const model = "model=gpu-agent/engines/mock/model";
    const child = agent(
      "--engine",
      `http://127.0.0.1:${port},${model}`,
      "--engine",
      `http://127.0.0.1:1,id=never,${model}`,
    );
    const { engines, url } = await summaryOf(child);
    expect(engines).toMatchObject([
      { worker: `eu/c1/n1/127.0.0.1:${port}`, serving: false },
      { worker: "never", serving: false },
    ]);
    expect((await fetch(`${url}/ready`)).status).toBe(503);
    kedge("mock-engine", "--port", String(port), "--profile", "zero");
    await until(async () => (await fetch(`${url}/ready`)).status === 200);
    const again = await startNats({ port: nats.port });
    closing.push(() => again.stop());
    await until(() => store.fleet().length === 1);
    expect((await chat("hello")).status).toBe(200);
    expect(await stop(child)).toBe(0);
  });

  it("ends at once when it is stopped before anything has come", async () => {
    const { nats, agent } = await startSite();
    await nats.stop();
    const child = agent("--engine", "http://127.0.0.1:1,model=gpu-agent/engines/mock/model");
    await summaryOf(child);
    expect(await stop(child)).toBe(0);
  });
});

it("kedge agent without engines says what to add", async () => {
  const child = kedge("agent", "--nats-url", "ws://127.0.0.1:1", "--plan-jwks", "x");
  await expect(firstLine(child)).rejects.toThrow(/ended with 2: kedge: config_invalid: .*--engine/s);
});

it.each<[string, KedgeConfigInput, string]>([
  ["no keys", { plan: { jwks: null } }, "kedge plan-key"],
  ["a file of keys that is not there", { plan: { jwks: "no-such-file" } }, "KEDGE_PLAN_JWKS"],
  [
    "private keys",
    { plan: { jwks: '{"keys":[{"kty":"OKP","crv":"Ed25519","x":"A","d":"B"}]}' } },
    "public half",
  ],
  ["no NATS", { nats: { url: null } }, "KEDGE_NATS_URL"],
  ["NATS's other port", { nats: { url: "nats://127.0.0.1:4222" } }, "ws://"],
  ["a port in use", {}, "choose another with --port"],
])("an agent with %s is an error that says what to do", async (_name, settings, told) => {
  const other = createServer().listen(0, "127.0.0.1");
  await once(other, "listening");
  closing.push(() => other.close());
  const config = defineConfig({
    port: (other.address() as AddressInfo).port,
    nats: { url: "ws://127.0.0.1:1" },
    plan: { jwks: JSON.stringify((await newPlanKeys()).publicJwks) },
    ...settings,
  });
  const engine = parseEngineOption("http://127.0.0.1:1,model=gpu-agent/engines/mock/model");
  const starting = startAgentHost({ config, engines: [engine], mock: null, model: {}, log: () => undefined });
  await expect(starting).rejects.toMatchObject({
    code: "config_invalid",
    message: expect.stringContaining(told),
  });
});

it("kedge plan-key makes pairs that fit, and keeps the old public half when it rotates", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kedge-keys-"));
  closing.push(() => rmSync(folder, { recursive: true }));
  await firstLine(kedge("plan-key", "--write", folder));
  const [key, jwks] = [join(folder, "plan-key.json"), join(folder, "plan-jwks.json")];
  expect(statSync(key).mode & 0o777).toBe(0o600);
  expect(readFileSync(jwks, "utf8")).not.toContain('"d"');
  const old = await createPlanSigner({ keys: readFileSync(key, "utf8") });
  const rotated = JSON.parse(await firstLine(kedge("plan-key", "--json", "--rotate", key)));
  const next = await createPlanSigner({ keys: JSON.stringify(rotated.private) });
  expect(next.jwks.keys).toEqual(rotated.public.keys);
  expect(rotated.public.keys.slice(1)).toEqual(old.jwks.keys);
});

it("kedge plan-key writes where it was called, makes the folder, and replaces a key by its successor only", async () => {
  const folder = mkdtempSync(join(tmpdir(), "kedge-keys-"));
  closing.push(() => rmSync(folder, { recursive: true }));
  const run = (...args: string[]) =>
    spawnSync(
      process.execPath,
      [join(process.cwd(), "bin", "kedge.js"), "plan-key", "--write", "./keys", ...args],
      {
        cwd: folder,
        encoding: "utf8",
      },
    );
  const key = join(folder, "keys", "plan-key.json");
  expect(run()).toMatchObject({ status: 0 });
  const first = readFileSync(key, "utf8");
  const again = run();
  expect([again.status, again.stderr]).toEqual([2, expect.stringContaining("--rotate keys/plan-key.json")]);
  expect(readFileSync(key, "utf8")).toBe(first);
  chmodSync(key, 0o644);
  expect(run("--rotate", "./keys/plan-key.json")).toMatchObject({ status: 0 });
  expect(JSON.parse(readFileSync(key, "utf8")).keys[1]).toEqual(publicHalf(first));
  expect(statSync(key).mode & 0o777).toBe(0o600);
});

function publicHalf(jwks: string): object {
  const { d, ...half } = JSON.parse(jwks).keys[0];
  return half;
}
