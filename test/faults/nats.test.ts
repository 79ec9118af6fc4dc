/** The log is lost: gateways see the lag and predict, nobody is expired, and what comes back is exact. */

import { expect, it, vi } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { Load } from "./load.ts";
import { Plane } from "./plane.ts";

vi.setConfig({ testTimeout: 90_000 });

/** The bound for seeing that a feed lags; the rest is this machine's. */
const SEEN_WITHIN_MS = 3_000;
const SLACK_MS = 500;

describeWithServers("NATS", () => {
  it("stopped: the lag is seen, nobody expires, requests go on; back with its streams or without, the index is true", async () => {
    const plane = await Plane.start();
    const gateways = [await plane.gateway(), await plane.gateway()];
    await plane.isExact(gateways);
    const load = new Load(gateways.map(({ url }) => url));
    await plane.until("under load", () => load.answers.length > 50);

    for (const streams of ["kept", "lost"] as const) {
      await plane.nats.stop("SIGKILL");
      const stoppedAtMs = performance.now();
      await plane.until(
        "predicted by every gateway",
        () => load.answers.slice(-8).every(({ rung }) => rung === "predicted"),
        SEEN_WITHIN_MS + SLACK_MS,
      );
      const seenMs = performance.now() - stoppedAtMs;
      // Long enough for a worker that is silent on a bus that works to be dead.
      await plane.until("silent for longer than the dead are", async () => {
        const rows = await plane.fleet();
        expect(rows).toHaveLength(2);
        return rows.every(({ feed }) => feed.lagMs > 5_500);
      });
      const silent = load.since(stoppedAtMs + SEEN_WITHIN_MS + SLACK_MS);
      expect(new Set(silent.map(({ worker }) => worker)).size).toBe(2);
      expect(new Set(silent.map(({ rung }) => rung))).toEqual(new Set(["predicted"]));

      await plane.restartNats(streams);
      const backAtMs = performance.now();
      await plane.until("exact under load", () => {
        const last = load.since(backAtMs).slice(-10);
        return last.length === 10 && last.every(({ rung }) => rung === "exact");
      });
      console.log(
        `NATS (streams ${streams}): lag seen after ${Math.round(seenMs)} ms, exact ${Math.round(performance.now() - backAtMs)} ms after it was back`,
      );
      expect(await plane.fleet()).toHaveLength(2);
    }
    await load.stop();
    expect(load.wrong).toEqual([]);
    await plane.indexIsTrue(load.answers.map(({ prompt }) => prompt));
    await plane.promisesAreKept(gateways);
  });
});
