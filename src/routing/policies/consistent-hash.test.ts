/** Rendezvous hashing with bounded loads: affinity, even shares, small moves, no hot worker. */

import { describe, expect, it } from "vitest";
import { createHasher } from "../../prefix/hasher.ts";
import { plainRequest } from "../config.ts";
import { decide } from "../decide.ts";
import { candidate, policy, seededRandom } from "../testing.ts";
import type { Candidate } from "../types.ts";
import { consistentHash } from "./consistent-hash.ts";

const hasher = await createHasher();
const fleet = (n: number): Candidate[] => Array.from({ length: n }, (_, i) => candidate(`worker-${i}`));
const headOf = (i: number): bigint => hasher.hash(new TextEncoder().encode(`head ${i}`));

function ranking(
  candidates: readonly Candidate[],
  head: bigint,
  { loads = new Map<string, number>(), loadFactor = 1.25, seed = 1 } = {},
): string[] {
  const rung = consistentHash({ hasher, head, loadFactor, underWay: ({ worker }) => loads.get(worker) ?? 0 });
  return decide(plainRequest(100), candidates, policy(), seededRandom(seed), rung).ranking.map(
    (scored) => `${scored.candidate.worker}/${scored.candidate.rank}`,
  );
}

describe("consistent hash", () => {
  it("ranks one head alike for everybody, whatever the chance and the order of the fleet", () => {
    const candidates = fleet(8);
    for (let i = 0; i < 20; i++) {
      const once = ranking(candidates, headOf(i));
      expect(new Set(once).size).toBe(8);
      expect(ranking([...candidates].reverse(), headOf(i), { seed: 2 })).toEqual(once);
    }
  });

  it("spreads heads evenly over workers and ranks", () => {
    const candidates = [...fleet(6), candidate("worker-0", { rank: 1 }), candidate("0", { rank: 10 })];
    const heads = 8_000;
    const shares = new Map<string, number>();
    for (let i = 0; i < heads; i++) {
      const [first = ""] = ranking(candidates, headOf(i));
      shares.set(first, (shares.get(first) ?? 0) + 1);
    }
    expect(shares.size).toBe(8);
    // Five standard deviations of a fair share of 1,000.
    for (const share of shares.values()) expect(Math.abs(share - 1_000)).toBeLessThan(150);
  });

  it("moves only the share of a worker that goes, and each of those to its next", () => {
    const candidates = fleet(8);
    const without = candidates.filter(({ worker }) => worker !== "worker-3");
    for (let i = 0; i < 500; i++) {
      const before = ranking(candidates, headOf(i));
      expect(ranking(without, headOf(i))).toEqual(before.filter((name) => name !== "worker-3/0"));
    }
  });

  it("passes over a worker above the bound, and keeps it as a last resort", () => {
    const candidates = fleet(4);
    const [first = "", ...rest] = ranking(candidates, headOf(1));
    const at = (requests: number) =>
      ranking(candidates, headOf(1), { loads: new Map([[first.split("/")[0]!, requests]]) });
    // One of four has r under way: the bound is 1.25 · r / 4 + 1.
    expect(at(1)[0]).toBe(first);
    expect(at(2)).toEqual([...rest, first]);
  });

  it("one hot head loads no worker beyond the bound", () => {
    const candidates = fleet(8);
    const loads = new Map<string, number>();
    for (let i = 0; i < 400; i++) {
      const worker = ranking(candidates, headOf(7), { loads })[0]!.split("/")[0]!;
      loads.set(worker, (loads.get(worker) ?? 0) + 1);
    }
    // The mean at the end is 50: nobody has more than 1.25 times of it, the one on top and the one that was let in.
    expect(Math.max(...loads.values())).toBeLessThanOrEqual(1.25 * 50 + 2);
    expect([...loads.values()].reduce((sum, one) => sum + one, 0)).toBe(400);
  });

  it("ranks only those who may serve", () => {
    const candidates = [candidate("a"), candidate("b", { excluded: "breaker open" }), candidate("c")];
    for (let i = 0; i < 20; i++) expect([...ranking(candidates, headOf(i))].sort()).toEqual(["a/0", "c/0"]);
  });
});
