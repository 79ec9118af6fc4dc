/** The Redis store keeps the contract of the view: with one shard and with three, by a direct pipeline and over the REST door. */

import type { Redis } from "ioredis";
import { afterAll, beforeAll, vi } from "vitest";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import type { RedisStoreOptions } from "../../src/store/redis/index.ts";
import { connect, directPipeline, redisStore } from "../support/redis-store.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { type StoreFactory, storeContract } from "./store-contract.ts";

/** More in the long run. */
const HISTORIES = Number(process.env.KEDGE_HISTORIES ?? 300);
/** The door costs more than the scripts: it gets every thirtieth. */
const REST_HISTORIES = Math.ceil(HISTORIES / 30);
const TOKEN = "contract";

describeWithRedis("view in Redis", () => {
  vi.setConfig({ testTimeout: 60_000 + 300 * HISTORIES });
  let server: RunningServer;
  let redis: Redis;
  let rest: RestServer | undefined;
  beforeAll(async () => {
    server = await startRedis();
    redis = connect(server.port);
    rest = await startRedisRest({ redis: { host: "127.0.0.1", port: server.port }, token: TOKEN, port: 0 });
  });
  afterAll(async () => {
    await rest?.close();
    redis.disconnect();
    await server.stop();
  });

  const factory =
    (way: () => Partial<RedisStoreOptions>): StoreFactory =>
    ({ horizonMs }) => {
      let nowMs = 1_800_000_000_000;
      return {
        store: redisStore({ horizonMs, viewNowMs: () => nowMs, ...way() }),
        advance: (ms) => {
          nowMs += ms;
        },
        close: () => undefined,
      };
    };

  for (const shards of [1, 3]) {
    storeContract(
      `Redis, ${shards} shards`,
      factory(() => ({ shards, send: directPipeline(redis) })),
      HISTORIES,
    );
    storeContract(
      `Redis over REST, ${shards} shards`,
      factory(() => ({ shards, url: rest!.url, token: TOKEN })),
      REST_HISTORIES,
    );
  }
});
