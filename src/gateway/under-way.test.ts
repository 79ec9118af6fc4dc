/** Requests under way are counted once each, and what an edge host dropped is forgotten. */

import { describe, expect, it } from "vitest";
import { UnderWay } from "./under-way.ts";

describe("requests under way", () => {
  const a = { worker: "a", rank: 0 };

  it("count per rank until they end, once", () => {
    const underWay = new UnderWay();
    const first = underWay.begin(a, 0);
    const second = underWay.begin(a, 1);
    underWay.begin({ worker: "a", rank: 1 }, 1);
    expect([
      underWay.of(a),
      underWay.of({ worker: "a", rank: 1 }),
      underWay.of({ worker: "b", rank: 0 }),
    ]).toEqual([2, 1, 0]);
    first();
    first();
    expect(underWay.of(a)).toBe(1);
    second();
    expect(underWay.of(a)).toBe(0);
  });

  it("that never end stop counting after an hour", () => {
    const underWay = new UnderWay();
    const lost = underWay.begin(a, 0);
    underWay.begin(a, 3_600_001);
    expect(underWay.of(a)).toBe(1);
    lost();
    expect(underWay.of(a)).toBe(1);
  });
});
