/** `kedge gateway` as a user runs it: missing settings named, signed plans sent, processes replaced, a clean end. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { defineConfig } from "../../src/config/index.ts";
import type { KedgeError } from "../../src/errors/index.ts";
import { startGatewayHost } from "../../src/node/gateway-host.ts";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { DOOR_HEADER } from "../../src/plan/door.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { createPlanVerifier } from "../../src/plan/verify.ts";
import { RedisStore, redisStoreOptions } from "../../src/store/redis/index.ts";
import { MODEL, realClock, registration } from "../e2e/gateway-fleet.ts";
import { type Script, type ScriptedUpstream, startUpstream } from "../e2e/gateway-upstream.ts";
import { describeWithRedis, freePort, type RunningServer, startRedis } from "../support/servers.ts";
import { idle } from "./harness.ts";

const KEDGE = ["--disable-warning=ExperimentalWarning", "src/node/cli/main.ts"];
const TOKEN = "host-test";
const keys = await newPlanKeys();
const running: ChildProcess[] = [];

afterEach(() => {
  for (const child of running.splice(0)) child.kill("SIGKILL");
});

interface Summary {
  readonly url: string;
  readonly processes: number[];
}

function gateway(args: readonly string[], env: Record<string, string> = {}) {
  const child = spawn(process.execPath, [...KEDGE, "gateway", "--port", "0", "--json", ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { PATH: process.env.PATH ?? "", ...env },
  });
  running.push(child);
  let told = "";
  child.stderr!.on("data", (text) => {
    told += String(text);
  });
  const ended = once(child, "exit").then(([code]) => code as number | null);
  return {
    child,
    ended,
    stderr: () => told,
    ready: async (): Promise<Summary> => {
      const [line] = await Promise.race([
        once(createInterface({ input: child.stdout! }), "line"),
        ended.then((code) => {
          throw new Error(`kedge gateway ended with ${code}: ${told}`);
        }),
      ]);
      return JSON.parse(String(line)) as Summary;
    },
  };
}

let answering: Promise<void> = Promise.resolve();

/** An agent that takes every plan. */
const door: Script = async (response) => {
  await answering;
  response.writeHead(200, { "content-type": "application/json", [DOOR_HEADER]: "1" });
  response.end('{"choices":[]}');
};

const ask = (url: string) =>
  fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "hello" }] }),
  });

describe("settings", () => {
  it("that are missing are all named, each with its flag and where it comes from", async () => {
    const { ended, stderr } = gateway([]);
    expect(await ended).toBe(2);
    for (const name of [
      "KEDGE_REDIS_URL (--redis-url)",
      "KEDGE_REDIS_TOKEN",
      "KEDGE_PLAN_KEY (--plan-key)",
      "kedge plan-key",
    ]) {
      expect(stderr()).toContain(name);
    }
    expect(stderr()).not.toContain("    at ");
  });

  it("that cannot be read or used are named, and keys are not repeated", async () => {
    const good = JSON.stringify(keys.privateJwks);
    const refusal = async (signingKey: string, seedFleet: string | null = null) => {
      const config = defineConfig({
        port: 0,
        store: { url: "http://127.0.0.1:9", token: "t" },
        plan: { signingKey },
        fallback: { seedFleet },
      });
      const host = startGatewayHost({ config, log: () => {} });
      return host.then(
        () => "started",
        ({ code, message }: KedgeError) => `${code}: ${message}`,
      );
    };
    expect(await refusal("/nowhere/secret-path")).toMatch(/^config_invalid: KEDGE_PLAN_KEY is neither/);
    expect(await refusal('{"kty":"oct","k":"topsecret"}')).toMatch(
      /^config_invalid: Plan keys: (?!.*topsecret)/,
    );
    expect(await refusal(good, "[{}]")).toMatch(/^config_invalid: KEDGE_SEED_FLEET.*\[0\]\.worker/);
    expect(await refusal(good, "/nowhere")).toMatch(/^config_invalid: KEDGE_SEED_FLEET is neither/);
  });

  it("that no process of several can use end them all with one line", async () => {
    const { ended, stderr } = gateway(
      ["--redis-url", "http://127.0.0.1:9", "--redis-token", "t", "--processes", "2", "--seed-fleet", "[{}]"],
      { KEDGE_PLAN_KEY: JSON.stringify(keys.privateJwks) },
    );
    expect([await ended, stderr()]).toEqual([2, expect.stringContaining("KEDGE_SEED_FLEET")]);
    expect(stderr().match(/KEDGE_SEED_FLEET/g)).toHaveLength(1);
    expect(stderr()).not.toContain("    at ");
  }, 30_000);
});

describe("a gateway whose view is out of reach", () => {
  it("serves its seed fleet; its processes end with the first, however that ends", async () => {
    const agent = await startUpstream(door);
    const seed = JSON.stringify([registration("s", { agent: { id: "n1", url: agent.url } })]);
    const port = await freePort();
    const { ready, child, ended } = gateway(
      ["--redis-url", `http://127.0.0.1:${port}`, "--redis-token", "t", "--processes", "2"],
      { KEDGE_PLAN_KEY: JSON.stringify(keys.privateJwks), KEDGE_SEED_FLEET: seed },
    );
    const { url, processes } = await ready();
    expect(processes).toHaveLength(2);
    for (let i = 0; i < 8; i++) {
      const answer = await ask(url);
      expect([answer.status, answer.headers.get("x-kedge-rung")]).toEqual([200, "two-choices"]);
    }
    expect(await (await fetch(`${url}/ready`)).json()).toMatchObject({ view: "unavailable" });
    child.kill("SIGKILL");
    await ended;
    await expect.poll(() => processes.some(isAlive), { timeout: 5_000 }).toBe(false);
    await agent.close();
  }, 30_000);
});

