/** What the view says of holders becomes overlap in blocks: counts, estimates, tiers, salts, age. */

import { describe, expect, it } from "vitest";
import { defineConfig } from "../config/index.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { PrefixChain } from "../prefix/types.ts";
import type { LookupResult, ViewRead } from "../store/types.ts";
import {
  askableKeys,
  candidatesOf,
  feedSettings,
  type Prompt,
  predictionLifeMs,
  rungOf,
} from "./candidates.ts";

interface Held {
  readonly slot: number;
  readonly confirmed?: readonly [depth: number, tokens: number];
  readonly predicted?: readonly [depth: number, tokens: number];
}

function lookup(held: readonly Held[]): LookupResult {
  const column = (pick: (one: Held) => number) => Uint32Array.from(held, pick);
  return {
    count: held.length,
    slots: column(({ slot }) => slot),
    confirmedDepth: column(({ confirmed }) => confirmed?.[0] ?? 0),
    confirmedTokens: column(({ confirmed }) => confirmed?.[1] ?? 0),
    predictedDepth: column(({ predicted }) => predicted?.[0] ?? 0),
    predictedTokens: column(({ predicted }) => predicted?.[1] ?? 0),
    probes: 1,
    truncated: false,
  };
}

const row = (worker: string, slot: number, overrides: Partial<FleetRow> = {}): FleetRow =>
  ({
    worker,
    rank: 0,
    blockSize: 16,
    slots: { device: slot, host: slot + 1, disk: slot + 2 },
    load: { activeBlocks: 3, prefillTokens: 20, running: 1, waiting: 2 },
    reserved: { requests: 1, blocks: 4, prefillTokens: 30 },
    feed: { lagEvents: 0, lagMs: 0 },
    kvEvents: true,
    saltInEvents: true,
    ageMs: 60_000,
    taints: [],
    totalBlocks: 100,
    maxNumBatchedTokens: 2_048,
    ...overrides,
  }) as FleetRow;

const chain = (overrides: Partial<PrefixChain> = {}): PrefixChain => ({
  scheme: "bytes",
  root: 1n,
  keys: new BigUint64Array(10),
  unitSize: 128,
  unitCount: 1_300,
  complete: true,
  ...overrides,
});

const prompt = (overrides: Partial<Prompt> = {}): Prompt => ({
  chain: chain(),
  exactTokens: null,
  bytes: 1_300,
  bytesPerToken: 4,
  salted: false,
  ...overrides,
});

function holdings(rows: readonly FleetRow[], held: readonly Held[], asked = prompt(), input = {}) {
  const config = defineConfig(input);
  const view = { epoch: "e", fleet: rows, lookup: lookup(held) } as Partial<ViewRead> as ViewRead;
  return candidatesOf(view, rows, asked, config, feedSettings(config), () => null);
}

const overlaps = (...args: Parameters<typeof holdings>) =>
  holdings(...args).candidates.map(({ overlapBlocks }) => overlapBlocks);

describe("overlap", () => {
  it("is the holder's own count in whole blocks", () => {
    expect(overlaps([row("a", 1), row("b", 4)], [{ slot: 1, confirmed: [5, 170] }])).toEqual([10, 0]);
  });

  it("asks for no key that ends with its prompt, for the last token is always computed", () => {
    const asked = (overrides: Partial<PrefixChain>) => askableKeys(chain(overrides)).length;
    expect(asked({ unitCount: 1_300 })).toBe(10);
    expect(asked({ unitCount: 1_280 })).toBe(9);
    expect(asked({ unitCount: 1_280, complete: false })).toBe(10);
    expect(asked({ keys: new BigUint64Array(0), unitCount: 0 })).toBe(0);
    expect(asked({ keys: new BigUint64Array(0), unitCount: 100 })).toBe(0);
    expect(askableKeys(null)).toHaveLength(0);
  });

  it("takes a prediction only where it reaches deeper, counted as far as anybody has counted", () => {
    const rows = [row("a", 1), row("b", 4)];
    const counted: Held = { slot: 1, confirmed: [8, 200], predicted: [8, 256] };
    expect(overlaps(rows, [counted])).toEqual([12, 0]);
    // 200 counted tokens to key 8, then two keys of 128 bytes at 4 bytes per token: 264.
    expect(overlaps(rows, [counted, { slot: 4, predicted: [10, 320] }])).toEqual([12, 16]);
    const tokens = prompt({
      chain: chain({ scheme: "tokens", unitSize: 16, unitCount: 165 }),
      exactTokens: 165,
    });
    expect(overlaps(rows, [{ slot: 4, predicted: [10, 999] }], tokens)).toEqual([0, 10]);
  });

  it("leaves predictions where all prompts were computed and events came: they know of evictions too", () => {
    const held: Held[] = [{ slot: 1, confirmed: [3, 96], predicted: [10, 320] }];
    const done = {
      load: { activeBlocks: 20, prefillTokens: 0, running: 1, waiting: 0 },
      reserved: { requests: 0, blocks: 0, prefillTokens: 0 },
    };
    const reserved = { requests: 1, blocks: 1, prefillTokens: 0 };
    expect(overlaps([row("a", 1, done)], held)).toEqual([6]);
    expect(overlaps([row("a", 1, { ...done, reserved })], held)).toEqual([20]);
    expect(overlaps([row("a", 1, { ...done, load: { ...done.load, prefillTokens: 9 } })], held)).toEqual([
      20,
    ]);
    expect(overlaps([row("a", 1, { ...done, load: { ...done.load, prefillTokens: null } })], held)).toEqual([
      20,
    ]);
    expect(overlaps([row("a", 1, { ...done, feed: { lagEvents: 0, lagMs: 3_000 } })], held)).toEqual([20]);
    expect(overlaps([row("a", 1, { ...done, kvEvents: false })], held)).toEqual([20]);
  });

  it("never reaches the last token of a prompt whose length is known, however a prediction is estimated", () => {
    const counted = prompt({ exactTokens: 161, bytesPerToken: 1 });
    expect(overlaps([row("a", 1)], [{ slot: 1, predicted: [10, 320] }], counted)).toEqual([10]);
    expect(
      overlaps([row("a", 1)], [{ slot: 1, predicted: [10, 320] }], { ...counted, exactTokens: 160 }),
    ).toEqual([9]);
  });

  it("knows only predictions where events do not tell", () => {
    const held: Held[] = [{ slot: 1, confirmed: [5, 160], predicted: [2, 64] }];
    expect(overlaps([row("a", 1)], held)).toEqual([10]);
    expect(overlaps([row("a", 1)], held, prompt(), { router: { kvEvents: false } })).toEqual([4]);
    expect(overlaps([row("a", 1, { saltInEvents: false })], held, prompt({ salted: true }))).toEqual([4]);
    expect(overlaps([row("a", 1, { saltInEvents: false })], held)).toEqual([10]);
    expect(overlaps([row("a", 1, { feed: { lagEvents: 0, lagMs: 121_000 } })], held)).toEqual([4]);
  });

  it("counts host and disk as what they add to the tier above", () => {
    const held: Held[] = [
      { slot: 1, confirmed: [2, 64] },
      { slot: 2, confirmed: [5, 160] },
      { slot: 3, confirmed: [4, 128] },
    ];
    const [candidate] = holdings([row("a", 1)], held).candidates;
    expect(candidate).toMatchObject({ overlapBlocks: 4, hostExtensionBlocks: 6, diskExtensionBlocks: 0 });
  });
});

