/** A process's own reservations are in its rows from the moment on when they are made, however long the view takes to tell of them. */

import type { Redis } from "ioredis";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { SendPipeline } from "../../src/store/redis/index.ts";
import { connect, directPipeline, redisStore } from "../support/redis-store.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { MODEL, registrationOf, reportOf } from "./view-samples.ts";

const KEYS = new BigUint64Array(0);
const RANK = { worker: "w0", rank: 0, incarnation: "1" };

describeWithRedis("a reservation of this process", () => {
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

  /** A store over a line whose replies wait while it is `held`. */
  async function setUp() {
    const send = directPipeline(redis);
    const line = { held: null as Promise<void> | null };
    const slow: SendPipeline = async (commands, signal) => {
      const { held } = line;
      const outcomes = await send(commands, signal);
      await held;
      return outcomes;
    };
    const store = redisStore({ send: slow });
    await store.register(registrationOf(RANK));
    await store.report([reportOf(RANK)]);
    const reserved = async () => (await store.read(MODEL, KEYS)).fleet[0]!.reserved;
    expect(await reserved()).toEqual({ requests: 0, blocks: 0, prefillTokens: 0 });
    const reserve = (requestId: string) =>
      store.reserve({
        ...RANK,
        requestId,
        blocks: 10,
        prefillTokens: 160,
        reservationTtlMs: 30_000,
        prediction: null,
      });
    return { store, line, reserved, reserve };
  }

  it("is in every reading that was under way when it was made, and in later ones, each time once", async () => {
    const { line, reserved, reserve } = await setUp();
    const gate = Promise.withResolvers<void>();
    line.held = gate.promise;
    const readings = [reserved(), reserved()];
    await redis.ping();
    const written = [reserve("a"), reserve("b")];
    await redis.ping();
    gate.resolve();
    const both = { requests: 2, blocks: 20, prefillTokens: 320 };
    expect(await Promise.all(readings)).toEqual([both, both]);
    await Promise.all(written);
    expect(await reserved()).toEqual(both);
  });

  it("is in none of them once it was released", async () => {
    const { store, line, reserved, reserve } = await setUp();
    const gate = Promise.withResolvers<void>();
    line.held = gate.promise;
    const reading = reserved();
    await redis.ping();
    const written = [reserve("a"), store.release(RANK, "a")];
    gate.resolve();
    const none = { requests: 0, blocks: 0, prefillTokens: 0 };
    expect(await reading).toEqual(none);
    await Promise.all(written);
    expect(await reserved()).toEqual(none);
  });
});
