/** What `kedge fleet` prints. */

import { expect, it } from "vitest";
import { registrationOf as sample } from "../../../test/contract/view-samples.ts";
import { MemoryStore } from "../../store/memory/index.ts";
import { registrationOf, table } from "./fleet.ts";

const KEY = { worker: "w", rank: 0, incarnation: "one" };

function rows() {
  let nowMs = 0;
  const store = new MemoryStore({ now: () => nowMs, random: () => 0.5 });
  store.register(sample(KEY));
  store.register(sample({ ...KEY, worker: "silent" }, { kvEvents: false }));
  nowMs = 61_000;
  return store.fleet();
}

it("prints a line per rank, and dashes for what nobody knows", () => {
  const lines = table(rows()).split("\n");
  expect(lines).toHaveLength(3);
  expect(lines[0]).toMatch(/^WORKER +RANK +MODEL +ROLE +PLACE/);
  expect(lines[1]).toMatch(
    /^silent +0 +model +aggregated +eu\/lab\/node-1 +- +- +-\/1000 +0 +predicted +1m$/,
  );
  expect(lines[2]).toMatch(/ 0 \(61000 ms\) +1m$/);
  expect(table([])).toBe("No workers.");
});

it("prints as JSON exactly what agents registered, which a seed fleet is made of", () => {
  expect(rows().map(registrationOf)).toEqual([
    sample({ ...KEY, worker: "silent" }, { kvEvents: false }),
    sample(KEY),
  ]);
});
