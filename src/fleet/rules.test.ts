/** Rules over fleet rows: liveness, feed lag, load, names. */

import { describe, expect, it } from "vitest";
import {
  awaitsEvents,
  DEFAULT_FEED,
  DEFAULT_LIVENESS,
  effectiveLoad,
  feedLagging,
  heldDepth,
  isAlive,
  predictionTtlMs,
  resolveModel,
} from "./rules.ts";

const feed = (lagEvents: number, lagMs: number) => ({ kvEvents: true, feed: { lagEvents, lagMs } });

describe("liveness", () => {
  it("buries a rank only if it is silent while the bus is known to work", () => {
    expect(isAlive(5_000, 0, DEFAULT_LIVENESS)).toBe(true);
    expect(isAlive(5_001, 1_000, DEFAULT_LIVENESS)).toBe(false);
    expect(isAlive(60_000, 3_000, DEFAULT_LIVENESS)).toBe(true);
  });
});

describe("feed lag", () => {
  it("lags above 1,000 batches or 2 s, and always without events", () => {
    expect(feedLagging(feed(1_000, 2_000), DEFAULT_FEED)).toBe(false);
    expect(feedLagging(feed(1_001, 0), DEFAULT_FEED)).toBe(true);
    expect(feedLagging(feed(0, 2_001), DEFAULT_FEED)).toBe(true);
    expect(feedLagging({ ...feed(0, 0), kvEvents: false }, DEFAULT_FEED)).toBe(true);
  });

  it("trusts what was confirmed before for as long as a prediction lives", () => {
    expect(heldDepth(feed(0, 120_000), 9, 4, DEFAULT_FEED)).toBe(9);
    expect(heldDepth(feed(0, 120_001), 9, 4, DEFAULT_FEED)).toBe(4);
  });

  it("takes the larger of what was confirmed before and what is predicted since", () => {
    expect(heldDepth(feed(5_000, 3_000), 4, 9, DEFAULT_FEED)).toBe(9);
    expect(heldDepth(feed(5_000, 3_000), 9, 4, DEFAULT_FEED)).toBe(9);
    expect(heldDepth(feed(5_000, 200_000), 9, 0, DEFAULT_FEED)).toBe(0);
  });

  it("has its limits from the settings", () => {
    const strict = { ...DEFAULT_FEED, lagEvents: 10, lagMs: 100, predictionTtlMs: 1_000 };
    expect(feedLagging(feed(11, 0), strict)).toBe(true);
    expect(feedLagging(feed(10, 100), strict)).toBe(false);
    expect(predictionTtlMs(feed(11, 0), strict)).toBe(1_000);
    expect(heldDepth(feed(0, 1_001), 9, 4, strict)).toBe(4);
  });

  it("waits for events while prompts are before the rank, known or perhaps", () => {
    const rank = (prefillTokens: number | null, requests = 0) => ({
      load: { activeBlocks: 9, prefillTokens, running: 1, waiting: 0 },
      reserved: { requests, blocks: 0, prefillTokens: 0 },
    });
    expect(awaitsEvents(rank(0))).toBe(false);
    expect(awaitsEvents(rank(1))).toBe(true);
    expect(awaitsEvents(rank(null))).toBe(true);
    expect(awaitsEvents(rank(0, 1))).toBe(true);
  });

  it("lets predictions live the full TTL only where events do not come", () => {
    expect(predictionTtlMs({ ...feed(0, 0), kvEvents: false }, DEFAULT_FEED)).toBe(120_000);
    expect(predictionTtlMs(feed(1_001, 0), DEFAULT_FEED)).toBe(120_000);
    expect(predictionTtlMs(feed(0, 0), DEFAULT_FEED)).toBe(DEFAULT_FEED.bridgeTtlMs);
    expect(predictionTtlMs(feed(0, 9_000), DEFAULT_FEED)).toBe(120_000);
  });
});

describe("load", () => {
  const reserved = { requests: 2, blocks: 10, prefillTokens: 100 };

  it("adds open reservations to the last report", () => {
    const load = { activeBlocks: 5, prefillTokens: 7, running: 3, waiting: 1 };
    expect(effectiveLoad({ load, reserved })).toEqual({
      activePrefillTokens: 107,
      activeDecodeBlocks: 15,
      activeRequests: 6,
    });
  });

  it("does not take an unknown load for none", () => {
    const load = { activeBlocks: null, prefillTokens: 0, running: 0, waiting: 0 };
    expect(effectiveLoad({ load, reserved })).toBeNull();
  });
});

describe("model names", () => {
  const rows = [
    { model: "acme/base", servedNames: ["base", "style"], adapters: ["style"] },
    { model: "acme/other", servedNames: ["other", "alias"], adapters: [] },
  ];

  it("resolves served names and adapters, and nothing else", () => {
    expect(resolveModel(rows, "alias")).toEqual({ model: "acme/other", adapter: null });
    expect(resolveModel(rows, "style")).toEqual({ model: "acme/base", adapter: "style" });
    expect(resolveModel(rows, "acme/base")).toBeNull();
  });

  it("prefers the base model of that name to an adapter", () => {
    const both = [...rows, { model: "acme/style", servedNames: ["style"], adapters: [] }];
    expect(resolveModel(both, "style")).toEqual({ model: "acme/style", adapter: null });
  });
});
