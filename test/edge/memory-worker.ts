/** The gateway Worker over a view in its own memory that holds the seed fleet: for tests of everything but Redis. */

import { parseSeedFleet } from "../../src/gateway/seed-fleet.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import { createWorker } from "../../workers/gateway/worker.ts";

export default createWorker((config, clock) => {
  const store = new MemoryStore({ now: () => clock.now(), random: Math.random });
  for (const [i, one] of parseSeedFleet(config.fallback.seedFleet ?? "[]").entries()) {
    store.register(one);
    const load = { activeBlocks: 0, prefillTokens: 0, running: 0, waiting: 0 };
    store.report([{ ...one, sequence: i + 1, ...load, admitted: [], publishedSequence: 0 }]);
  }
  return store;
});
