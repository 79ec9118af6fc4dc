/** The ladder over a real Redis that is stopped, hangs, and begins again empty: no request fails (issue's fault list, gateway's side). */

import { afterAll, beforeAll, expect, it } from "vitest";
import { defineConfig } from "../../src/config/index.ts";
import { createGateway } from "../../src/gateway/index.ts";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { RedisStore, redisStoreOptions } from "../../src/store/redis/index.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { MODEL, realClock, registration } from "../e2e/gateway-fleet.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { slowLine } from "../support/slow-line.ts";
import { idle } from "./harness.ts";

const WORKERS = ["a", "b", "c"];
const TOKEN = "ladder";
/** What a request may cost beyond the deadline on a machine that others use too. */
const SLACK_MS = 400;
const DEADLINE_MS = 100;
/** Of a gateway that knows no fleet yet. */
const COLD_DEADLINE_MS = 500;

describeWithRedis("a view in Redis", () => {
  let redis: RunningServer;
  let rest: RestServer;

  beforeAll(async () => {
    redis = await startRedis();
    rest = await startRedisRest({
      redis: { host: "127.0.0.1", port: redis.port },
      token: TOKEN,
      port: 0,
      limits: { redisTimeoutMs: 1_000 },
    });
  });

  afterAll(async () => {
    await rest.close();
    await redis.stop("SIGKILL");
  });

  /** `view`: each test has its own. */
  async function gateway(view: string, url = rest.url) {
    const config = defineConfig({
      host: "127.0.0.1",
      explain: true,
      store: { url, token: TOKEN, view, deadlineMs: DEADLINE_MS },
    });
    // As hosts do: the gateway keeps requests to the deadline, later answers still tell of the fleet.
    const open = () =>
      new RedisStore({
        ...redisStoreOptions(config),
        deadlineMs: 500,
        clock: realClock,
        random: Math.random,
      });
    const registry = new Registry();
    const served: string[] = [];
    const app = createGateway({
      config,
      store: open(),
      transport: {
        send: async ({ worker }) => {
          served.push(worker);
          const body = new TextEncoder().encode('{"choices":[]}');
          return {
            status: 200,
            headers: { "content-type": "application/json" },
            body: {
              start: (sink) => {
                sink.data(body);
                sink.end();
              },
              resume: () => {},
              cancel: () => {},
            },
          };
        },
      },
      hasher: await createHasher(),
      clock: realClock,
      random: Math.random,
      log: { warn: () => {} },
      registry,
      directoryMaxAgeMs: 10_000,
    });
    const ask = async (prompt = "The quick brown fox jumps over the lazy dog. ".repeat(40)) => {
      const startMs = performance.now();
      const response = await app.request("/v1/chat/completions", {
        method: "POST",
        body: JSON.stringify({ model: MODEL, messages: [{ role: "user", content: prompt }] }),
        headers: { "content-type": "application/json" },
      });
      return {
        status: response.status,
        rung: response.headers.get("x-kedge-rung"),
        costMs: performance.now() - startMs,
      };
    };
    /** What the indexer does when agents register with an empty view. */
    const fill = async (workers: readonly string[] = WORKERS) => {
      const store = open();
      for (const worker of workers) {
        await store.register(registration(worker));
        idle(store, registration(worker));
      }
    };
    return { app, ask, fill, served };
  }

  const untilRung = async (ask: () => Promise<{ status: number; rung: string | null }>, rung: string) => {
    await expect
      .poll(
        async () => {
          const answer = await ask();
          expect(answer.status).toBe(200);
          return answer.rung;
        },
        { timeout: 10_000, interval: 50 },
      )
      .toBe(rung);
  };

  it("that stops, hangs and begins again empty fails no request and needs no restart", async () => {
    const { app, ask, fill, served } = await gateway("stopped");
    await fill();
    await untilRung(ask, "exact");

    await redis.stop();
    for (let i = 0; i < 20; i++) {
      const answer = await ask();
      expect([answer.status, answer.rung]).toEqual([200, "consistent-hash"]);
      expect(answer.costMs).toBeLessThan(DEADLINE_MS + SLACK_MS);
    }
    expect(await (await app.request("/ready")).json()).toEqual({ status: "ready", view: "unavailable" });

    // The same prompt kept to one worker while nobody knew who held it.
    expect(new Set(served.slice(-20)).size).toBe(1);

    redis = await startRedis({ port: redis.port });
    // The empty view knows nobody; last known workers serve until they have registered again.
    await untilRung(ask, "predicted");
    await fill();
    await untilRung(ask, "exact");

    redis.pause();
    const costs: number[] = [];
    for (let i = 0; i < 10; i++) {
      const answer = await ask();
      expect([answer.status, answer.rung]).toEqual([200, "consistent-hash"]);
      costs.push(answer.costMs);
    }
    expect(Math.max(...costs)).toBeLessThan(DEADLINE_MS + SLACK_MS);
    redis.resume();
    await untilRung(ask, "exact");
  }, 60_000);

  it("out of reach from the start is a 503 until it is there", async () => {
    const { ask, fill } = await gateway("cold");
    await fill();
    redis.pause();
    const answer = await ask();
    redis.resume();
    expect(answer.status).toBe(503);
    expect(answer.costMs).toBeLessThan(COLD_DEADLINE_MS + SLACK_MS);
    await expect.poll(async () => (await ask()).status, { timeout: 10_000, interval: 50 }).toBe(200);
  }, 30_000);

  it("that takes 200 ms costs a request the deadline, and what it says late is heard", async () => {
    const line = await slowLine(redis.port);
    const front = await startRedisRest({
      redis: { host: "127.0.0.1", port: line.port },
      token: TOKEN,
      port: 0,
    });
    const { ask, fill, served } = await gateway("slow", front.url);
    await fill();
    await untilRung(ask, "exact");
    line.delayMs = 200;
    for (let i = 0; i < 10; i++) {
      const answer = await ask();
      expect([answer.status, answer.rung]).toEqual([200, "consistent-hash"]);
      expect(answer.costMs).toBeLessThan(DEADLINE_MS + SLACK_MS);
    }
    const { fill: grow } = await gateway("slow");
    await grow(["late"]);
    await expect
      .poll(
        async () => {
          expect((await ask(`${served.length} ${"x".repeat(2_000)}`)).status).toBe(200);
          return served;
        },
        { timeout: 15_000, interval: 20 },
      )
      .toContain("late");
    line.delayMs = 0;
    await fill();
    await untilRung(ask, "exact");
    await front.close();
    line.close();
  }, 60_000);
});
