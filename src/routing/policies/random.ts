/** `random`: uniform, the load and the cache unseen; failover in the drawn order. */

import { shuffle } from "../random.ts";
import { kv } from "./kv.ts";
import type { Policy } from "./policy.ts";

export const uniform: Policy = {
  score: kv.score,
  order: (scored, _facts, _settings, random) => shuffle(scored, random),
};
