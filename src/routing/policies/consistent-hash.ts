/**
 * `consistent-hash`, a rung of the ladder (design D8): rendezvous hashing of the prompt's head with bounded loads.
 *
 *     weight(worker, rank) = XXH64(head ‖ rank:worker)                     the largest first
 *     over-full            = under_way > load_factor · mean + 1            mean over the eligible
 *
 * Equal heads go to one worker, whichever gateway asks, and when a worker goes only its own heads move. Over-full ones
 * rank behind the others, both in the order of their weights.
 */

import type { Hasher } from "../../prefix/hasher.ts";
import type { Scored } from "../types.ts";
import { kv } from "./kv.ts";
import type { Policy } from "./policy.ts";
import type { UnderWay } from "./two-choices.ts";

export interface ConsistentHashFacts {
  readonly hasher: Hasher;
  /** Key of the prompt's head: what shall stay together. */
  readonly head: bigint;
  readonly underWay: UnderWay;
  /** At least 1. */
  readonly loadFactor: number;
}

export function consistentHash({ hasher, head, underWay, loadFactor }: ConsistentHashFacts): Policy {
  const weightOf = ({ candidate }: Scored): bigint => {
    const name = hasher.encode(`${candidate.rank}:${candidate.worker}`);
    return hasher.link(head, name, 0, name.length);
  };
  return {
    score: kv.score,
    order(scored) {
      const places = scored.map((one) => ({
        one,
        weight: weightOf(one),
        requests: underWay(one.candidate),
      }));
      const mean = places.reduce((sum, { requests }) => sum + requests, 0) / places.length;
      const bound = loadFactor * mean + 1;
      places.sort(
        (a, b) =>
          Number(a.requests > bound) - Number(b.requests > bound) ||
          (a.weight === b.weight ? 0 : a.weight > b.weight ? -1 : 1),
      );
      return places.map(({ one }) => one);
    },
  };
}
