/** The policy of each router mode. */

import type { RouterMode } from "../types.ts";
import { kv } from "./kv.ts";
import { kvTiered } from "./kv-1.x.ts";
import { leastLoaded } from "./least-loaded.ts";
import type { Policy } from "./policy.ts";
import { powerOfTwo } from "./power-of-two.ts";
import { uniform } from "./random.ts";
import { roundRobin } from "./round-robin.ts";

export const POLICIES: Readonly<Record<RouterMode, Policy>> = {
  kv,
  "kv-1.x": kvTiered,
  "round-robin": roundRobin,
  random: uniform,
  "power-of-two": powerOfTwo,
  "least-loaded": leastLoaded,
  // A direct request is pinned, which leaves the ranks of one worker; `kv` chooses among them.
  direct: kv,
};
