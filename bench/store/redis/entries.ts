/** Redis memory per entry with two holders, and that of a plain Redis set per key beside it. */

import { batchesOf, type HeldChain, randomKeys, seeded } from "../population.ts";
import { fillBaseline } from "./baseline.ts";
import { registerWorkers, startRig } from "./rig.ts";

export interface EntryFigures {
  readonly entries: number;
  readonly bytesPerEntry: number;
  readonly baselineBytesPerEntry: number;
}

const WORKERS = 16;
const CHAIN_KEYS = 512;

export async function measureEntries(entries: number, seed: number): Promise<EntryFigures> {
  const random = seeded(seed);
  const chains: HeldChain[] = Array.from({ length: Math.ceil(entries / CHAIN_KEYS) }, (_, i) => ({
    keys: randomKeys(CHAIN_KEYS, random),
    holders: [i, i + 1].map((worker) => ({ worker: worker % WORKERS, depth: CHAIN_KEYS })),
  }));
  const held = chains.length * CHAIN_KEYS;
  // Servers of their own: what an allocator has had before shows in what it uses now.
  const [own, baseline] = [await startRig(), await startRig()];
  try {
    const { store } = own.openStore("bench");
    await registerWorkers(store, WORKERS);
    const emptyBytes = await own.usedBytes();
    const batches = [...batchesOf(chains, 480)];
    for (let start = 0; start < batches.length; start += 64)
      await store.apply(batches.slice(start, start + 64));
    const grownBytes = (await own.usedBytes()) - emptyBytes;
    const emptyBaselineBytes = await baseline.usedBytes();
    await fillBaseline(baseline.redis, chains);
    const baselineBytes = (await baseline.usedBytes()) - emptyBaselineBytes;
    return {
      entries: held,
      bytesPerEntry: grownBytes / held,
      baselineBytesPerEntry: baselineBytes / held,
    };
  } finally {
    await own.close();
    await baseline.close();
  }
}
