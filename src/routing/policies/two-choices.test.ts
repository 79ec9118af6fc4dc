/** Two random choices: the less loaded of two, everybody reachable, reported load unseen. */

import { describe, expect, it } from "vitest";
import { plainRequest } from "../config.ts";
import { decide } from "../decide.ts";
import { candidate, policy, seededRandom } from "../testing.ts";
import { twoChoices } from "./two-choices.ts";

describe("two choices", () => {
  const candidates = ["a", "b", "c", "d"].map((worker) => candidate(worker));

  it("keeps all gateways' fleets even: the fullest has little more than the mean", () => {
    const random = seededRandom(3);
    const loads = new Map<string, number>();
    const rung = twoChoices(({ worker }) => loads.get(worker) ?? 0);
    for (let i = 0; i < 400; i++) {
      const worker = decide(plainRequest(10), candidates, policy(), random, rung).ranking[0]!.candidate
        .worker;
      loads.set(worker, (loads.get(worker) ?? 0) + 1);
    }
    expect([...loads.values()].every((load) => Math.abs(load - 100) <= 4)).toBe(true);
  });

  it("never puts the fullest first while there is a choice, and ranks all for failover", () => {
    const random = seededRandom(4);
    const rung = twoChoices(({ worker }) => (worker === "a" ? 5 : 0));
    for (let i = 0; i < 100; i++) {
      const names = decide(plainRequest(10), candidates, policy(), random, rung).ranking.map(
        (one) => one.candidate.worker,
      );
      expect(names[0]).not.toBe("a");
      expect([...names].sort()).toEqual(["a", "b", "c", "d"]);
    }
  });

  it("does not look at reported loads, which may be of any age", () => {
    const stale = [candidate("a", { load: { activeRequests: 99, activeDecodeBlocks: 900 } }), candidate("b")];
    const random = seededRandom(5);
    const first = Array.from(
      { length: 200 },
      () =>
        decide(
          plainRequest(10),
          stale,
          policy(),
          random,
          twoChoices(() => 0),
        ).ranking[0]!.candidate.worker,
    );
    expect(Math.abs(first.filter((worker) => worker === "a").length - 100)).toBeLessThan(40);
  });

  it("takes the only one there is", () => {
    const [only] = decide(
      plainRequest(10),
      [candidate("a")],
      policy(),
      seededRandom(6),
      twoChoices(() => 3),
    ).ranking;
    expect(only?.candidate.worker).toBe("a");
  });
});
