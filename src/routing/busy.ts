/** The busy rule of Dynamo's `/busy_threshold`. */

import type { BusyLimits, Candidate } from "./types.ts";

/**
 * A rank is busy if its decode blocks exceed their fraction of the KV blocks, or its prefill tokens exceed their limit,
 * or their fraction of `max_num_batched_tokens`; strictly greater, and a check whose data is missing is skipped. A
 * worker is busy only if all its known ranks are. Returns the busy workers.
 */
export function busyWorkers(candidates: readonly Candidate[], limits: BusyLimits): ReadonlySet<string> {
  const busy = new Set<string>();
  if (!isLimited(limits)) return busy;
  for (const candidate of candidates) if (isRankBusy(candidate, limits)) busy.add(candidate.worker);
  if (busy.size === 0) return busy;
  for (const candidate of candidates) if (!isRankBusy(candidate, limits)) busy.delete(candidate.worker);
  return busy;
}

function isLimited(limits: BusyLimits): boolean {
  return (
    limits.activeDecodeBlocksThreshold !== null ||
    limits.activePrefillTokensThreshold !== null ||
    limits.activePrefillTokensThresholdFrac !== null
  );
}

function isRankBusy({ load, totalBlocks, maxNumBatchedTokens }: Candidate, limits: BusyLimits): boolean {
  if (load === null) return false;
  return (
    exceeds(load.activeDecodeBlocks, limits.activeDecodeBlocksThreshold, totalBlocks) ||
    exceeds(load.activePrefillTokens, limits.activePrefillTokensThreshold, 1) ||
    exceeds(load.activePrefillTokens, limits.activePrefillTokensThresholdFrac, maxNumBatchedTokens)
  );
}

function exceeds(value: number, threshold: number | null, whole: number | null): boolean {
  return threshold !== null && whole !== null && whole > 0 && value > threshold * whole;
}
