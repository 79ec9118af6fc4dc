/** The view is lost or slow: nobody's request fails, none waits longer than the deadline, and the view comes back by itself. */

import { createHash } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Redis } from "ioredis";
import { expect, it, onTestFinished, vi } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { type SlowLine, slowLine } from "../support/slow-line.ts";
import { bundleWorker, runWorker } from "../support/worker-bundle.ts";
import { type Answer, ask, Load, median } from "./load.ts";
import { DEADLINE_MS, Plane } from "./plane.ts";
import { promptOf } from "./prompts.ts";

vi.setConfig({ testTimeout: 180_000 });

/** What a request may cost beyond the deadline on a machine that others use too. */
const SLACK_MS = 1_000;
const KEY = "sk-faults";
/** An indexer compares every ten seconds, and then waits for two that a batch may be late; the rest is this machine's. */
const TOLD_AGAIN_WITHIN_MS = 20_000;

const rungsOf = (answers: readonly Answer[]) => [...new Set(answers.map(({ rung }) => rung))];

/** In workerd, in front of the same agents. */
async function startWorkerGateway(plane: Plane): Promise<string> {
  const worker = await runWorker(await bundleWorker("workers/gateway/index.ts"), {
    ...plane.workerSettings,
    KEDGE_API_KEYS: createHash("sha256").update(KEY).digest("hex"),
  });
  plane.closeAtEnd(() => worker.close());
  return worker.url;
}

async function save(port: number): Promise<void> {
  const client = new Redis(port, "127.0.0.1");
  await client.save();
  client.disconnect();
}

describeWithServers("Redis", () => {
  it("stopped and started empty under load: no request fails, and the view fills again by itself", async () => {
    const plane = await Plane.start();
    const gateways = [await plane.gateway(), await plane.gateway()];
    const urls = [...gateways.map(({ url }) => url), await startWorkerGateway(plane)];
    const headers = { authorization: `Bearer ${KEY}` };
    await plane.isExact(gateways);
    await plane.until("the Worker knows the fleet", async () => {
      return (await ask(urls[2]!, promptOf(1, 1), { headers })).rung === "exact";
    });
    const load = new Load(urls, { clients: 6, headers });
    await plane.until("under load", () => load.answers.length > 100);

    await plane.redis.stop("SIGKILL");
    const downAtMs = performance.now();
    await plane.until("many requests without a view", () => load.since(downAtMs).length > 200);
    expect(await gateways[0]!.metric("kedge_view_unavailable")).toBe(1);
    const unkeyed = await gateways[0]!.ask(Array.from({ length: 100 }, (_, i) => 100 + i));
    expect(unkeyed).toMatchObject({ wrong: null, rung: "two-choices" });
    const upAtMs = performance.now();
    await plane.restartRedis();
    await plane.until("exact under load", () => load.isOn("exact", upAtMs));
    console.log(`exact again ${Math.round(performance.now() - upAtMs)} ms after an empty Redis was there`);
    await load.stop();

    expect(load.wrong).toEqual([]);
    const without = load.since(downAtMs).filter(({ sentAtMs, costMs }) => sentAtMs + costMs < upAtMs);
    expect(rungsOf(without)).toEqual(["consistent-hash"]);
    expect(await gateways[0]!.metric("kedge_view_unavailable")).toBe(0);
    await plane.indexIsTrue(load.prompts);
    await plane.isExact(gateways);
    await plane.promisesAreKept(gateways);
  });

  it("or its REST door slow, hanging or gone: a request costs at most the deadline more, and nothing is lost", async () => {
    let line!: SlowLine;
    const plane = await Plane.start({
      lineToRedis: async (port) => {
        line = await slowLine(port);
        return line.port;
      },
    });
    plane.closeAtEnd(async () => line.close());
    const gateway = await plane.gateway();
    await plane.isExact([gateway]);
    const load = new Load([gateway.url]);
    await plane.until("under load", () => load.answers.length > 60);
    const before = load.answers.map(({ costMs }) => costMs);
    const usual = { median: median(before), worst: Math.max(...before) };

    const slowed = (delayMs: number) => {
      line.delayMs = delayMs;
    };
    const faults = [
      ["Redis 200 ms slow", () => slowed(200), () => slowed(0)],
      ["Redis stopped in its tracks", () => plane.redis.pause(), () => plane.redis.resume()],
      ["redis-rest killed", () => plane.rest.stop(), () => plane.rest.start()],
    ] as const;
    for (const [fault, begin, end] of faults) {
      await begin();
      const beganAtMs = performance.now();
      await plane.until(`many requests, ${fault}`, () => load.since(beganAtMs).length > 120);
      const endedAtMs = performance.now();
      await end();
      const during = load.since(beganAtMs).filter(({ sentAtMs, costMs }) => sentAtMs + costMs < endedAtMs);
      const costs = during.map(({ costMs }) => costMs);
      console.log(
        `${fault}: median ${usual.median.toFixed(1)} → ${median(costs).toFixed(1)} ms, worst ${usual.worst.toFixed(0)} → ${Math.max(...costs).toFixed(0)} ms`,
      );
      expect(rungsOf(during)).toContain("consistent-hash");
      expect(median(costs)).toBeLessThan(usual.median + DEADLINE_MS);
      expect(Math.max(...costs)).toBeLessThan(usual.worst + DEADLINE_MS + SLACK_MS);
      await plane.until(`exact after ${fault}`, () => load.isOn("exact", endedAtMs));
    }
    await load.stop();
    expect(load.wrong).toEqual([]);
    await plane.indexIsTrue(load.prompts);
    await plane.promisesAreKept([gateway]);
  });

  it("back with an older dump: what it has forgotten is told again, what it should have forgotten is", async () => {
    const folder = mkdtempSync(join(tmpdir(), "kedge-dump-"));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const plane = await Plane.start({ redis: ["--dir", folder] });
    const gateways = [await plane.gateway(), await plane.gateway()];
    await plane.isExact(gateways);
    const urls = gateways.map(({ url }) => url);
    const old = new Load(urls);
    await plane.until("something to dump", () => old.answers.length > 50);
    await old.stop();
    await save(plane.redis.port);
    const { worker, process } = plane.engines[0]!;
    const before = plane.incarnationOf(await plane.fleet(), worker);
    await process.stop();
    await process.start();
    await plane.until("its new life is in the fleet", async () => {
      const now = plane.incarnationOf(await plane.fleet(), worker);
      return now !== null && now !== before;
    });
    const load = new Load(urls, { families: 7 });
    await plane.until("much that is not in the dump", () => load.answers.length > 150);
    await load.stop();
    const prompts = [...old.prompts, ...load.prompts];
    await plane.indexIsTrue(prompts);

    await plane.redis.stop("SIGKILL");
    const upAtMs = performance.now();
    await plane.restartRedis(["--dir", folder]);
    await plane.indexIsTrue(prompts, plane.engines, TOLD_AGAIN_WITHIN_MS);
    console.log(`true ${Math.round(performance.now() - upAtMs)} ms after an older view was there`);
    expect([...old.wrong, ...load.wrong]).toEqual([]);
    await plane.isExact(gateways);
    await plane.promisesAreKept(gateways);
  });
});
