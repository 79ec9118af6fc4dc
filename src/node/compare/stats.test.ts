/** Figures: percentiles, windows, scaled clocks, cache agreement, knees and gains, each on numbers that can be checked by hand. */

import { describe, expect, test } from "vitest";
import type { Exchange } from "./client.ts";
import { type CurvePoint, curve, gains, knees, type Run } from "./curve.ts";
import type { LoadResult } from "./load.ts";
import { distribution, figures, median } from "./stats.ts";

function exchange(over: Partial<Exchange> = {}): Exchange {
  return {
    startMs: 0,
    firstTextMs: 100,
    lastTextMs: 500,
    endMs: 500,
    text: "",
    promptTokens: 1000,
    completionTokens: 41,
    cachedTokens: 480,
    predictedTokens: 480,
    worker: "a",
    rung: "exact",
    error: null,
    ...over,
  };
}

function result(exchanges: Exchange[], over: Partial<LoadResult> = {}): LoadResult {
  return { exchanges, warmUps: [], windowStartMs: 0, windowEndMs: 1000, endedBy: "requests", ...over };
}

const OPTIONS = { speed: 1, sloTtftMs: 2000 };

describe("distribution", () => {
  test("interpolates between ranks, as numpy's percentile does", () => {
    expect(distribution([4, 1, 3, 2])).toMatchObject({ mean: 2.5, p50: 2.5, p90: 3.7 });
    expect(distribution([4, 1, 3, 2])?.p99).toBeCloseTo(3.97);
    expect(distribution([5])).toEqual({ mean: 5, p50: 5, p90: 5, p99: 5 });
    expect(distribution([])).toBeNull();
    expect(median([3, 1, 2])).toBe(2);
    expect(median([])).toBeNull();
  });

  test("sorts numbers as numbers", () => {
    expect(distribution([10, 9, 100])?.p50).toBe(10);
  });
});

describe("figures", () => {
  test("time first text, gaps between tokens and the whole", () => {
    const f = figures(result([exchange()]), OPTIONS);
    expect(f.ttftMs?.mean).toBe(100);
    expect(f.itlMs?.mean).toBe(10);
    expect(f.e2eMs?.mean).toBe(500);
    expect(f.outputTokensPerSecond).toBe(41);
    expect(f.requestsPerSecond).toBe(1);
  });

  test("are in the engines' time: at a quarter of the speed four times less, and four times the rate", () => {
    const f = figures(result([exchange()]), { speed: 0.25, sloTtftMs: 2000 });
    expect(f.ttftMs?.mean).toBe(25);
    expect(f.wallTtftMeanMs).toBe(100);
    expect(f.itlMs?.mean).toBe(2.5);
    expect(f.outputTokensPerSecond).toBe(164);
    expect(f.windowSeconds).toBe(0.25);
  });

  test("count tokens of the window only", () => {
    const half = exchange({ firstTextMs: 800, lastTextMs: 1200, endMs: 1200, completionTokens: 40 });
    const late = exchange({ firstTextMs: 1100, lastTextMs: 1200, endMs: 1200 });
    const f = figures(result([half, late]), OPTIONS);
    expect(f.outputTokensPerSecond).toBe(20);
    expect(f.requestsPerSecond).toBe(0);
  });

  test("count what warm-up requests still did within the window as throughput, and only as that", () => {
    const warm = exchange({ startMs: -900, firstTextMs: -500, lastTextMs: 500, completionTokens: 100 });
    const f = figures(result([exchange()], { warmUps: [warm] }), OPTIONS);
    expect(f.outputTokensPerSecond).toBe(91);
    expect(f.requestsPerSecond).toBe(2);
    expect(f.requests).toBe(1);
    expect(f.ttftMs?.mean).toBe(100);
  });

  test("leave failures out of the latencies and hold them against the SLO", () => {
    const failed = exchange({ error: "http_503: no_workers", firstTextMs: null, lastTextMs: null });
    const slow = exchange({ firstTextMs: 2500, lastTextMs: 2600, endMs: 2600 });
    const f = figures(result([exchange(), failed, slow, exchange()]), OPTIONS);
    expect(f.errors).toBe(1);
    expect(f.errorKinds).toEqual({ "http_503: no_workers": 1 });
    expect(f.withinSlo).toBe(0.5);
    expect(f.requests).toBe(4);
  });

  test("set predicted tokens against reported ones", () => {
    const f = figures(
      result([
        exchange({ predictedTokens: 512, cachedTokens: 500 }),
        exchange({ predictedTokens: 88, cachedTokens: 300 }),
        exchange({ predictedTokens: null, cachedTokens: 200 }),
      ]),
      OPTIONS,
    );
    expect(f.cache.predicted).toBeCloseTo(0.3);
    expect(f.cache.reported).toBeCloseTo(1 / 3);
    expect(f.cache.bias).toBeCloseTo(-0.25);
    expect(f.cache.error).toBeCloseTo(224 / 800);
    expect(f.cache.exact).toBe(0.5);
  });

  test("say null where nobody spoke", () => {
    const mute = exchange({ predictedTokens: null, cachedTokens: null });
    expect(figures(result([mute]), OPTIONS).cache).toEqual({
      predicted: null,
      reported: null,
      bias: null,
      error: null,
      exact: null,
    });
    expect(figures(result([]), OPTIONS).ttftMs).toBeNull();
  });
});

