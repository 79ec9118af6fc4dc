/** The log is lost: gateways see the lag and predict, nobody is expired, and what comes back is exact. */

import { expect, it, vi } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { Load } from "./load.ts";
import { type Gateway, Plane } from "./plane.ts";

vi.setConfig({ testTimeout: 180_000 });

/** The bound for seeing that a feed lags; the rest is this machine's. */
const SEEN_WITHIN_MS = 3_000;
const SLACK_MS = 500;
/** A worker that is silent for so long on a bus that works is dead. */
const DEAD_AFTER_MS = 5_500;

async function underLoad(): Promise<{ plane: Plane; gateways: Gateway[]; load: Load }> {
  const plane = await Plane.start();
  const gateways = [await plane.gateway(), await plane.gateway()];
  await plane.isExact(gateways);
  const load = new Load(gateways.map(({ url }) => url));
  await plane.until("under load", () => load.answers.length > 50);
  return { plane, gateways, load };
}

/** Resolves when all requests are predicted; returns when the first was sent, in milliseconds from then on. */
async function lagIsSeen(plane: Plane, load: Load, stoppedAtMs: number): Promise<number> {
  await plane.until("predicted", () => load.isOn("predicted", stoppedAtMs));
  const first = load.since(stoppedAtMs).find(({ rung }) => rung === "predicted")!;
  const seenMs = Math.round(first.sentAtMs - stoppedAtMs);
  expect(seenMs).toBeLessThan(SEEN_WITHIN_MS + SLACK_MS);
  return seenMs;
}

/** Resolves when all are known to be silent for longer than the dead are, and all of them still serve. */
async function nobodyExpires(plane: Plane, load: Load): Promise<void> {
  await plane.until("silent for longer than the dead are", async () => {
    const rows = await plane.fleet();
    expect(rows).toHaveLength(2);
    return rows.every(({ feed }) => feed.lagMs > DEAD_AFTER_MS);
  });
  const sinceMs = performance.now();
  await plane.until("predicted", () => load.isOn("predicted", sinceMs));
  await plane.until("both serve", () => {
    return new Set(load.since(sinceMs).map(({ worker }) => worker)).size === 2;
  });
}

async function endsTrue(plane: Plane, gateways: readonly Gateway[], load: Load): Promise<void> {
  await load.stop();
  expect(load.wrong).toEqual([]);
  await plane.indexIsTrue(load.prompts);
  await plane.isExact(gateways);
  await plane.promisesAreKept(gateways);
}

describeWithServers("NATS", () => {
  it.each(["kept", "lost"] as const)(
    "stopped, back with its streams %s: the lag is seen, nobody expires, requests go on, the index becomes true",
    async (streams) => {
      const { plane, gateways, load } = await underLoad();
      const stoppedAtMs = performance.now();
      await plane.nats.stop("SIGKILL");
      const seenMs = await lagIsSeen(plane, load, stoppedAtMs);
      await nobodyExpires(plane, load);

      await plane.restartNats(streams);
      const backAtMs = performance.now();
      await plane.until("exact under load, and nobody gone", async () => {
        expect(await plane.fleet()).toHaveLength(2);
        return load.isOn("exact", backAtMs);
      });
      const exactMs = Math.round(performance.now() - backAtMs);
      console.log(`lag seen after ${seenMs} ms; exact ${exactMs} ms after NATS was back, streams ${streams}`);
      await endsTrue(plane, gateways, load);
    },
  );

  it("hanging, and Redis emptied meanwhile: last known workers serve, and all is told again when the log is back", async () => {
    const { plane, gateways, load } = await underLoad();
    const hungAtMs = performance.now();
    plane.nats.pause();
    await lagIsSeen(plane, load, hungAtMs);
    await plane.redis.stop("SIGKILL");
    const downAtMs = performance.now();
    await plane.until("served without both", () => load.isOn("consistent-hash", downAtMs));
    await plane.restartRedis();
    const emptyAtMs = performance.now();
    await plane.until("served with an empty view", () => load.isOn("predicted", emptyAtMs));
    plane.nats.resume();
    const backAtMs = performance.now();
    await plane.until("exact under load", () => load.isOn("exact", backAtMs));
    console.log(
      `exact ${Math.round(performance.now() - backAtMs)} ms after NATS went on beside an empty Redis`,
    );
    await endsTrue(plane, gateways, load);
  });
});
