/** Breakers open on consecutive failures, ignore what is neutral, and come back by one probe in bounded time. */

import { describe, expect, it } from "vitest";
import { Breakers } from "./breaker.ts";

const opened = () => {
  const breakers = new Breakers();
  for (let i = 0; i < 3; i++) breakers.report("w", "1", "failure", 0);
  return breakers;
};

describe("Breakers", () => {
  it("opens after three failures in a row, and a success between starts the count again", () => {
    const breakers = new Breakers();
    for (const result of ["failure", "failure", "success", "failure", "failure"] as const) {
      breakers.report("w", "1", result, 0);
    }
    expect(breakers.state("w", "1", 0)).toBe("closed");
    breakers.report("w", "1", "failure", 0);
    expect(breakers.state("w", "1", 0)).toBe("open");
    expect(breakers.admit("w", "1", 0)).toBe(false);
    expect(breakers.admit("other", "1", 0)).toBe(true);
  });

  it("opens on answers that begin and break off, however many have begun", () => {
    const breakers = new Breakers();
    for (let i = 0; i < 3; i++) {
      expect(breakers.admit("w", "1", 0)).toBe(true);
      breakers.report("w", "1", "started", 0);
      breakers.report("w", "1", "failure", 0);
    }
    expect(breakers.admit("w", "1", 0)).toBe(false);
  });

  it("lets others in once a probe has begun to answer, and closes for longer if that breaks off", () => {
    const breakers = opened();
    expect(breakers.admit("w", "1", 1_000)).toBe(true);
    breakers.report("w", "1", "started", 1_001);
    expect(breakers.admit("w", "1", 1_001)).toBe(true);
    breakers.report("w", "1", "failure", 1_002);
    expect(breakers.admit("w", "1", 3_001)).toBe(false);
    expect(breakers.admit("w", "1", 3_002)).toBe(true);
  });

  it("is never moved by neutral results", () => {
    const breakers = new Breakers();
    for (let i = 0; i < 10; i++) breakers.report("w", "1", "neutral", 0);
    expect(breakers.state("w", "1", 0)).toBe("closed");
    breakers.report("w", "1", "failure", 0);
    breakers.report("w", "1", "failure", 0);
    breakers.report("w", "1", "neutral", 0);
    breakers.report("w", "1", "failure", 0);
    expect(breakers.state("w", "1", 0)).toBe("open");
  });

  it("lets one probe through at a time, and a success closes it", () => {
    const breakers = opened();
    expect(breakers.admit("w", "1", 1_000)).toBe(true);
    expect(breakers.admit("w", "1", 1_000)).toBe(false);
    breakers.report("w", "1", "success", 1_100);
    expect(breakers.admit("w", "1", 1_100)).toBe(true);
    expect(breakers.admit("w", "1", 1_100)).toBe(true);
  });

  it("frees the probe's slot when the probe ends neutrally or never reports", () => {
    const breakers = opened();
    breakers.admit("w", "1", 1_000);
    breakers.report("w", "1", "neutral", 1_001);
    expect(breakers.admit("w", "1", 1_001)).toBe(true);
    expect(breakers.admit("w", "1", 31_000)).toBe(false);
    expect(breakers.admit("w", "1", 31_001)).toBe(true);
  });

  it("doubles the pause up to a bound, so a recovered worker returns in bounded time", () => {
    const breakers = opened();
    let now = 1_000;
    for (const pause of [2_000, 4_000, 8_000, 16_000, 30_000, 30_000]) {
      expect(breakers.admit("w", "1", now)).toBe(true);
      breakers.report("w", "1", "failure", now);
      expect(breakers.admit("w", "1", now + pause - 1)).toBe(false);
      now += pause;
    }
    expect(breakers.admit("w", "1", now)).toBe(true);
  });

  it("starts afresh with a new incarnation", () => {
    expect(opened().state("w", "2", 0)).toBe("closed");
  });
});
