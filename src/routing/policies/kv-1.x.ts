/**
 * `kv-1.x`: Dynamo's current cost, with lower cache tiers, credits and taints.
 *
 *     cached_tokens = round(block_size · (device + host_weight · host_ext + disk_weight · disk_ext))
 *     raw_prefill   = (active_prefill_tokens + max(prompt_tokens, cached_tokens)) / block_size
 *                     unknown load: prompt_tokens / block_size · prefill tracking off: 0
 *     decay         = 1 / (1 + k · ((active_prefill_tokens − least among the eligible) / block_size)
 *                             / ⌈prompt_tokens / block_size⌉)          k = credit decay, with prefill tracking
 *     credit        = overlap_score_credit · decay · device + host_weight · host_ext + disk_weight · disk_ext
 *                     + shared_multiplier · shared_blocks_beyond_device
 *     decode_blocks = active_decode_blocks + new_blocks                unknown load: 0
 *     cost          = (prefill_load_scale · max(0, raw_prefill − credit) + decode_blocks
 *                     + active_request_weight · active_requests) · exp(−tanh(Σ preferred taint weights carried))
 *
 * With prefill tracking off and a credit, the credit is set against the decode blocks instead: max(0, decode_blocks −
 * credit), whatever the worker's type (as recorded of 1.6.1). Taint weights are 32-bit floats. Ties: uniformly at random.
 */

import { orderByCost } from "../order.ts";
import type { Candidate, PolicyConfig, RequestFacts, Scored } from "../types.ts";
import type { Policy } from "./policy.ts";

export const kvTiered: Policy = {
  score(eligible, facts, settings) {
    const floorTokens = leastPrefillTokens(eligible, settings);
    return eligible.map((candidate) => scoreTiered(candidate, facts, settings, floorTokens));
  },
  order: (scored, _facts, settings, random) => orderByCost(scored, settings, random, null),
};

function scoreTiered(
  candidate: Candidate,
  facts: RequestFacts,
  settings: PolicyConfig,
  floorTokens: number,
): Scored {
  const { blockSize, load } = candidate;
  const { promptTokens } = facts;
  const lowerTiers =
    settings.hostCacheHitWeight * candidate.hostExtensionBlocks +
    settings.diskCacheHitWeight * candidate.diskExtensionBlocks;
  const overlapBlocks = candidate.overlapBlocks + lowerTiers;
  const rawPrefillBlocks = rawPrefillTokens(candidate, promptTokens, overlapBlocks, settings) / blockSize;
  const decay = creditDecay(candidate, promptTokens, settings, floorTokens);
  const creditBlocks =
    settings.overlapScoreCredit * decay * candidate.overlapBlocks +
    lowerTiers +
    settings.sharedCacheMultiplier * candidate.sharedBlocksBeyondDevice;
  const newDecode = settings.trackActiveBlocks && load ? load.activeDecodeBlocks + load.newBlocks : 0;
  const againstDecode = !settings.trackPrefillTokens && settings.overlapScoreCredit > 0;
  const decodeBlocks = againstDecode ? Math.max(0, newDecode - creditBlocks) : newDecode;
  const prefillBlocks = againstDecode ? 0 : Math.max(0, rawPrefillBlocks - creditBlocks);
  const activeRequestBlocks = settings.decodeActiveRequestWeight * (load?.activeRequests ?? 0);
  const factor = taintFactor(candidate, facts.preferredTaints);
  return {
    candidate,
    overlapBlocks,
    prefillBlocks,
    decodeBlocks,
    weight: settings.prefillLoadScale,
    cost: (settings.prefillLoadScale * prefillBlocks + decodeBlocks + activeRequestBlocks) * factor,
    tiered: { rawPrefillBlocks, creditBlocks, decay, activeRequestBlocks, taintFactor: factor },
    standing: "ready",
  };
}

function rawPrefillTokens(
  { load, blockSize }: Candidate,
  promptTokens: number,
  overlapBlocks: number,
  settings: PolicyConfig,
): number {
  if (!settings.trackPrefillTokens) return 0;
  if (load === null) return promptTokens;
  return load.activePrefillTokens + Math.max(promptTokens, Math.round(blockSize * overlapBlocks));
}

function creditDecay(
  { load, blockSize }: Candidate,
  promptTokens: number,
  settings: PolicyConfig,
  floorTokens: number,
): number {
  const k = settings.overlapScoreCreditDecay;
  if (!settings.trackPrefillTokens || k <= 0 || promptTokens <= 0) return 1;
  const excessBlocks = ((load?.activePrefillTokens ?? floorTokens) - floorTokens) / blockSize;
  return 1 / (1 + (k * excessBlocks) / Math.ceil(promptTokens / blockSize));
}

/** Dynamo counts a worker of unknown load as 0 here; when such workers rank behind, they have no say. */
function leastPrefillTokens(eligible: readonly Candidate[], settings: PolicyConfig): number {
  let least = Number.POSITIVE_INFINITY;
  for (const { load } of eligible) {
    if (load !== null) least = Math.min(least, load.activePrefillTokens);
    else if (settings.unknownLoad === "dynamo") least = 0;
  }
  return Number.isFinite(least) ? least : 0;
}

function taintFactor(candidate: Candidate, preferred: Readonly<Record<string, number>>): number {
  if (candidate.taints.length === 0) return 1;
  let sum = 0;
  for (const taint of candidate.taints) {
    if (Object.hasOwn(preferred, taint)) sum += Math.fround(preferred[taint]!);
  }
  return sum === 0 ? 1 : Math.exp(-Math.tanh(sum));
}
