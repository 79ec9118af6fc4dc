/** Softmax is a distribution for any costs, and the recorded one for those of the reference. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { drawIndex, softmaxProbabilities } from "./random.ts";

describe("softmax", () => {
  it.each([
    [[5, 3, 7, 3.5], 1, [0.2123, 0.35, 0.1288, 0.3089]],
    [[5, 3, 7, 3.5], 0.5, [0.1612, 0.4382, 0.0593, 0.3413]],
    [[18, 10, 11], 1, [0.1635, 0.4444, 0.3922]],
    [[18, 10, 11], 0.1, [0.0000353, 0.77727, 0.22269]],
    [[4, 4], 1, [0.5, 0.5]],
  ])("of %j at %d", (costs, temperature, expected) => {
    softmaxProbabilities(costs, temperature).forEach((p, index) => {
      expect(p).toBeCloseTo(expected[index]!, 4);
    });
  });

  it("survives the ends of the number range", () => {
    const extremes = softmaxProbabilities([-Number.MAX_VALUE, Number.MAX_VALUE], 1);
    expect(drawIndex(extremes, 0.6)).toBe(0);
    expect(softmaxProbabilities([1, 2], Number.MIN_VALUE)).toEqual([1, 0]);
  });

  it("is a distribution for any finite costs and temperature", () => {
    const finite = fc.double({ noNaN: true, noDefaultInfinity: true });
    const temperature = fc.double({ min: Number.MIN_VALUE, max: 1e300, noNaN: true });
    fc.assert(
      fc.property(fc.array(finite, { minLength: 1, maxLength: 20 }), temperature, (costs, t) => {
        const p = softmaxProbabilities(costs, t);
        expect(p.every((one) => one >= 0 && one <= 1)).toBe(true);
        expect(p.reduce((sum, one) => sum + one, 0)).toBeCloseTo(1, 9);
        expect(p[costs.indexOf(Math.min(...costs))]).toBe(Math.max(...p));
      }),
    );
  });
});
