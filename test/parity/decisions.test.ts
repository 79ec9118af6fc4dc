/** Decisions of whole running Dynamo 0.9.1 frontends: same costs, digit for digit as printed, and the same choices. */

import { describe, expect, it } from "vitest";
import { decide, formulaLine, plainRequest, type Scored, toFixedEven } from "../../src/routing/index.ts";
import { candidate, policy, seededRandom } from "../../src/routing/testing.ts";
import { fixtureLines } from "./fixtures.ts";

/** [worker, rank, cached blocks, prefill blocks, decode blocks, cost], the last three as printed. */
type Row = [number, number, number, number, number, number];

interface Recorded {
  readonly version: string;
  readonly load_entries: boolean;
  readonly block_size: number;
  readonly isl: number;
  readonly candidates: readonly Row[];
  readonly tie: boolean;
  readonly chosen: {
    readonly worker: number;
    readonly dp_rank: number;
    readonly cost: number;
    readonly cached_blocks: number;
    readonly tree_size: number;
  };
}

const recorded = fixtureLines("decisions.jsonl")
  .map((text): Recorded => JSON.parse(text))
  .filter((line) => line.version === "0.9.1");

/** Prompt tokens queued before this request, from the printed prefill blocks; whole, or the formula is not this one. */
function activePrefillTokens(line: Recorded, [, , cached, prefillBlocks]: Row): number {
  const tokens = Math.round(prefillBlocks * line.block_size);
  return tokens - Math.max(0, line.isl - cached * line.block_size);
}

function decideAgain(line: Recorded) {
  const candidates = line.candidates.map((row) => {
    const [worker, rank, overlapBlocks, , decodeBlocks] = row;
    const isChosen = worker === line.chosen.worker && rank === line.chosen.dp_rank;
    const load = { activePrefillTokens: activePrefillTokens(line, row), activeDecodeBlocks: decodeBlocks };
    return candidate(String(worker), {
      rank,
      blockSize: line.block_size,
      overlapBlocks,
      // Only the winner's is recorded; nobody's is smaller among the tied.
      treeSize: isChosen ? line.chosen.tree_size : Number.MAX_SAFE_INTEGER,
      load: line.load_entries ? load : null,
    });
  });
  const decision = decide(
    plainRequest(line.isl),
    candidates,
    policy({ unknownLoad: "dynamo" }),
    seededRandom(line.isl),
  );
  if (decision.rejection !== null) throw decision.rejection;
  return decision;
}

const find = (ranking: readonly Scored[], worker: number, rank: number): Scored =>
  ranking.find((one) => one.candidate.worker === String(worker) && one.candidate.rank === rank)!;

const printed = (value: number): string => toFixedEven(value, 3);

describe.each([
  ["of known load", true, 290],
  ["without load entries", false, 40],
])("decisions %s", (_name, known, atLeast) => {
  const lines = recorded.filter((line) => line.load_entries === known);

  it("are all there", () => {
    expect(lines.length).toBeGreaterThanOrEqual(atLeast);
  });

  it("print the same parts and costs", () => {
    for (const line of lines) {
      const { ranking } = decideAgain(line);
      for (const row of line.candidates) {
        const [worker, rank, cached, prefill, decode, cost] = row;
        const one = find(ranking, worker, rank);
        expect(activePrefillTokens(line, row) >= 0 || !known).toBe(true);
        expect([one.prefillBlocks, one.decodeBlocks, one.cost].map(printed)).toEqual(
          [prefill, decode, cost].map((value) => value.toFixed(3)),
        );
        expect(formulaLine(one)).toBe(
          `Formula for worker_id=${worker} dp_rank=${rank} with ${cached} cached blocks: ` +
            `${cost.toFixed(3)} = 1.0 * ${prefill.toFixed(3)} + ${decode.toFixed(3)}`,
        );
      }
    }
  });

  it("choose what Dynamo chose, or one of those that it drew from", () => {
    for (const line of lines) {
      const { chosen, ranking } = decideAgain(line);
      const theirs = find(ranking, line.chosen.worker, line.chosen.dp_rank);
      expect(chosen.cost).toBe(theirs.cost);
      expect(ranking.filter((one) => one.cost === chosen.cost).length > 1).toBe(line.tie);
      expect(printed(chosen.cost)).toBe(line.chosen.cost.toFixed(3));
      expect(theirs.overlapBlocks).toBe(line.chosen.cached_blocks);
    }
  });
});
