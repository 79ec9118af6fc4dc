/** What runs on a GPU node dies: nobody is sent to the dead, nobody is promised what a dead engine had, and no client sees it. */

import { expect, it, vi } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { Load } from "./load.ts";
import { Plane } from "./plane.ts";
import { promptOf } from "./prompts.ts";

vi.setConfig({ testTimeout: 180_000 });

/** From its last report on: a lease and the fold that ends it; the rest is this machine's. */
const LEASE_MS = 5_000;
const FOLD_MS = 250;
const SLACK_MS = 1_500;
/** For decisions that must be made with the view, on a machine that others use too. */
const UNHURRIED_MS = 2_000;

describeWithServers("An agent", () => {
  it("killed: no client sees it, nobody is sent to it after its lease; back, its index is true", async () => {
    const plane = await Plane.start();
    const gateways = [await plane.gateway(), await plane.gateway()];
    await plane.isExact(gateways);
    const load = new Load(gateways.map(({ url }) => url));
    await plane.until("both work", () => load.answers.length > 50);
    await plane.until("silence counts", async () => (await plane.indexer(0)).figures.heartbeats! > 0);
    const failures = async () =>
      (await Promise.all(gateways.map((gateway) => gateway.metric("kedge_worker_failures_total")))).join();

    const { agent, worker } = plane.engines[0]!;
    const killedAtMs = performance.now();
    await agent.stop("SIGKILL");
    await plane.until(
      "its worker has left the fleet",
      async () => (await plane.fleet()).every((row) => row.worker !== worker),
      LEASE_MS + FOLD_MS + SLACK_MS,
    );
    const leftMs = performance.now() - killedAtMs;
    const left = load.answers.length;
    await plane.until("what was decided before has been answered", () => load.answers.length >= left + 8);
    const before = await failures();
    await plane.until("requests go on", () => load.answers.length > left + 100);
    expect(await failures()).toBe(before);
    expect(load.answers.slice(left + 8).map((answer) => answer.worker)).not.toContain(`${worker}/0`);
    console.log(`left the fleet ${Math.round(leftMs)} ms after the kill; failed tries before: ${before}`);
    expect(before).not.toBe("0,0");

    await agent.start();
    const pinned = { headers: { "x-kedge-worker": worker } };
    for (const gateway of gateways) {
      await plane.until("it serves again", async () => {
        const answer = await gateway.ask(promptOf(1, 1), pinned);
        return answer.wrong === null && answer.rung === "exact";
      });
    }
    await load.stop();
    expect(load.wrongBut(killedAtMs)).toEqual([]);
    await plane.indexIsTrue(load.prompts);
  });
});

describeWithServers("An engine", () => {
  it("restarted: its old holders are inert at once, and its index is true", async () => {
    const plane = await Plane.start();
    const store = { deadlineMs: UNHURRIED_MS };
    const gateways = [await plane.gateway({ store }), await plane.gateway({ store })];
    await plane.isExact(gateways);
    const { worker, process } = plane.engines[0]!;
    const pinned = { headers: { "x-kedge-worker": worker } };
    const prompt = promptOf(20, 20, 6);
    for (const gateway of gateways) {
      await plane.until(
        "the prefix is promised",
        async () => (await gateway.ask(prompt, pinned)).claimed > 100,
      );
    }
    const before = plane.incarnationOf(await plane.fleet(), worker);
    const load = new Load(gateways.map(({ url }) => url));
    await plane.until("under load", () => load.answers.length > 50);

    const killedAtMs = performance.now();
    await process.stop("SIGKILL");
    await process.start();
    const restartedAtMs = performance.now();
    let first: Promise<readonly { claimed: number; cached: number; wrong: string | null }[]> | null = null;
    await plane.until("its new life is in the fleet", async () => {
      const now = plane.incarnationOf(await plane.fleet(), worker);
      if (now === null || now === before) return false;
      // Together: the first answer would make what the second is promised true.
      first ??= Promise.all(gateways.map((gateway) => gateway.ask(prompt, pinned)));
      return true;
    });
    const answers = await first!;
    console.log(`new life in the view ${Math.round(performance.now() - restartedAtMs)} ms after the restart`);
    expect(answers.map(({ claimed, wrong }) => [claimed, wrong])).toEqual([
      [0, null],
      [0, null],
    ]);
    await load.stop();
    expect(load.wrongBut(killedAtMs)).toEqual([]);
    await plane.indexIsTrue(load.prompts);
    await plane.promisesAreKept(gateways);
  });
});
