/** The memory store keeps the contract of the view. */

import { MemoryStore } from "../../src/store/memory/index.ts";
import { storeContract } from "./store-contract.ts";
import { seeded } from "./store-histories.ts";

storeContract("memory", ({ horizonMs }) => {
  let nowMs = 1_700_000_000_000;
  const store = new MemoryStore({ now: () => nowMs, random: seeded(1), horizonMs });
  return {
    store,
    advance: (ms) => {
      nowMs += ms;
    },
    close: () => undefined,
  };
});