describeWithRedis("kedge gateway", () => {
  let redis: RunningServer;
  let rest: RestServer;
  let agent: ScriptedUpstream;
  let env: Record<string, string>;
  let store: RedisStore;

  beforeAll(async () => {
    redis = await startRedis();
    rest = await startRedisRest({ redis: { host: "127.0.0.1", port: redis.port }, token: TOKEN, port: 0 });
    agent = await startUpstream(door);
    env = {
      KEDGE_REDIS_URL: rest.url,
      KEDGE_REDIS_TOKEN: TOKEN,
      KEDGE_PLAN_KEY: JSON.stringify(keys.privateJwks),
      KEDGE_STORE_DEADLINE_MS: "1000",
    };
    const config = defineConfig({ store: { url: rest.url, token: TOKEN, deadlineMs: 2_000 } });
    store = new RedisStore({ ...redisStoreOptions(config), clock: realClock, random: Math.random });
  });

  afterAll(async () => {
    await agent.close();
    await rest.close();
    await redis.stop("SIGKILL");
  });

  const register = async () => {
    const one = registration("w", { agent: { id: "n1", url: agent.url } });
    await store.register(one);
    idle(store, one);
  };

  it("sends plans that its published keys verify, and its drained end is clean", async () => {
    await register();
    const { ready, child, ended, stderr } = gateway([], env);
    const { url, processes } = await ready();
    expect(processes).toEqual([child.pid]);
    expect((await ask(url)).status).toBe(200);
    const jwks = await (await fetch(`${url}/.well-known/jwks.json`)).text();
    const { authorization } = agent.requests.at(-1)!.headers;
    const verifier = await createPlanVerifier({ jwks, audience: "n1", now: Date.now, onError: () => {} });
    const requestId = String(agent.requests.at(-1)!.headers["x-request-id"]);
    const token = String(authorization).replace(/^Bearer /, "");
    expect(await verifier.verify(token, requestId)).toMatchObject({ worker: "w", model: MODEL });
    child.kill("SIGINT");
    expect(await ended).toBe(0);
    expect(stderr()).toContain("stopping");
  }, 30_000);

  it("several processes share the port and one page of metrics; one that dies is replaced; a reset happens once", async () => {
    await register();
    await store.fleet(0);
    const { epoch } = store;
    const { ready, child, ended, stderr } = gateway(["--processes", "2", "--router-reset-states"], env);
    const { url, processes } = await ready();
    expect(processes).toHaveLength(2);
    expect(await store.fleet(0)).toEqual([]);
    const begun = store.epoch;
    expect(begun).not.toBe(epoch);
    await register();
    const count = async () => {
      const page = await (await fetch(`${url}/metrics`)).text();
      const lines = [...page.matchAll(/^kedge_requests_total\{process="(\d)",.*status="200"\} (\d+)$/gm)];
      expect(page.match(/# TYPE kedge_requests_total/g)).toHaveLength(1);
      return { total: lines.reduce((sum, [, , n]) => sum + Number(n), 0), from: lines.map(([, one]) => one) };
    };
    // A connection stays with its process: each request on one of its own.
    const lone = () =>
      fetch(`${url}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", connection: "close" },
        body: JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "hello" }] }),
      });
    // A process sees a worker at the latest when its own copy of the fleet is 250 ms old.
    let answered = 0;
    const bothAnswer = async () => {
      for (let i = 0; i < 8; i++) {
        if ((await lone()).status !== 200) return false;
        answered++;
      }
      return (await count()).from.length === 2;
    };
    await expect.poll(bothAnswer, { timeout: 10_000 }).toBe(true);
    for (let i = 0; i < 19; i++) expect((await lone()).status).toBe(200);
    const before = await count();
    expect(before.total).toBe(answered + 19);
    expect([...before.from].sort()).toEqual(["0", "1"]);
    process.kill(processes[0]!, "SIGKILL");
    await expect.poll(stderr, { timeout: 5_000 }).toContain("another starts");
    for (let i = 0; i < 6; i++) expect((await lone()).status).toBe(200);
    await expect
      .poll(
        async () => {
          for (let i = 0; i < 4; i++) await lone();
          return [...(await count()).from].sort();
        },
        { timeout: 15_000, interval: 200 },
      )
      .toEqual(["0", "1"]);
    await store.fleet(0);
    expect(store.epoch).toBe(begun);
    // What is under way at the end is answered.
    let go = (): void => {};
    answering = new Promise((resolve) => {
      go = resolve;
    });
    const arrived = agent.requests.length;
    const last = lone();
    await agent.arrival(arrived);
    child.kill("SIGTERM");
    await expect
      .poll(
        () =>
          fetch(`${url}/live`).then(
            () => true,
            () => false,
          ),
        { timeout: 5_000 },
      )
      .toBe(false);
    go();
    expect((await last).status).toBe(200);
    expect(await ended).toBe(0);
    expect(isAlive(processes[1]!)).toBe(false);
  }, 60_000);
});

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
