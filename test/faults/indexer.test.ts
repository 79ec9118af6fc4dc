/** Indexers die in the middle of their writes: whoever comes next leaves no holder out and none in twice. */

import { expect, it, vi } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { Load } from "./load.ts";
import { Plane } from "./plane.ts";

vi.setConfig({ testTimeout: 180_000 });

/** Life of the leader's lease, the standby's next try for it, and what this machine takes. */
const TAKEN_OVER_WITHIN_MS = 6_000 + 2_000 + 5_000;

/** At a moment when Redis has writes of this indexer and has not answered them, so that nobody knows whether they were done. */
async function killMidBatch(plane: Plane, index: number): Promise<void> {
  plane.redis.pause();
  await plane.until("writes wait", async () => (await plane.indexer(index)).queuedWrites > 0);
  await plane.indexers[index]!.process.stop("SIGKILL");
  plane.redis.resume();
}

describeWithServers("An indexer killed in the middle of a batch", () => {
  it("leaves its work to a standby: no holder is lost or there twice", async () => {
    // In parts, so that a batch may be in one of them and not in the next.
    const plane = await Plane.start({ shards: 3 });
    await plane.until("the first leads", async () => (await plane.indexer(0)).state === "leading");
    await plane.addIndexer();
    await plane.until("the second stands by", async () => (await plane.indexer(1)).state === "standby");
    const gateway = await plane.gateway();
    await plane.isExact([gateway]);
    const load = new Load([gateway.url], { clients: 4 });
    await plane.until("under load", () => load.answers.length > 50);

    const killedAtMs = performance.now();
    await killMidBatch(plane, 0);
    const isTakenOver = async () => (await plane.indexer(1)).state === "leading";
    await plane.until("the standby leads", isTakenOver, TAKEN_OVER_WITHIN_MS);
    console.log(`the standby led ${Math.round(performance.now() - killedAtMs)} ms after the kill`);
    const leadsAtMs = performance.now();
    await plane.until("exact under load", () => load.isOn("exact", leadsAtMs));
    await load.stop();
    expect(load.wrong).toEqual([]);
    await plane.indexIsTrue(load.prompts);
  });

  it("and started again: workers stay, the lag is seen meanwhile, and the index becomes true", async () => {
    const plane = await Plane.start();
    const gateway = await plane.gateway();
    await plane.isExact([gateway]);
    const load = new Load([gateway.url]);
    await plane.until("under load", () => load.answers.length > 50);
    await killMidBatch(plane, 0);
    await plane.until("silent for longer than the dead are", async () => {
      const rows = await plane.fleet();
      expect(rows).toHaveLength(2);
      return rows.every(({ feed }) => feed.lagMs > 5_500);
    });
    const silentAtMs = performance.now();
    await plane.until("predicted", () => load.isOn("predicted", silentAtMs));
    await plane.indexers[0]!.process.start();
    const againAtMs = performance.now();
    await plane.until("exact under load, and nobody gone", async () => {
      expect(await plane.fleet()).toHaveLength(2);
      return load.isOn("exact", againAtMs);
    });
    await load.stop();
    expect(load.wrong).toEqual([]);
    await plane.indexIsTrue(load.prompts);
  });
});
