/** Gateways share what they know through the view alone, and begin without it. */

import { expect, it, vi } from "vitest";
import { registrationOf } from "../../src/node/cli/fleet.ts";
import { describeWithServers } from "../support/servers.ts";
import { MODEL } from "./load.ts";
import { type Gateway, Plane } from "./plane.ts";
import { promptOf } from "./prompts.ts";

vi.setConfig({ testTimeout: 180_000 });

/** For decisions that must be made with the view, on a machine that others use too. */
const UNHURRIED_MS = 2_000;

async function setThreshold(gateway: Gateway, tokens: number): Promise<void> {
  const response = await fetch(`${gateway.url}/busy_threshold`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ model: MODEL, active_prefill_tokens_threshold: tokens }),
  });
  expect(response.status).toBe(200);
}

describeWithServers("Two gateways", () => {
  it("see each other's reservations at the next decision, and thresholds set at one are in force at the other", async () => {
    const plane = await Plane.start();
    const store = { deadlineMs: UNHURRIED_MS };
    const gateways = [await plane.gateway({ store }), await plane.gateway({ store })] as const;
    await plane.isExact(gateways);
    await plane.until("both are idle", async () =>
      (await plane.fleet()).every(({ load, reserved }) => load.running === 0 && reserved.requests === 0),
    );
    // No fold deletes what is reserved from here on.
    plane.indexers[0]!.process.pause();
    const workers: (string | null)[] = [];
    for (let turn = 0; turn < 6; turn++) {
      const answer = await gateways[turn % 2]!.ask(promptOf(100 + turn, 100 + turn, 4));
      expect(answer.wrong).toBeNull();
      workers.push(answer.worker);
      // Nobody waits for a reservation to be written; the decision after it sees it.
      await plane.until("it is reserved", async () => {
        const rows = await plane.fleet();
        return rows.reduce((sum, { reserved }) => sum + reserved.requests, 0) === turn + 1;
      });
    }
    // Level before each pair: where the first of it went is free, where the second goes follows from that.
    const pairs = [0, 2, 4].map((turn) => new Set(workers.slice(turn, turn + 2)).size);
    expect(pairs).toEqual([2, 2, 2]);

    expect(await plane.differences([]), "the suite's own check sees a view that is behind").not.toEqual([]);

    await setThreshold(gateways[0], 1);
    const setAtMs = performance.now();
    await plane.until(
      "the other refuses",
      async () => (await gateways[1].ask(promptOf(200, 200))).status === 503,
      5_000,
    );
    console.log(`a threshold was in force at the other ${Math.round(performance.now() - setAtMs)} ms later`);
    await setThreshold(gateways[1], 1_000_000);
    await plane.until(
      "the first serves again",
      async () => (await gateways[0].ask(promptOf(201, 201))).status === 200,
      5_000,
    );
    plane.indexers[0]!.process.resume();
    await plane.indexIsTrue([]);
  });
});

describeWithServers("A gateway", () => {
  it("restarted while the view is out of reach: a seed fleet serves, without one it says 503 and when to retry", async () => {
    const plane = await Plane.start();
    const before = await plane.gateway();
    await plane.isExact([before]);
    const seedFleet = JSON.stringify((await plane.fleet()).map(registrationOf));
    await before.close();
    await plane.redis.stop("SIGKILL");

    const seeded = await plane.gateway({ fallback: { seedFleet } });
    const bare = await plane.gateway();
    const workers = new Set<string | null>();
    for (let i = 0; i < 20; i++) {
      const answer = await seeded.ask(promptOf(i, i));
      expect([answer.wrong, answer.rung]).toEqual([null, "consistent-hash"]);
      workers.add(answer.worker);
    }
    expect(workers.size).toBe(2);
    const refused = await bare.ask(promptOf(1, 1));
    expect(refused).toMatchObject({ status: 503, wrong: expect.stringContaining("view_unavailable") });
    expect(Number(refused.retryAfter)).toBeGreaterThan(0);

    await plane.restartRedis();
    await plane.until("the bare one serves", async () => (await bare.ask(promptOf(1, 1))).status === 200);
    await plane.isExact([seeded, bare]);
    await plane.promisesAreKept([seeded, bare]);
  });
});
