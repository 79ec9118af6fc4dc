/** What a request waits for the view: its deadline, and a moment more only when the process itself was late. */

import { expect, it } from "vitest";
import { ManualClock } from "../../test/e2e/gateway-fleet.ts";
import { MoodyStore } from "../../test/gateway-ladder/harness.ts";
import { defineConfig } from "../config/index.ts";
import { Registry } from "../telemetry/registry.ts";
import type { GatewayDeps } from "./deps.ts";
import { GatewayMetrics } from "./metrics.ts";
import { ViewGuard } from "./view-guard.ts";

/** Timers fire when told, at whatever time it is by then: a process that was busy. */
function busyClock() {
  const due: (() => void)[] = [];
  const clock = {
    nowMs: 1_000,
    now: () => clock.nowMs,
    wall: () => 0,
    setTimeout: (callback: () => void) => due.push(callback),
    clearTimeout: () => due.splice(0),
    fire: () => {
      for (const callback of due.splice(0)) callback();
    },
  };
  return clock;
}

function guardOf(clock: ReturnType<typeof busyClock>) {
  const store = new MoodyStore(new ManualClock());
  let answer: () => void = () => {};
  const read = store.inner.read.bind(store.inner);
  store.read = (model, keys) =>
    new Promise((resolve) => {
      answer = () => resolve(read(model, keys));
    });
  const deps = { config: defineConfig(), store, clock, log: { warn: () => {} } } as unknown as GatewayDeps;
  const guard = new ViewGuard(deps, new GatewayMetrics(new Registry()));
  return { guard, answer: () => answer() };
}

it("an answer that has come while the process was busy is taken, past its deadline", async () => {
  const clock = busyClock();
  const { guard, answer } = guardOf(clock);
  const read = guard.read("m", new BigUint64Array(0), guard.budget());
  clock.nowMs += 200;
  clock.fire();
  answer();
  await new Promise(setImmediate);
  clock.fire();
  expect(await read).not.toBeNull();
  expect(guard.reachable).toBe(true);
});

it("no answer by then is none", async () => {
  const clock = busyClock();
  const { guard } = guardOf(clock);
  const budget = guard.budget();
  const read = guard.read("m", new BigUint64Array(0), budget);
  clock.nowMs += 200;
  clock.fire();
  clock.fire();
  expect(await read).toBeNull();
  expect(budget.leftMs).toBeLessThanOrEqual(0);
});

it("a deadline that could not be called off says nothing of a view that has answered", async () => {
  const clock = busyClock();
  clock.clearTimeout = () => [];
  const { guard, answer } = guardOf(clock);
  for (let i = 0; i < 5; i++) {
    const read = guard.read("m", new BigUint64Array(0), guard.budget());
    answer();
    expect(await read).not.toBeNull();
    clock.nowMs += 50;
    clock.fire();
    clock.fire();
  }
  expect(guard.reachable).toBe(true);
});

it("says when the view is out of reach and when it answers again, and nothing in between", async () => {
  const clock = busyClock();
  const lines: string[] = [];
  let isDown = true;
  const store = new MoodyStore(new ManualClock());
  const read = store.inner.read.bind(store.inner);
  store.read = async (model, keys) => {
    if (isDown) throw new Error("gone");
    return read(model, keys);
  };
  const log = { warn: (message: string) => lines.push(message) };
  const deps = { config: defineConfig(), store, clock, log } as unknown as GatewayDeps;
  const guard = new ViewGuard(deps, new GatewayMetrics(new Registry()));
  const ask = async (times: number) => {
    for (let i = 0; i < times; i++) {
      await guard.read("m", new BigUint64Array(0), guard.budget());
      clock.nowMs += 1_500;
    }
  };
  await ask(30);
  isDown = false;
  await ask(30);
  const single = "The view did not answer a request, which is routed by the last known fleet.";
  const away = "The view is out of reach; requests are routed by the last known fleet.";
  expect(lines).toEqual([single, single, away, "The view answers again."]);
});
