/**
 * `kv`: Dynamo's cost in its 0.9 form.
 *
 *     prefill_tokens = active_prefill_tokens + max(0, prompt_tokens − overlap_blocks · block_size)
 *     prefill_blocks = prefill_tokens / block_size                        not rounded
 *     decode_blocks  = active_decode_blocks + new_blocks                  0 in a prefill pool
 *     cost           = overlap_score_weight · prefill_blocks + decode_blocks
 *
 * Unknown load, `dynamo`: prefill_tokens = prompt_tokens whatever is cached, decode_blocks = ⌊prefill_blocks⌋.
 * Unknown load, `behind`: the worker counts as empty of load but its cache counts, the request's full blocks are all
 * new, and it ranks behind every worker of known load. Ties: smallest tree size, then uniformly at random.
 */

import { orderByCost } from "../order.ts";
import type { Candidate, PolicyConfig, Scored } from "../types.ts";
import type { Policy } from "./policy.ts";

export const kv: Policy = {
  score: (eligible, facts, settings) =>
    eligible.map((candidate) => scoreKv(candidate, facts.promptTokens, settings)),
  order: (scored, _facts, settings, random) => orderByCost(scored, settings, random, bySmallerTree),
};

/** One candidate's cost; also the informational cost of the modes that do not rank by it. */
export function scoreKv(candidate: Candidate, promptTokens: number, settings: PolicyConfig): Scored {
  const { blockSize, load, overlapBlocks } = candidate;
  const weight = settings.overlapScoreWeight;
  const blind = load === null && settings.unknownLoad === "dynamo";
  const uncached = blind ? promptTokens : Math.max(0, promptTokens - overlapBlocks * blockSize);
  const prefillBlocks = ((load?.activePrefillTokens ?? 0) + uncached) / blockSize;
  const decodeBlocks = settings.trackActiveBlocks
    ? load === null
      ? Math.floor(promptTokens / blockSize)
      : load.activeDecodeBlocks + load.newBlocks
    : 0;
  return {
    candidate,
    overlapBlocks,
    prefillBlocks,
    decodeBlocks,
    weight,
    cost: weight * prefillBlocks + decodeBlocks,
    tiered: null,
    standing: "ready",
  };
}

/** Dynamo 0.9 sees the tree of a worker without overlap as empty. */
export function visibleTreeSize(candidate: Candidate): number {
  return candidate.overlapBlocks > 0 ? candidate.treeSize : 0;
}

function bySmallerTree(a: Scored, b: Scored): number {
  return visibleTreeSize(a.candidate) - visibleTreeSize(b.candidate);
}
