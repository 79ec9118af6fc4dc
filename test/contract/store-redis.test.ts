/** The Redis store keeps the contract of the view, with one shard and with three. */

import type { Redis } from "ioredis";
import { afterAll, beforeAll } from "vitest";
import { connect, directPipeline, redisStore } from "../support/redis-store.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { storeContract } from "./store-contract.ts";

/** More in the long run. */
const HISTORIES = Number(process.env.KEDGE_HISTORIES ?? 300);

describeWithRedis("view in Redis", () => {
  let server: RunningServer;
  let redis: Redis;
  beforeAll(async () => {
    server = await startRedis();
    redis = connect(server.port);
  });
  afterAll(async () => {
    redis.disconnect();
    await server.stop();
  });

  for (const shards of [1, 3]) {
    storeContract(
      `Redis, ${shards} shards`,
      ({ horizonMs }) => {
        let nowMs = 1_800_000_000_000;
        const viewNowMs = () => nowMs;
        const store = redisStore({ shards, horizonMs, viewNowMs, send: directPipeline(redis) });
        return {
          store,
          advance: (ms) => {
            nowMs += ms;
          },
          close: () => undefined,
        };
      },
      HISTORIES,
    );
  }
});
