/** The boundary set: fixed, increasing, bounded, and with the stated rounding loss. */

import { expect, test } from "vitest";
import {
  boundaryAt,
  boundaryCount,
  boundaryIndexAtMost,
  DEEPEST_BOUNDARY,
  MAX_BOUNDARIES,
} from "./boundaries.ts";

const all = Array.from({ length: MAX_BOUNDARIES }, (_, index) => boundaryAt(index));

test("240 strictly increasing depths, every one to 64, the last 8,192", () => {
  expect(all.slice(0, 64)).toEqual(Array.from({ length: 64 }, (_, i) => i + 1));
  expect(all.every((depth, i) => i === 0 || depth > all[i - 1]!)).toBe(true);
  expect(all.at(-1)).toBe(DEEPEST_BOUNDARY);
});

test("at every depth, count and index name the deepest boundary that is not above it", () => {
  for (let depth = 0; depth <= 9000; depth++) {
    const expected = all.filter((boundary) => boundary <= depth);
    expect(boundaryCount(depth)).toBe(expected.length);
    expect(boundaryIndexAtMost(depth)).toBe(expected.length - 1);
  }
  expect(boundaryCount(1_000_000)).toBe(MAX_BOUNDARIES);
});

test("rounding down loses less than 1/32 of a depth to 1,024 and less than 1/16 to 8,192", () => {
  for (let depth = 1; depth <= DEEPEST_BOUNDARY; depth++) {
    const lost = depth - boundaryAt(boundaryIndexAtMost(depth));
    expect(lost / depth).toBeLessThan(depth <= 1024 ? 1 / 32 : 1 / 16);
  }
});
