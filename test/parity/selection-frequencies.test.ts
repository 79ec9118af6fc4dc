/** How often each worker is chosen, at any temperature, follows Dynamo's own draws: chi-square of counts. */

import { describe, expect, it } from "vitest";
import { decide, type PolicyConfig, plainRequest } from "../../src/routing/index.ts";
import { softmaxProbabilities } from "../../src/routing/random.ts";
import { candidate, policy, seededRandom } from "../../src/routing/testing.ts";
import { fixtureLines } from "./fixtures.ts";

interface Recorded {
  readonly version: "0.9.1" | "1.6.1";
  readonly temperature: number;
  readonly costs: readonly number[];
  readonly draws: number;
  readonly counts: readonly number[];
}

const recorded = fixtureLines("selection-frequencies.jsonl").map((text): Recorded => JSON.parse(text));

/** Exceeded by chance once in a thousand, for (0,) 1, 2 and 3 degrees of freedom. */
const CRITICAL = [1e-9, 10.83, 13.82, 16.27];

/** Draws of Kedge's decision, each with fresh chance, among workers whose decode blocks are their cost. */
function draw({ version, costs, draws }: Recorded, temperature: number, seed: number): number[] {
  const random = seededRandom(seed);
  const mode: PolicyConfig["mode"] = version === "0.9.1" ? "kv" : "kv-1.x";
  const fleet = costs.map((cost, index) => candidate(String(index), { load: { activeDecodeBlocks: cost } }));
  const counts = costs.map(() => 0);
  for (let i = 0; i < draws; i++) {
    const { chosen } = decide(plainRequest(0), fleet, policy({ mode, temperature }), random);
    counts[Number(chosen!.candidate.worker)]! += 1;
  }
  return counts;
}

/** Cells that are expected less than five times are pooled into the most frequent one. */
function chiSquare(
  counts: readonly number[],
  expected: readonly number[],
): { value: number; critical: number } {
  const main = expected.indexOf(Math.max(...expected));
  const cells = new Map<number, { count: number; expected: number }>();
  expected.forEach((mean, index) => {
    const into = mean < 5 ? main : index;
    const cell = cells.get(into) ?? { count: 0, expected: 0 };
    cells.set(into, { count: cell.count + counts[index]!, expected: cell.expected + mean });
  });
  let value = 0;
  for (const cell of cells.values()) value += (cell.count - cell.expected) ** 2 / cell.expected;
  return { value, critical: CRITICAL[cells.size - 1]! };
}

function expectedCounts({ costs, draws }: Recorded, temperature: number): number[] {
  const least = Math.min(...costs);
  const ties = costs.filter((cost) => cost === least).length;
  const probabilities =
    temperature === 0
      ? costs.map((cost) => (cost === least ? 1 / ties : 0))
      : softmaxProbabilities(costs, temperature);
  return probabilities.map((probability) => probability * draws);
}

describe.each(recorded.map((line, index) => [index, line] as const))("line %i", (index, line) => {
  it(`${line.version} at ${line.temperature}: Dynamo's counts fit Kedge's probabilities`, () => {
    const { value, critical } = chiSquare(line.counts, expectedCounts(line, line.temperature));
    expect(value).toBeLessThanOrEqual(critical);
  });

  it(`${line.version} at ${line.temperature}: Kedge's own draws do`, () => {
    const counts = draw(line, line.temperature, 100 + index);
    const { value, critical } = chiSquare(counts, expectedCounts(line, line.temperature));
    expect(value).toBeLessThanOrEqual(critical);
    expect(
      counts.every((count, worker) => count === 0 || expectedCounts(line, line.temperature)[worker]! > 0),
    ).toBe(true);
  });
});

describe("the test itself", () => {
  it.each([0.5, 1])("notices half the temperature, at %d", (temperature) => {
    for (const line of recorded.filter((one) => one.temperature === temperature)) {
      const { value, critical } = chiSquare(line.counts, expectedCounts(line, temperature / 2));
      expect(value).toBeGreaterThan(critical);
    }
  });
});
