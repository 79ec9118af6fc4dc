/** The decision's guarantees: formulas of both Dynamo forms, modes, eligibility, busy rule, standings, explanation. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { plainRequest } from "./config.ts";
import { decide } from "./decide.ts";
import { candidate, policy, seededRandom } from "./testing.ts";
import type { Candidate, Decision, PolicyConfig, RequestFacts, Scored } from "./types.ts";

const random = seededRandom(7);

function run(
  promptTokens: number,
  candidates: readonly Candidate[],
  config: Partial<PolicyConfig> = {},
  facts: Partial<RequestFacts> = {},
): Decision {
  return decide({ ...plainRequest(promptTokens), ...facts }, candidates, policy(config), random);
}

const names = (decision: Decision): string[] => decision.ranking.map((one) => one.candidate.worker);
const costs = (decision: Decision): Record<string, number> =>
  Object.fromEntries(decision.ranking.map((one: Scored) => [one.candidate.worker, one.cost]));

/** How often each worker comes first in `draws` decisions. */
function firsts(draws: number, make: () => Decision): Map<string, number> {
  const counts = new Map<string, number>();
  for (let i = 0; i < draws; i++) {
    const worker = make().chosen!.candidate.worker;
    counts.set(worker, (counts.get(worker) ?? 0) + 1);
  }
  return counts;
}

describe("kv, the 0.9 form", () => {
  it("charges what must be computed and what must be kept: 18, 10, 11", () => {
    const decision = run(160, [
      candidate("a", { overlapBlocks: 2, load: { activeDecodeBlocks: 10 } }),
      candidate("b", { overlapBlocks: 5, load: { activeDecodeBlocks: 5 } }),
      candidate("c", { overlapBlocks: 8, load: { activeDecodeBlocks: 9 } }),
    ]);
    expect(costs(decision)).toEqual({ a: 18, b: 10, c: 11 });
    expect(names(decision)).toEqual(["b", "c", "a"]);
  });

  it.each([
    [1, 6.25],
    [2, 9.5],
    [0, 3],
  ])("counts prefill in fractions of a block: weight %d costs %d", (overlapScoreWeight, expected) => {
    const load = { activePrefillTokens: 34, activeDecodeBlocks: 2, newBlocks: 1 };
    expect(costs(run(34, [candidate("a", { overlapBlocks: 1, load })], { overlapScoreWeight }))).toEqual({
      a: expected,
    });
  });

  it("never goes below zero when more is cached than the prompt is long", () => {
    expect(costs(run(20, [candidate("a", { overlapBlocks: 4 })]))).toEqual({ a: 0 });
  });

  it("breaks ties by the smallest tree, which a worker without overlap does not have", () => {
    const tied = [
      candidate("big", { overlapBlocks: 1, treeSize: 9, load: { newBlocks: 1 } }),
      candidate("small", { overlapBlocks: 1, treeSize: 3, load: { newBlocks: 1 } }),
    ];
    for (let i = 0; i < 20; i++) expect(names(run(32, tied))[0]).toBe("small");
    const cold = candidate("cold", { treeSize: 99, load: { newBlocks: 0 } });
    for (let i = 0; i < 20; i++) expect(names(run(32, [...tied, cold]))[0]).toBe("cold");
  });

  it("gives what is still tied to chance, all orders equally", () => {
    const tied = ["a", "b", "c"].map((worker) => candidate(worker));
    const orders = new Map<string, number>();
    for (let i = 0; i < 6000; i++) {
      const order = names(run(32, tied)).join("");
      orders.set(order, (orders.get(order) ?? 0) + 1);
    }
    expect([...orders.keys()].sort()).toEqual(["abc", "acb", "bac", "bca", "cab", "cba"]);
    for (const count of orders.values()) expect(Math.abs(count - 1000)).toBeLessThan(150);
  });
});

