/** Whom a request waits for to learn what a model's name stands for. */

import { expect, it } from "vitest";
import { ManualClock, MODEL, registration } from "../../test/e2e/gateway-fleet.ts";
import { MoodyStore } from "../../test/gateway-ladder/harness.ts";
import { defineConfig } from "../config/index.ts";
import { Registry } from "../telemetry/registry.ts";
import type { GatewayDeps } from "./deps.ts";
import { GatewayMetrics } from "./metrics.ts";
import { Directory } from "./models.ts";
import { ViewGuard } from "./view-guard.ts";

it("an old copy is read anew by one request; those that come meanwhile use it as it is", async () => {
  const clock = new ManualClock();
  const store = new MoodyStore(clock);
  store.inner.register(registration("w"));
  let asked = 0;
  let answer: () => void = () => {};
  store.fleet = () => {
    asked++;
    return new Promise((resolve) => {
      answer = () => resolve(store.inner.fleet());
    });
  };
  const deps = { config: defineConfig(), store, clock, log: { warn: () => {} } } as unknown as GatewayDeps;
  const guard = new ViewGuard(deps, new GatewayMetrics(new Registry()));
  const directory = new Directory({ guard, clock, maxAgeMs: 10_000 });
  const first = directory.find(MODEL, guard.budget());
  answer();
  expect(await first).toMatchObject({ model: MODEL });

  clock.advance(10_001);
  const reader = directory.find(MODEL, guard.budget());
  expect(reader).toBeInstanceOf(Promise);
  expect(directory.find(MODEL, guard.budget())).toMatchObject({ model: MODEL });
  expect(asked).toBe(2);
  answer();
  expect(await reader).toMatchObject({ model: MODEL });
});
