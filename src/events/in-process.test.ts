/** The in-process bus: delivery, order, isolation of failing handlers. */

import { describe, expect, it } from "vitest";
import type { IncarnationKey } from "../fleet/types.ts";
import { InProcessBus } from "./in-process.ts";

const KEY: IncarnationKey = { worker: "w", rank: 0, incarnation: "one" };
const batch = (sequence: number) => ({ ...KEY, model: "m", sequence, ops: [] });

function quiet(): { bus: InProcessBus; errors: [unknown, string][] } {
  const errors: [unknown, string][] = [];
  return {
    bus: new InProcessBus({ onHandlerError: (thrown, channel) => errors.push([thrown, channel]) }),
    errors,
  };
}

describe("in-process bus", () => {
  it("has delivered to every handler when publish returns, until a handler unsubscribes", () => {
    const { bus } = quiet();
    const seen: string[] = [];
    const leave = bus.onRetirement((key) => seen.push(`a ${key.worker}`));
    bus.onRetirement((key) => seen.push(`b ${key.worker}`));
    bus.publishRetirement(KEY);
    expect(seen).toEqual(["a w", "b w"]);
    leave();
    bus.publishRetirement(KEY);
    expect(seen).toEqual(["a w", "b w", "b w"]);
  });

  it("shows all handlers one order, even if a handler publishes", () => {
    const { bus } = quiet();
    const seen: number[] = [];
    bus.onKv(({ sequence }) => {
      if (sequence === 1) bus.publishKv(batch(2));
    });
    bus.onKv(({ sequence }) => seen.push(sequence));
    bus.publishKv(batch(1));
    expect(seen).toEqual([1, 2]);
  });

  it("reports what a handler throws and still serves the others", () => {
    const { bus, errors } = quiet();
    const seen: number[] = [];
    bus.onKv(() => {
      throw new Error("broken");
    });
    bus.onKv(({ sequence }) => seen.push(sequence));
    bus.publishKv(batch(1));
    bus.publishKv(batch(2));
    expect(seen).toEqual([1, 2]);
    expect(errors.map(([thrown, channel]) => [String(thrown), channel])).toEqual([
      ["Error: broken", "kv"],
      ["Error: broken", "kv"],
    ]);
  });

  it("asks for a snapshot until somebody owns the incarnation", async () => {
    const { bus, errors } = quiet();
    expect(await bus.requestSnapshot(KEY)).toBeNull();
    bus.serveSnapshots(() => null);
    bus.serveSnapshots(async () => {
      throw new Error("broken");
    });
    bus.serveSnapshots(async (key) => ({ ...key, model: "m", sequence: 7, ops: [] }));
    expect(await bus.requestSnapshot(KEY)).toMatchObject({ worker: "w", sequence: 7 });
    expect(errors.map(([, channel]) => channel)).toEqual(["snapshot"]);
  });
});
