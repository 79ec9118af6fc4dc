/** Seeded views and prompts for the store's benchmark: who holds what, and what is asked. */

import type { Registration } from "../../src/fleet/types.ts";
import type { KvBatch, StoreOp, ViewStore } from "../../src/store/types.ts";

export const MODEL = "bench/model";

/** Keys per batch, as an agent would publish a prefill of 256 tokens at block 16. */
const KEYS_PER_BATCH = 16;

export interface Shape {
  /** Keys in the view. */
  readonly entries: number;
  /** Keys per prompt. */
  readonly promptKeys: number;
  /** Workers in all. */
  readonly workers: number;
  /** Workers that hold each chain. */
  readonly holders: number;
  /** Different depths among the holders of one chain. */
  readonly depths: number;
}

export interface HeldChain {
  readonly keys: BigUint64Array;
  /** Who holds how much; the deepest holds all of `keys`. */
  readonly holders: readonly { readonly worker: number; readonly depth: number }[];
}

/** Deterministic numbers in [0, 1). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function randomKeys(length: number, random: () => number): BigUint64Array {
  const keys = new BigUint64Array(length);
  const words = new Uint32Array(keys.buffer);
  for (let i = 0; i < words.length; i++) words[i] = Math.floor(random() * 2 ** 32);
  return keys;
}

/** Chains of half a prompt to a whole one that add up to the view's entries. */
export function makeChains(shape: Shape, random: () => number): HeldChain[] {
  const chains: HeldChain[] = [];
  for (let left = shape.entries; left > 0; ) {
    const length = Math.min(left, Math.ceil(shape.promptKeys * (0.5 + random() / 2)));
    const levels = [length];
    while (levels.length < Math.min(shape.depths, length)) {
      const level = 1 + Math.floor(random() * length);
      if (!levels.includes(level)) levels.push(level);
    }
    chains.push({
      keys: randomKeys(length, random),
      holders: Array.from({ length: shape.holders }, (_, i) => ({
        worker: (chains.length * shape.holders + i) % shape.workers,
        depth: levels[i % levels.length],
      })),
    });
    left -= length;
  }
  return chains;
}

/** Different prompts: each goes on from what a chain's deepest holder has with keys that nobody holds. */
export function makePrompts(
  chains: readonly HeldChain[],
  promptKeys: number,
  count: number,
  random: () => number,
): BigUint64Array[] {
  return Array.from({ length: count }, () => {
    const chain = chains[Math.floor(random() * chains.length)];
    const prompt = randomKeys(promptKeys, random);
    prompt.set(chain.keys.subarray(0, promptKeys));
    return prompt;
  });
}

export function workerName(index: number): string {
  return `worker-${String(index).padStart(3, "0")}`;
}

export function register(store: ViewStore, workers: number): void {
  for (let i = 0; i < workers; i++) store.register(registration(workerName(i)));
}

/** Every batch that tells the view of these chains, in the order in which the workers would interleave them. */
export function* batchesOf(chains: readonly HeldChain[], keysPerBatch = KEYS_PER_BATCH): Generator<KvBatch> {
  const sequences: number[] = [];
  for (const { keys, holders } of chains) {
    for (const { worker, depth } of holders) {
      for (let start = 0; start < depth; start += keysPerBatch) {
        const sequence = (sequences[worker] ?? 0) + 1;
        sequences[worker] = sequence;
        yield batchOf(worker, sequence, storeOp(keys, start, Math.min(depth, start + keysPerBatch)));
      }
    }
  }
}

export function batchOf(worker: number, sequence: number, ...ops: KvBatch["ops"]): KvBatch {
  return { worker: workerName(worker), rank: 0, incarnation: "one", model: MODEL, sequence, ops };
}

export function storeOp(chain: BigUint64Array, start: number, end: number): StoreOp {
  const keys = chain.slice(start, end);
  const tokens = Uint32Array.from(keys, (_, i) => 16 * (start + i + 1));
  return {
    op: "store",
    tier: "device",
    root: chain[0],
    parent: start === 0 ? null : chain[start - 1],
    keys,
    tokens,
  };
}

export function registration(worker: string): Registration {
  return {
    worker,
    rank: 0,
    incarnation: "one",
    agent: null,
    model: MODEL,
    servedNames: [MODEL],
    adapters: [],
    card: {
      version: 1,
      model: MODEL,
      scheme: "tokens",
      unitSize: 16,
      chatTemplate: null,
      namedTemplates: {},
      contentFormat: "string",
      bosToken: null,
      eosToken: null,
      specialTokens: {},
      addedPrefix: null,
      normalizer: null,
      strippingTokens: [],
      timeZone: "UTC",
      bytesPerToken: 4,
      maxModelLen: null,
    },
    role: "aggregated",
    region: "bench",
    cluster: "bench",
    node: "bench",
    engine: "none",
    dpSize: 1,
    blockSize: 16,
    totalBlocks: null,
    maxNumBatchedTokens: null,
    maxNumSeqs: null,
    maxModelLen: null,
    kvEvents: true,
    saltInEvents: true,
    taints: [],
  };
}
