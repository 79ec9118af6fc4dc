/** Indexers die in the middle of their writes: whoever comes next leaves no holder out and none in twice. */

import { expect, it, vi } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { Load } from "./load.ts";
import { Plane } from "./plane.ts";

vi.setConfig({ testTimeout: 90_000 });

describeWithServers("An indexer", () => {
  it("killed in the middle of a batch: a standby takes over, later a restarted one, and the index is true", async () => {
    const plane = await Plane.start();
    await plane.until("the first leads", async () => (await plane.indexer(0)).state === "leading");
    await plane.addIndexer();
    await plane.until("the second stands by", async () => (await plane.indexer(1)).state === "standby");
    const gateway = await plane.gateway();
    await plane.isExact([gateway]);
    const load = new Load([gateway.url], { clients: 4 });
    await plane.until("under load", () => load.answers.length > 50);

    for (const [killed, next] of [
      [0, 1],
      [1, 0],
    ] as const) {
      // A write that Redis has and has not answered is one of which nobody knows whether it was done.
      plane.redis.pause();
      await plane.until("writes wait", async () => (await plane.indexer(killed)).queuedWrites > 0);
      await plane.indexers[killed]!.process.stop("SIGKILL");
      const killedAtMs = performance.now();
      plane.redis.resume();
      await plane.until(
        "the other leads",
        async () => (await plane.indexer(next)).state === "leading",
        10_000,
      );
      console.log(`led again ${Math.round(performance.now() - killedAtMs)} ms after the kill`);
      await plane.until("exact under load", () => {
        const last = load.since(killedAtMs).slice(-10);
        return last.length === 10 && last.every(({ rung }) => rung === "exact");
      });
      await plane.indexers[killed]!.process.start();
      await plane.until("it stands by", async () => (await plane.indexer(killed)).state === "standby");
    }
    await load.stop();
    expect(load.wrong).toEqual([]);
    await plane.indexIsTrue(load.answers.map(({ prompt }) => prompt));
  });

  it("alone and killed: workers stay, the feed is seen to lag, and the one that is started again makes the index true", async () => {
    const plane = await Plane.start();
    const gateway = await plane.gateway();
    await plane.isExact([gateway]);
    const load = new Load([gateway.url]);
    await plane.until("under load", () => load.answers.length > 50);
    await plane.indexers[0]!.process.stop("SIGKILL");
    await plane.until("silent for longer than the dead are", async () => {
      const rows = await plane.fleet();
      expect(rows).toHaveLength(2);
      return rows.every(({ feed }) => feed.lagMs > 5_500);
    });
    expect(load.answers.slice(-8).every(({ rung }) => rung === "predicted")).toBe(true);
    await plane.indexers[0]!.process.start();
    const againAtMs = performance.now();
    await plane.until("exact under load", () => {
      const last = load.since(againAtMs).slice(-10);
      return last.length === 10 && last.every(({ rung }) => rung === "exact");
    });
    await load.stop();
    expect(load.wrong).toEqual([]);
    await plane.indexIsTrue(load.answers.map(({ prompt }) => prompt));
  });
});
