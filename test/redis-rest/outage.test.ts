/** Redis gone, silent or late: requests fail at once or within the time set, none runs twice, and all heals by itself. */

import { afterEach, beforeEach, expect, it } from "vitest";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { describeWithRedis, freePort, type RunningServer, startRedis } from "../support/servers.ts";
import { type Answer, call, eventually, post, TOKEN } from "./rig.ts";

const REDIS_TIMEOUT_MS = 500;
/** Far above the time set, far below what a hang would take. */
const BOUND_MS = 5_000;

const logged: string[] = [];

describeWithRedis("Redis away", () => {
  let redis: RunningServer;
  let rest: RestServer;

  beforeEach(async () => {
    logged.length = 0;
    redis = await startRedis();
    rest = await startRest(redis.port);
  });

  afterEach(async () => {
    await rest.close();
    await redis.stop("SIGKILL");
  });

  it("a stopped Redis gives 503 by every route, and works again once it is back", async () => {
    await post(rest, "/", ["SET", "k", "v"]);
    await redis.stop("SIGKILL");
    await eventually(() => !rest.ready);
    const startMs = performance.now();
    for (const answer of [
      await post(rest, "/", ["GET", "k"]),
      await call(rest, "/get/k"),
      await post(rest, "/pipeline", [
        ["GET", "k"],
        ["GET", "k"],
      ]),
      await post(rest, "/multi-exec", [["GET", "k"]]),
      await call(rest, "/subscribe/ch"),
    ]) {
      expect(answer).toMatchObject({
        status: 503,
        json: { error: expect.stringContaining("not reachable") },
      });
      expect(answer.headers.get("retry-after")).toBe("1");
    }
    expect(performance.now() - startMs).toBeLessThan(BOUND_MS);
    expect((await call(rest, "/health")).status).toBe(503);
    expect((await call(rest, "/metrics")).text).toContain("kedge_redis_rest_redis_up 0");
    redis = await startRedis({ port: redis.port });
    await eventually(() => rest.ready);
    expect((await post(rest, "/", ["GET", "k"])).json).toEqual({ result: null });
    expect((await call(rest, "/health")).status).toBe(200);
    expect(logged).toContain("info Redis is connected again");
    expect(logged.filter((line) => line.startsWith("warn")).length).toBeLessThan(5);
  });

  it("what was under way when Redis died fails, and is not sent again to the next one", async () => {
    redis.pause();
    const under = Promise.all([
      post(rest, "/", ["INCR", "n"]),
      post(rest, "/pipeline", [
        ["INCR", "n"],
        ["INCR", "n"],
      ]),
      post(rest, "/multi-exec", [
        ["INCR", "n"],
        ["INCR", "n"],
      ]),
    ]);
    await eventually(() => rest.stats().commands === 5);
    // Not by `stop`, which wakes it first.
    process.kill(redis.pid, "SIGKILL");
    for (const answer of await under)
      expect(answer).toMatchObject({ status: 503, json: { error: expect.stringContaining("unknown") } });
    await redis.stop("SIGKILL");
    redis = await startRedis({ port: redis.port });
    await eventually(() => rest.ready);
    expect((await post(rest, "/", ["GET", "n"])).json).toEqual({ result: null });
  });

  it("a Redis that falls silent costs no more than the time set, and is used again when it speaks", async () => {
    redis.pause();
    const startMs = performance.now();
    expect((await post(rest, "/", ["GET", "k"])).status).toBe(503);
    expect((await post(rest, "/", ["GET", "k"])).status).toBe(503);
    expect((await call(rest, "/health")).status).toBe(503);
    expect(performance.now() - startMs).toBeLessThan(BOUND_MS);
    redis.resume();
    await eventually(() => rest.ready);
    expect((await post(rest, "/", ["SET", "k", "v"])).json).toEqual({ result: "OK" });
  });

  it("under load through repeated crashes every request is answered, with a result or 503", async () => {
    const statuses = new Map<number, number>();
    let stop = false;
    const worker = async (): Promise<void> => {
      while (!stop) {
        const { status }: Answer = await post(rest, "/pipeline", [
          ["INCR", "c"],
          ["ECHO", "x"],
        ]);
        statuses.set(status, (statuses.get(status) ?? 0) + 1);
      }
    };
    const load = Promise.all(Array.from({ length: 8 }, worker));
    for (let i = 0; i < 3; i++) {
      const before = statuses.get(200) ?? 0;
      await eventually(() => (statuses.get(200) ?? 0) > before + 20);
      await redis.stop("SIGKILL");
      await eventually(() => !rest.ready);
      redis = await startRedis({ port: redis.port });
    }
    await eventually(() => rest.ready);
    stop = true;
    await load;
    expect([...statuses.keys()].filter((status) => status !== 200 && status !== 503)).toEqual([]);
  });

  it("subscribers learn that Redis went: their stream ends", async () => {
    const response = await fetch(`${rest.url}/subscribe/ch`, {
      headers: { authorization: `Bearer ${TOKEN}` },
    });
    const text = response.text();
    await redis.stop("SIGKILL");
    expect(await text).toContain("data: subscribe,ch,1");
  });

  it("it starts without Redis, and serves as soon as there is one", async () => {
    const port = await freePort();
    const early = await startRest(port);
    expect(early.ready).toBe(false);
    expect((await post(early, "/", ["PING"])).status).toBe(503);
    const late = await startRedis({ port });
    await eventually(() => early.ready);
    expect((await post(early, "/", ["PING"])).json).toEqual({ result: "PONG" });
    await early.close();
    await late.stop();
  });
});

function startRest(port: number): Promise<RestServer> {
  return startRedisRest({
    redis: `redis://127.0.0.1:${port}`,
    token: TOKEN,
    port: 0,
    limits: { redisTimeoutMs: REDIS_TIMEOUT_MS },
    log: (level, message) => logged.push(`${level} ${message}`),
  });
}
