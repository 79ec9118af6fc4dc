/** Many gateways that see the same view at the same moment must not all make the same choice; and where the prefix is, they all do. */

import { afterAll, beforeAll, expect, it } from "vitest";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { seededRandom } from "../../src/routing/testing.ts";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { GATEWAYS, startHerd, WORKERS } from "./rig.ts";

const TOKEN = "herd-test";
const RUNS = 20;
const REQUESTS = 200;
const FAIR_SHARE = REQUESTS / WORKERS;
const BLOCK_SIZE = 16;

let redis: RunningServer;
let rest: RestServer;

beforeAll(async () => {
  redis = await startRedis();
  rest = await startRedisRest({ redis: { host: "127.0.0.1", port: redis.port }, token: TOKEN, port: 0 });
});

afterAll(async () => {
  await rest?.close();
  await redis?.stop();
});

const seeds = Array.from({ length: RUNS }, (_, i) => i + 1);

describeWithRedis(`${GATEWAYS} gateways, ${WORKERS} idle workers, one cold prompt`, () => {
  it.each(seeds)(
    "spread it, then follow who holds it until its load outweighs that (run %i)",
    async (seed) => {
      const random = seededRandom(seed);
      // From a hundred tokens to eight thousand; every other run with gateways up to 20 ms away from the view.
      const content = `run ${seed} ${"word ".repeat(Math.round(100 * 64 ** random()))}`;
      const herd = await startHerd({ rest, token: TOKEN, seed, farMs: seed % 2 === 0 ? 20 : 0 });
      await herd.settle();

      // Cold: nobody gets more than twice its fair share, although all ask at once and every request stays under way.
      const answers = Array.from({ length: REQUESTS }, (_, i) => herd.chat(i % GATEWAYS, content));
      await herd.placed(REQUESTS);
      const shares = new Map<string, number>();
      for (const { worker } of herd.plans) shares.set(worker, (shares.get(worker) ?? 0) + 1);
      expect(Math.max(...shares.values())).toBeLessThanOrEqual(2 * FAIR_SHARE);
      await herd.settle();
      expect(new Set(await Promise.all(answers))).toEqual(new Set(["200 exact"]));

      // Held: as long as the holder is idle, every gateway sends every such request to it.
      const holder = `w${Math.floor(random() * WORKERS)}`;
      const keys = herd.keysOf(content);
      herd.worker(holder).hold(keys);
      await herd.known(holder, keys);
      for (let gateway = 0; gateway < GATEWAYS; gateway++) {
        const answer = herd.chat(gateway, content);
        await herd.placed(REQUESTS + gateway + 1);
        await herd.settle();
        expect([await answer, herd.plans.at(-1)!.worker]).toEqual(["200 exact", holder]);
      }

      // Busy: its cost is its load less what it need not compute. A block cheaper than the idle others, it is everybody's choice still;
      // a block dearer, it is nobody's.
      const { overlap_tokens } = await herd.route(0, content);
      const overlapBlocks = overlap_tokens / BLOCK_SIZE;
      expect(overlapBlocks).toBeGreaterThan(4);
      const chosen = async () => {
        const routes = await Promise.all(seeds.map((i) => herd.route(i % GATEWAYS, content)));
        return new Set(routes.map((route) => route.chosen.worker));
      };
      await herd.settle({ [holder]: overlapBlocks - 1 });
      expect(await chosen()).toEqual(new Set([holder]));
      await herd.settle({ [holder]: overlapBlocks + 1 });
      const others = await chosen();
      expect(others.has(holder)).toBe(false);
      expect(others.size).toBeGreaterThan(2);
      expect(herd.errors).toEqual([]);
      await herd.close();
    },
  );
});
