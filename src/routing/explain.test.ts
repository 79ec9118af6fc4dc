/** Explanations show the parts a cost is made of, in Dynamo's own words and digits. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { plainRequest } from "./config.ts";
import { decide } from "./decide.ts";
import { explain, logLines } from "./explain.ts";
import { toFixedEven } from "./format.ts";
import { candidate, policy, seededRandom } from "./testing.ts";
import type { Candidate, Decision, PolicyConfig, RequestFacts } from "./types.ts";

const random = seededRandom(7);

function run(
  promptTokens: number,
  candidates: readonly Candidate[],
  config: Partial<PolicyConfig> = {},
  facts: Partial<RequestFacts> = {},
): Decision {
  return decide({ ...plainRequest(promptTokens), ...facts }, candidates, policy(config), random);
}

describe("explanations", () => {
  it.each([
    [5.8125, 3, "5.812"],
    [5.1875, 3, "5.188"],
    [-5.8125, 3, "-5.812"],
    [0.0625, 3, "0.062"],
    [2.675, 2, "2.67"],
    [0.25, 1, "0.2"],
    [0.75, 1, "0.8"],
    [1569, 3, "1569.000"],
    [1e21, 1, "1000000000000000000000.0"],
    [Number.POSITIVE_INFINITY, 3, "inf"],
  ])("%d with %d decimals is %s", (value, digits, expected) => {
    expect(toFixedEven(value, digits)).toBe(expected);
  });

  it("rounds sixteenths half to even, everything else to the nearest", () => {
    fc.assert(
      fc.property(fc.nat(2 ** 40), (n) => {
        const value = n / 16;
        const thousandths = (BigInt(n) * 1000n) / 16n;
        const rest = (BigInt(n) * 1000n) % 16n;
        const up = rest > 8n || (rest === 8n && thousandths % 2n === 1n);
        const digits = (up ? thousandths + 1n : thousandths).toString().padStart(4, "0");
        expect(toFixedEven(value, 3)).toBe(`${digits.slice(0, -3)}.${digits.slice(-3)}`);
      }),
    );
  });

  const fleet = [
    candidate("a", { overlapBlocks: 1, treeSize: 4, totalBlocks: 1024, load: { newBlocks: 2 } }),
    candidate("b", { load: { newBlocks: 2 } }),
    candidate("c", { excluded: "draining" }),
  ];

  it("has Dynamo's two log lines", () => {
    expect(logLines(run(36, fleet, { overlapScoreWeight: 1.5 }))).toEqual([
      "Formula for worker_id=a dp_rank=0 with 1 cached blocks: 3.875 = 1.5 * 1.250 + 2.000",
      "Formula for worker_id=b dp_rank=0 with 0 cached blocks: 5.375 = 1.5 * 2.250 + 2.000",
      "Selected worker: worker_id=a dp_rank=0, logit: 3.875, cached blocks: 1, tree size: 4, total blocks: 1024",
    ]);
  });

  it("shows the parts whose sum and product the cost is", () => {
    const shown = explain(run(36, fleet, { overlapScoreWeight: 1.5 }));
    expect(shown.chosen).toEqual({ worker: "a", rank: 0 });
    expect(shown.excluded).toEqual([{ worker: "c", rank: 0, overlap_blocks: 0, reason: "draining" }]);
    for (const one of shown.ranking) {
      expect(one.cost).toBe(one.weight * one.prefill_blocks + one.decode_blocks);
    }
    expect(JSON.parse(JSON.stringify(shown))).toEqual(shown);
  });

  it("explains a rejection too", () => {
    const shown = explain(run(36, [fleet[2]!]));
    expect(shown).toMatchObject({ chosen: null, ranking: [], rejection: { code: "no_workers" } });
    expect(shown.excluded).toHaveLength(1);
  });

  it("kv-1.x: credits, charges and taints are in the line", () => {
    const one = candidate("a", {
      overlapBlocks: 1,
      hostExtensionBlocks: 1,
      taints: ["zone"],
      load: { newBlocks: 2, activeRequests: 1 },
    });
    const config = { mode: "kv-1.x", decodeActiveRequestWeight: 8 } as const;
    const decision = run(64, [one], config, { preferredTaints: { zone: -0.25 } });
    expect(logLines(decision)[0]).toMatch(
      /^Formula for worker_id=a dp_rank=0 with 1\.75 cached blocks: \d+\.\d{3} = \(1\.0 \* 2\.250 \+ 2\.000 \+ 8\.000\) \* 1\.278$/,
    );
  });
});
