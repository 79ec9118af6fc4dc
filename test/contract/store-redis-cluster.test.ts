/** A view with several shards works on Redis Cluster: every script stays within the node that its key belongs to. */

import type { Redis } from "ioredis";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { connect, redisStore } from "../support/redis-store.ts";
import { describeWithRedis, freePort, type RunningServer, startRedis } from "../support/servers.ts";
import { History, HORIZON_MS } from "./store-histories.ts";

const HALF = 8_192;

describeWithRedis("view on a cluster of two", () => {
  const nodes: RunningServer[] = [];
  const direct: Redis[] = [];
  let rest: RestServer | undefined;
  beforeAll(async () => {
    const buses: number[] = [];
    for (let i = 0; i < 2; i++) {
      buses.push(await freePort());
      const node = await startRedis({ args: ["--cluster-enabled", "yes", "--cluster-port", `${buses[i]}`] });
      nodes.push(node);
      direct.push(connect(node.port));
      await direct[i].cluster("ADDSLOTSRANGE", i * HALF, (i + 1) * HALF - 1);
      await direct[i].call("CLUSTER", "SET-CONFIG-EPOCH", `${i + 1}`);
    }
    await direct[0].call("CLUSTER", "MEET", "127.0.0.1", `${nodes[1].port}`, `${buses[1]}`);
    await joined(direct);
    const cluster = nodes.map(({ port }) => `redis://127.0.0.1:${port}`);
    rest = await startRedisRest({ redis: { cluster }, token: "cluster", port: 0 });
  });
  afterAll(async () => {
    await rest?.close();
    for (const redis of direct) redis.disconnect();
    for (const node of nodes) await node.stop();
  });

  for (const shards of [1, 3]) {
    it(`answers as a naive model does, with ${shards} shards`, async () => {
      for (let seed = 1; seed <= 3; seed++) {
        let nowMs = 1_800_000_000_000;
        const options = { url: rest!.url, token: "cluster", shards, horizonMs: HORIZON_MS };
        const store = redisStore({ ...options, viewNowMs: () => nowMs });
        const advance = (ms: number) => {
          nowMs += ms;
        };
        await new History(seed, { store, advance, close: () => undefined }).run(60);
        await store.reset();
        expect(await store.fleet()).toEqual([]);
      }
    });
  }

  it("has spread the view over both nodes", async () => {
    for (const redis of direct) expect(await redis.dbsize()).toBeGreaterThan(0);
  });
});

/** Resolves when all know one another and every slot is served; polls, for up to twenty seconds. */
async function joined(direct: readonly Redis[]): Promise<void> {
  const endsAtMs = performance.now() + 20_000;
  for (;;) {
    const infos = await Promise.all(direct.map((redis) => redis.cluster("INFO")));
    const isOk = (info: string) =>
      info.includes("cluster_state:ok") && info.includes("cluster_known_nodes:2");
    if (infos.every((info) => isOk(String(info)))) return;
    if (performance.now() > endsAtMs) throw new Error("the nodes did not find one another");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