function point(mode: string, load: number, outputTokensPerSecond: number, withinSlo = 1): CurvePoint {
  return {
    mode,
    load,
    seeds: 1,
    ttftMeanMs: null,
    ttftP50Ms: null,
    ttftP90Ms: null,
    ttftP99Ms: null,
    itlMeanMs: null,
    itlP50Ms: null,
    itlP99Ms: null,
    outputTokensPerSecond,
    requestsPerSecond: 0,
    withinSlo,
    hitPredicted: null,
    hitReported: null,
    hitBias: null,
    errors: 0,
    imbalance: null,
  };
}

describe("knees", () => {
  test("are where throughput stops following the load", () => {
    const points = [point("m", 8, 100), point("m", 16, 190), point("m", 32, 250), point("m", 64, 500)];
    // 8→16: log2(1.9) = 0.93; 16→32: log2(250/190) = 0.40. A later rise does not undo it.
    expect(knees(points)).toEqual([{ mode: "m", load: 16, beyond: false, sloLoad: 64 }]);
  });

  test("may lie beyond the largest load, and need two loads", () => {
    expect(knees([point("m", 8, 100), point("m", 16, 200)])[0]).toMatchObject({ load: 16, beyond: true });
    expect(knees([point("m", 8, 100)])[0]).toMatchObject({ load: null, beyond: false });
  });

  test("judge the SLO without a break", () => {
    const points = [
      point("a", 1, 1, 0.95),
      point("a", 2, 2, 0.5),
      point("a", 4, 4, 1),
      point("b", 1, 1, 0.1),
    ];
    expect(knees(points).map((knee) => knee.sloLoad)).toEqual([1, null]);
  });
});

describe("curve and gains", () => {
  const run = (mode: string, seed: number, ttft: number, tokens: number): Run => ({
    mode,
    load: 16,
    seed,
    figures: figures(
      result([exchange({ firstTextMs: ttft, lastTextMs: ttft + 100, completionTokens: tokens })]),
      OPTIONS,
    ),
  });
  const runs = [
    run("round-robin", 1, 200, 100),
    run("kv", 1, 100, 150),
    run("round-robin", 2, 400, 100),
    run("kv", 2, 100, 200),
    run("round-robin", 3, 300, 100),
    run("kv", 3, 120, 130),
  ];

  test("take medians over seeds, modes in their order", () => {
    expect(curve(runs).map(({ mode, ttftMeanMs, seeds }) => [mode, ttftMeanMs, seeds])).toEqual([
      ["round-robin", 300, 3],
      ["kv", 100, 3],
    ]);
  });

  test("compare seed by seed with the first mode", () => {
    const [gain] = gains(runs);
    expect(gain?.mode).toBe("kv");
    expect(gain?.ttftMean?.median).toBeCloseTo(-0.6);
    expect(gain?.ttftMean?.min).toBeCloseTo(-0.75);
    expect(gain?.ttftMean?.max).toBeCloseTo(-0.5);
    expect(gain?.outputTokensPerSecond?.median).toBeCloseTo(0.5);
  });

  test("leave out seeds that the baseline has not run", () => {
    expect(gains(runs.slice(0, 3))[0]?.ttftMean).toMatchObject({ min: -0.5, max: -0.5 });
    expect(gains([runs[1]!])).toEqual([]);
  });
});
