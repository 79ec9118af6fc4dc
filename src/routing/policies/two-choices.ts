/**
 * `two-choices`, the last rung of the ladder (design D8): two candidates drawn uniformly, the one with fewer requests under way from this
 * gateway first; the rest in the drawn order. Unlike `power-of-two` it believes no reported load, which may be of any age.
 */

import { shuffle } from "../random.ts";
import type { Candidate } from "../types.ts";
import { kv } from "./kv.ts";
import type { Policy } from "./policy.ts";

/** Requests that this gateway has under way at a rank. */
export type UnderWay = (candidate: Candidate) => number;

export function twoChoices(underWay: UnderWay): Policy {
  return {
    score: kv.score,
    order(scored, _facts, _settings, random) {
      const drawn = shuffle(scored, random);
      const [first, second] = drawn;
      if (first === undefined || second === undefined) return drawn;
      if (underWay(second.candidate) < underWay(first.candidate)) {
        drawn[0] = second;
        drawn[1] = first;
      }
      return drawn;
    },
  };
}
