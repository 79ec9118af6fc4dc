/** The decision: eligible candidates, scored and ranked by the policy of the mode. Pure (design D7). */

import { effectiveSettings } from "./config.ts";
import { selectEligible } from "./eligibility.ts";
import { POLICIES } from "./policies/index.ts";
import type { Policy } from "./policies/policy.ts";
import type { Candidate, Decision, PolicyConfig, RandomSource, RequestFacts } from "./types.ts";

/**
 * `candidates` in a stable order (by worker and rank); `round-robin` counts along it. Never throws for what the fleet or
 * the request are like: when nobody may serve it, `rejection` says why. Explanations are made on demand by `explain`.
 * `fallback`: a rung of the ladder that ranks in place of the mode's policy; who may be ranked stays the same.
 */
export function decide(
  facts: RequestFacts,
  candidates: readonly Candidate[],
  config: PolicyConfig,
  random: RandomSource,
  fallback: Policy | null = null,
): Decision {
  const settings = effectiveSettings(config, facts.overrides);
  const { eligible, excluded, rejection } = selectEligible(candidates, facts, settings);
  if (rejection !== null) return { facts, settings, excluded, rejection, chosen: null, ranking: [] };
  const policy = fallback ?? POLICIES[settings.mode];
  const ranking = policy.order(policy.score(eligible, facts, settings), facts, settings, random);
  return { facts, settings, excluded, rejection: null, chosen: ranking[0]!, ranking };
}