describe("kv-1.x", () => {
  const tiered = { mode: "kv-1.x" } as const;

  it("scales the load that is left after the credit", () => {
    const decision = run(
      64,
      [candidate("a", { overlapBlocks: 2, load: { activeDecodeBlocks: 3 } }), candidate("b")],
      { ...tiered, prefillLoadScale: 2 },
    );
    expect(costs(decision)).toEqual({ a: 7, b: 8 });
  });

  it.each([
    [1, { a: 9, b: 8 }],
    [1.5, { a: 7, b: 8 }],
  ])("credit %d per cached block", (overlapScoreCredit, expected) => {
    const warm = candidate("a", { overlapBlocks: 4, load: { activeDecodeBlocks: 5 } });
    expect(costs(run(128, [warm, candidate("b")], { ...tiered, overlapScoreCredit }))).toEqual(expected);
  });

  it("clamps the credit at the prefill it can save; without prefill tracking it eats into decode", () => {
    const load = { activePrefillTokens: 16, activeDecodeBlocks: 2, newBlocks: 3 };
    const warm = candidate("a", { overlapBlocks: 6, load });
    const config = { ...tiered, prefillLoadScale: 2 };
    expect(costs(run(64, [warm], config))).toEqual({ a: 7 });
    expect(costs(run(64, [warm], { ...config, trackPrefillTokens: false, overlapScoreCredit: 0 }))).toEqual({
      a: 5,
    });
    expect(costs(run(64, [warm], { ...config, trackPrefillTokens: false }))).toEqual({ a: 0 });
  });

  it("charges running requests", () => {
    const busy = candidate("a", { load: { activeDecodeBlocks: 100, activeRequests: 4 } });
    expect(costs(run(0, [busy], { ...tiered, decodeActiveRequestWeight: 32 }))).toEqual({ a: 228 });
  });

  it("fades the credit of workers that are behind with prefill", () => {
    const queued = candidate("a", { overlapBlocks: 4, load: { activePrefillTokens: 48 } });
    const fresh = run(64, [queued, candidate("b")], tiered);
    expect(costs(fresh)).toEqual({ a: 3, b: 4 });
    const faded = run(64, [queued, candidate("b")], { ...tiered, overlapScoreCreditDecay: 1 });
    expect(costs(faded).a).toBeCloseTo(7 - 4 / 1.75, 12);
    expect(names(faded)[0]).toBe("b");
  });

  it("credits lower tiers by their weights and counts them as cached", () => {
    const decision = run(
      160,
      [candidate("a", { overlapBlocks: 2, hostExtensionBlocks: 3, diskExtensionBlocks: 9 })],
      { ...tiered, hostCacheHitWeight: 0.5, diskCacheHitWeight: 0.25 },
    );
    expect(decision.chosen!.overlapBlocks).toBe(5.75);
    expect(costs(decision)).toEqual({ a: 4.25 });
  });

  it("credits what a shared cache holds beyond the device", () => {
    const warm = candidate("a", { blockSize: 1, overlapBlocks: 2, sharedBlocksBeyondDevice: 2 });
    const cold = candidate("b", { blockSize: 1, sharedBlocksBeyondDevice: 4 });
    const config = { ...tiered, sharedCacheMultiplier: 0.5 };
    expect(costs(run(4, [warm, cold], config))).toEqual({ a: 1, b: 2 });
    const asked = run(4, [{ ...warm, load: { ...warm.load!, activeDecodeBlocks: 1 } }, cold], config, {
      overrides: { sharedCacheMultiplier: 1 },
    });
    expect(costs(asked)).toEqual({ a: 1, b: 0 });
  });

  it.each([
    [100, 0.85, 90, 50.1],
    [90, -0.25, 100, 114.98],
  ])(
    "multiplies by the preferred taints carried: %d blocks at weight %d",
    (blocks, weight, plain, expected) => {
      const decision = run(
        0,
        [
          candidate("labelled", { taints: ["zone"], load: { activeDecodeBlocks: blocks } }),
          candidate("plain", { load: { activeDecodeBlocks: plain } }),
        ],
        tiered,
        { preferredTaints: { zone: weight } },
      );
      expect(costs(decision).labelled).toBeCloseTo(expected, 2);
      expect(costs(decision).plain).toBe(plain);
    },
  );
});

describe("overrides and pools", () => {
  const warm = candidate("warm", { blockSize: 1, overlapBlocks: 2, load: { activeDecodeBlocks: 1 } });
  const cold = candidate("cold", { blockSize: 1 });

  it.each([
    [{}, "warm"],
    [{ overlapScoreCredit: 0 }, "cold"],
    [{ prefillLoadScale: 0 }, "cold"],
    [{ overlapScoreWeight: 0 }, "cold"],
  ])("kv-1.x with %j goes to %s", (overrides, expected) => {
    expect(names(run(4, [warm, cold], { mode: "kv-1.x" }, { overrides }))[0]).toBe(expected);
  });

  it("the weight of one request is its own", () => {
    expect(names(run(4, [warm, cold], {}, { overrides: { overlapScoreWeight: 0 } }))[0]).toBe("cold");
    expect(names(run(4, [warm, cold]))[0]).toBe("warm");
  });

  it("a prefill pool has no decode term, a decode pool nothing else, whatever a request asks", () => {
    const one = candidate("a", { load: { activePrefillTokens: 4, activeDecodeBlocks: 1, newBlocks: 1 } });
    const facts = { overrides: { overlapScoreWeight: 1.5 } };
    expect(costs(run(20, [one], { role: "prefill" }, facts))).toEqual({ a: 2.25 });
    expect(costs(run(20, [one], { role: "decode" }, facts))).toEqual({ a: 2 });
    expect(costs(run(20, [one], { role: "decode", mode: "kv-1.x" }, facts))).toEqual({ a: 2 });
  });

  it("a decode pool that may prefill on its own keeps the credit", () => {
    const one = candidate("a", { overlapBlocks: 3, load: { activeDecodeBlocks: 10 } });
    const config = { role: "decode", mode: "kv-1.x", conditionalDisagg: true } as const;
    expect(costs(run(64, [one], config))).toEqual({ a: 7 });
  });
});

