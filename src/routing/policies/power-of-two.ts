/** `power-of-two`: two candidates drawn uniformly, the less loaded of them first; the rest in the drawn order. */

import { assignStandings, byLoad } from "../order.ts";
import { shuffle } from "../random.ts";
import { kv } from "./kv.ts";
import type { Policy } from "./policy.ts";

export const powerOfTwo: Policy = {
  score: kv.score,
  order(scored, _facts, settings, random) {
    const drawn = shuffle(assignStandings(scored, settings, random), random);
    const [first, second] = drawn;
    if (first !== undefined && second !== undefined && byLoad(second, first) < 0) {
      drawn[0] = second;
      drawn[1] = first;
    }
    return drawn;
  },
};
