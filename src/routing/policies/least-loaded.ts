/** `least-loaded`: fewest running requests, then fewest blocks of prefill and decode work, then uniformly at random. */

import { assignStandings, byLoad } from "../order.ts";
import { shuffle } from "../random.ts";
import { kv } from "./kv.ts";
import type { Policy } from "./policy.ts";

export const leastLoaded: Policy = {
  score: kv.score,
  order: (scored, _facts, settings, random) =>
    shuffle(assignStandings(scored, settings, random), random).sort(byLoad),
};