describe("other modes", () => {
  const fleet = ["a", "b", "c"].map((worker, index) =>
    candidate(worker, { load: { activeRequests: index, activeDecodeBlocks: 10 - index } }),
  );

  it("round-robin takes turns and fails over to the next", () => {
    const orders = [0, 1, 2, 3].map((turn) =>
      names(run(16, fleet, { mode: "round-robin" }, { turn })).join(""),
    );
    expect(orders).toEqual(["abc", "bca", "cab", "abc"]);
  });

  it("random is uniform", () => {
    const counts = firsts(3000, () => run(16, fleet, { mode: "random" }));
    for (const worker of ["a", "b", "c"]) expect(Math.abs(counts.get(worker)! - 1000)).toBeLessThan(120);
  });

  it("least-loaded takes the fewest running requests", () => {
    expect(names(run(16, fleet, { mode: "least-loaded" }))).toEqual(["a", "b", "c"]);
  });

  it("power-of-two never takes the most loaded and takes the least in two of three draws", () => {
    const counts = firsts(3000, () => run(16, fleet, { mode: "power-of-two" }));
    expect(counts.get("c") ?? 0).toBe(0);
    expect(Math.abs(counts.get("a")! - 2000)).toBeLessThan(120);
  });

  it("direct needs a worker and takes no other", () => {
    expect(run(16, fleet, { mode: "direct" }).rejection?.code).toBe("invalid_request");
    const pinned = run(16, fleet, { mode: "direct" }, { pin: { worker: "c", rank: null } });
    expect(names(pinned)).toEqual(["c"]);
    expect(pinned.excluded.map((one) => one.reason)).toEqual(Array(2).fill("not the pinned worker"));
    for (const pin of [
      { worker: "x", rank: null },
      { worker: "a", rank: 3 },
    ]) {
      expect(run(16, fleet, { mode: "direct" }, { pin }).rejection?.code).toBe("worker_not_found");
    }
  });
});

describe("who may serve", () => {
  it("names a reason for everyone left out", () => {
    const decision = run(
      16,
      [
        candidate("dead", { excluded: "dead", taints: ["zone"] }),
        candidate("foreign", { taints: ["zone"] }),
        candidate("plain"),
        candidate("fit", { taints: ["zone"] }),
      ],
      {},
      { allowedWorkers: new Set(["dead", "plain", "fit"]), requiredTaints: ["zone"] },
    );
    expect(names(decision)).toEqual(["fit"]);
    expect(decision.excluded.map((one) => [one.candidate.worker, one.reason])).toEqual([
      ["dead", "dead"],
      ["foreign", "not among the allowed workers"],
      ["plain", "lacks required taint zone"],
    ]);
  });

  it("rejects when nobody is left", () => {
    expect(run(16, []).rejection?.code).toBe("no_workers");
    expect(run(16, [candidate("a")], {}, { requiredTaints: ["zone"] }).rejection?.code).toBe("no_workers");
  });

  const limits = {
    activeDecodeBlocksThreshold: 0.5,
    activePrefillTokensThreshold: 1000,
    activePrefillTokensThresholdFrac: 2,
  };
  const at = (worker: string, rank: number, load: Partial<Candidate["load"]> | null, data = {}): Candidate =>
    candidate(worker, { rank, load, totalBlocks: 100, maxNumBatchedTokens: 400, ...data });

  it.each([
    ["at the decode threshold", { activeDecodeBlocks: 50 }, {}, false],
    ["above it", { activeDecodeBlocks: 51 }, {}, true],
    ["above it, capacity unknown", { activeDecodeBlocks: 51 }, { totalBlocks: null }, false],
    ["above it, capacity zero", { activeDecodeBlocks: 51 }, { totalBlocks: 0 }, false],
    ["at the batch fraction", { activePrefillTokens: 800 }, {}, false],
    ["above the batch fraction", { activePrefillTokens: 801 }, {}, true],
    ["above it, batch size unknown", { activePrefillTokens: 801 }, { maxNumBatchedTokens: null }, false],
    ["above the prefill tokens", { activePrefillTokens: 1001 }, { maxNumBatchedTokens: null }, true],
    ["of unknown load", null, {}, false],
  ])("a rank %s", (_name, load, data, busy) => {
    const decision = run(16, [at("a", 0, load, data), at("b", 0, {})], { busy: limits });
    expect(names(decision).includes("a")).toBe(!busy);
  });

  it("a worker with one free rank keeps both", () => {
    const decision = run(16, [at("a", 0, { activeDecodeBlocks: 99 }), at("a", 1, {})], { busy: limits });
    expect(decision.ranking).toHaveLength(2);
  });

  it("all busy is a rejection to retry, pinned or not", () => {
    const fleet = [at("a", 0, { activeDecodeBlocks: 99 }), at("b", 0, { activeDecodeBlocks: 99 })];
    const free = [...fleet, at("c", 0, {})];
    for (const mode of ["kv", "random", "round-robin"] as const) {
      const { rejection } = run(16, fleet, { mode, busy: limits });
      expect(rejection).toMatchObject({ code: "workers_busy", retryAfterSeconds: 1, kind: { status: 503 } });
    }
    const pinned = run(16, free, { busy: limits }, { pin: { worker: "a", rank: null } });
    expect(pinned.rejection?.code).toBe("workers_busy");
  });
});