describe("a lagging feed", () => {
  const config = defineConfig();
  const feed = feedSettings(config);
  const lagging = { feed: { lagEvents: 1_001, lagMs: 500 } };
  const silent = { feed: { lagEvents: 0, lagMs: 2_001 } };

  it("is its own worker's: the others stay exact", () => {
    const rungs = [
      row("a", 1),
      row("b", 4, lagging),
      row("c", 7, silent),
      row("d", 10, { kvEvents: false }),
    ].map((one) => rungOf(one, false, config, feed));
    expect(rungs).toEqual(["exact", "predicted", "predicted", "predicted"]);
  });

  it("gives its worker the larger of what was confirmed and what is predicted since", () => {
    const done = {
      load: { activeBlocks: 20, prefillTokens: 0, running: 1, waiting: 0 },
      reserved: { requests: 0, blocks: 0, prefillTokens: 0 },
    };
    const held: Held[] = [1, 4].map((slot) => ({ slot, confirmed: [3, 96], predicted: [10, 320] }));
    expect(overlaps([row("a", 1, done), row("b", 4, { ...done, ...lagging })], held)).toEqual([6, 20]);
    const deeper: Held = { slot: 4, confirmed: [5, 160], predicted: [2, 64] };
    expect(overlaps([row("b", 4, { ...done, ...silent })], [deeper])).toEqual([10]);
  });

  it("lets new predictions live the full time", () => {
    expect(predictionLifeMs(row("a", 1), false, config, feed)).toBe(5_000);
    expect(predictionLifeMs(row("a", 1, lagging), false, config, feed)).toBe(120_000);
    expect(predictionLifeMs(row("a", 1, silent), false, config, feed)).toBe(120_000);
    expect(predictionLifeMs(row("a", 1, { saltInEvents: false }), true, config, feed)).toBe(120_000);
  });
});

describe("a candidate", () => {
  it("carries reported load and reservations, and the request's blocks in full", () => {
    const { candidates, promptTokens } = holdings([row("a", 1)], []);
    expect(promptTokens).toBe(325);
    expect(candidates[0]!.load).toEqual({
      activePrefillTokens: 50,
      activeDecodeBlocks: 7,
      activeRequests: 4,
      newBlocks: 21,
    });
    const unknown = row("a", 1, {
      load: { activeBlocks: null, prefillTokens: null, running: null, waiting: null },
    });
    expect(holdings([unknown], []).candidates[0]!.load).toBeNull();
  });

  it("estimates the prompt from the deepest count and the rest", () => {
    const { promptTokens } = holdings([row("a", 1)], [{ slot: 1, confirmed: [8, 200] }]);
    expect(promptTokens).toBe(200 + Math.round((1_300 - 1_024) / 4));
  });

  it("is a newcomer only beside somebody grown", () => {
    const young = row("a", 1, { ageMs: 10 });
    expect(holdings([young, row("b", 4, { ageMs: 20 })], []).candidates.map(({ ageMs }) => ageMs)).toEqual([
      null,
      null,
    ]);
    expect(holdings([young, row("b", 4)], []).candidates.map(({ ageMs }) => ageMs)).toEqual([10, 60_000]);
  });
});
