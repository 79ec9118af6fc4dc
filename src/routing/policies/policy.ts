/** What a policy is: a formula that scores candidates and an order that ranks them. */

import type { Candidate, PolicyConfig, RandomSource, RequestFacts, Scored } from "../types.ts";

export interface Policy {
  /** One score per eligible candidate, in the same order. */
  score(eligible: readonly Candidate[], facts: RequestFacts, settings: PolicyConfig): Scored[];
  /** The failover order, best first. May reorder and return its argument, which is never empty. */
  order(scored: Scored[], facts: RequestFacts, settings: PolicyConfig, random: RandomSource): Scored[];
}