describe("standings", () => {
  it("unknown load is not idle: it ranks behind everyone known, by what is cached", () => {
    const fleet = [
      candidate("unknown-cold", { load: null }),
      candidate("loaded", { load: { activeDecodeBlocks: 10_000 } }),
      candidate("unknown-warm", { load: null, overlapBlocks: 2 }),
    ];
    for (const mode of ["kv", "kv-1.x"] as const) {
      for (const temperature of [0, 1]) {
        const decision = run(64, fleet, { mode, temperature });
        expect(decision.chosen!.candidate.worker).toBe("loaded");
      }
    }
    expect(names(run(64, fleet))).toEqual(["loaded", "unknown-warm", "unknown-cold"]);
    expect(names(run(64, fleet, { mode: "least-loaded" }))[0]).toBe("loaded");
  });

  it("as Dynamo 0.9: prefill in full, decode its whole blocks", () => {
    const unknown = candidate("a", { load: null, overlapBlocks: 3 });
    expect(costs(run(220, [unknown], { unknownLoad: "dynamo" }))).toEqual({ a: 13.75 + 13 });
  });

  it("a newcomer competes with the probability of its age", () => {
    const fleet = [
      candidate("old", { ageMs: 60_000, load: { activeDecodeBlocks: 50 } }),
      candidate("new", { ageMs: 2_500 }),
    ];
    const counts = firsts(2000, () => run(64, fleet, { rampUpMs: 10_000 }));
    expect(Math.abs(counts.get("new")! - 500)).toBeLessThan(80);
    expect(names(run(64, fleet))[0]).toBe("new");
    expect(names(run(64, [candidate("new", { ageMs: 0 })], { rampUpMs: 10_000 }))).toEqual(["new"]);
  });

  it("within the tie band the first place is drawn, the rest follows by cost", () => {
    const fleet = [0, 0.5, 0.9, 1].map((blocks) =>
      candidate(`${blocks}`, { load: { activePrefillTokens: blocks * 16 } }),
    );
    const counts = firsts(3000, () => run(16, fleet, { tieBandBlocks: 1 }));
    expect([...counts.keys()].sort()).toEqual(["0", "0.5", "0.9"]);
    for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(120);
    for (let i = 0; i < 50; i++) {
      const [first, ...rest] = names(run(16, fleet, { tieBandBlocks: 1 }));
      expect(rest).toEqual(["0", "0.5", "0.9", "1"].filter((name) => name !== first));
    }
  });
});

describe("rankings", () => {
  it("hold every eligible candidate once and never depend on the order of the fleet in their costs", () => {
    const load = fc.record({
      activePrefillTokens: fc.nat(500),
      activeDecodeBlocks: fc.nat(50),
      activeRequests: fc.nat(5),
      newBlocks: fc.nat(9),
    });
    const one = fc.record({ overlapBlocks: fc.nat(12), load: fc.option(load) });
    const mode = fc.constantFrom("kv", "kv-1.x", "random", "power-of-two", "least-loaded", "round-robin");
    fc.assert(
      fc.property(
        fc.array(one, { minLength: 1, maxLength: 12 }),
        fc.nat(300),
        mode,
        (given, tokens, mode) => {
          const fleet = given.map((facts, index) => candidate(`w${index}`, facts));
          const ranked = run(tokens, fleet, { mode });
          expect(names(ranked).sort()).toEqual(fleet.map((f) => f.worker).sort());
          expect(costs(run(tokens, [...fleet].reverse(), { mode }))).toEqual(costs(ranked));
          expect(ranked.chosen).toBe(ranked.ranking[0]);
        },
      ),
    );
  });
});
