/** What is known of the fleet outlives reads, emptied views and outages, and never mixes slots of two lives of a view. */

import { describe, expect, it } from "vitest";
import { registration } from "../../test/e2e/gateway-fleet.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { ViewRead } from "../store/types.ts";
import { KnownFleet } from "./known-fleet.ts";

const row = (worker: string, model = "m"): FleetRow => ({
  ...registration(worker, { model }),
  slots: { device: 1, host: 2, disk: 3 },
  load: { activeBlocks: 1, prefillTokens: 0, running: 1, waiting: 0 },
  reserved: { requests: 1, blocks: 1, prefillTokens: 1 },
  feed: { lagEvents: 0, lagMs: 0 },
  ageMs: 60_000,
});
const read = (epoch: string, ...fleet: FleetRow[]) =>
  ({ epoch, fleet, thresholds: {} }) as unknown as ViewRead;
const names = (rows: readonly FleetRow[]) => rows.map(({ worker }) => worker);

function known(seed = [] as ReturnType<typeof registration>[]) {
  const clock = { nowMs: 0 };
  return { clock, fleet: new KnownFleet(() => clock.nowMs, seed) };
}

describe("the known fleet", () => {
  it("is the rows themselves while the view lives", () => {
    const { fleet } = known();
    const rows = [row("a")];
    expect(fleet.take("m", read("e1", ...rows))).toEqual(rows);
    const given = read("e1", ...rows);
    expect(fleet.take("m", given)).toBe(given.fleet);
    expect(fleet.takeAll("e1", [row("a"), row("b", "n")])).toHaveLength(2);
    expect(names(fleet.take("m", read("e1")))).toEqual([]);
    expect(names(fleet.all())).toEqual(["b"]);
  });

  it("believes loads for two seconds", () => {
    const { fleet, clock } = known();
    fleet.take("m", read("e1", row("a")));
    clock.nowMs = 2_000;
    expect(fleet.lastRead("m").fleet[0]?.load.activeBlocks).toBe(1);
    clock.nowMs = 2_001;
    expect(fleet.lastRead("m").fleet[0]).toMatchObject({
      load: { activeBlocks: null },
      reserved: { requests: 0 },
    });
    expect(fleet.lastRead("m").lookup.count).toBe(0);
  });

  it("keeps workers of an emptied view without their slots, of every model, through a second emptying too", () => {
    const { fleet } = known();
    fleet.takeAll("e1", [row("a"), row("b"), row("c", "n")]);
    const rows = fleet.take("m", read("e2", row("b")));
    expect(names(rows)).toEqual(["a", "b"]);
    expect(rows.map(({ slots }) => slots.device)).toEqual([-1, 1]);
    expect(names(fleet.lastRead("n").fleet)).toEqual(["c"]);
    expect(names(fleet.take("m", read("e3")))).toEqual(["a", "b"]);
    expect(names(fleet.takeAll("e3", []))).toEqual(["a", "b", "c"]);
    expect(fleet.isEmpty).toBe(false);
  });

  it("lets go of who is not back ten seconds after the first", () => {
    const { fleet, clock } = known();
    fleet.takeAll("e1", [row("a"), row("b")]);
    clock.nowMs = 60_000;
    expect(names(fleet.takeAll("e2", []))).toEqual(["a", "b"]);
    fleet.takeAll("e2", [row("a")]);
    clock.nowMs = 70_000;
    expect(names(fleet.takeAll("e2", [row("a")]))).toEqual(["a", "b"]);
    clock.nowMs = 70_001;
    expect(names(fleet.takeAll("e2", [row("a")]))).toEqual(["a"]);
  });

  it("begins with the seed, which knows of no slot, until the view names its first worker", () => {
    const { fleet } = known([registration("s")]);
    expect(fleet.isEmpty).toBe(false);
    expect(fleet.all()).toMatchObject([{ worker: "s", slots: { device: -1 }, load: { activeBlocks: null } }]);
    // Read for the first time a moment after it was emptied.
    expect(names(fleet.takeAll("e1", []))).toEqual(["s"]);
    expect(names(fleet.takeAll("e1", [row("a")]))).toEqual(["a"]);
    expect(fleet.takeAll("e1", [])).toEqual([]);
    expect(fleet.isEmpty).toBe(true);
    expect(known().fleet.isEmpty).toBe(true);
  });
});
