/** `round-robin`: eligible[turn mod n] in the order given, then the next ones; the caller counts the turns. */

import { kv } from "./kv.ts";
import type { Policy } from "./policy.ts";

export const roundRobin: Policy = {
  score: kv.score,
  order(scored, facts) {
    const first = facts.turn % scored.length;
    return [...scored.slice(first), ...scored.slice(0, first)];
  },
};
