/** What the store's benchmark measures: lookups, events, predictions, bytes; and a walk over a Map as the baseline. */

import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { MemoryStore } from "../../src/store/memory/index.ts";
import {
  batchesOf,
  batchOf,
  type HeldChain,
  makeChains,
  makePrompts,
  randomKeys,
  register,
  type Shape,
  seeded,
  storeOp,
  workerName,
} from "./population.ts";

/** Prompts whose keys are in the processor's cache at a time, as they are when a gateway has just computed them. */
const STAGED = 16;
const PROMPTS_PER_MEASURE = 4_096;
const RUNS = 5;

export interface LookupFigures {
  readonly shape: Shape;
  /** Different prompts in random order, each chain looked up before: median of five runs. */
  readonly lookupsPerS: number;
  /** The same with the slowest 1 % of groups of 16 lookups, which the scheduler or the collector interrupted. */
  readonly lookupsPerSInterrupted: number;
  /** One lookup of each chain, the first after the view was filled. */
  readonly firstPerS: number;
  /** One and the same prompt over and over: everything in the processor's caches. */
  readonly hotPerS: number;
  readonly p50Us: number;
  readonly p99Us: number;
  readonly probes: number;
  readonly firstProbes: number;
  /** Linear walk over a Map from key to holders, same prompts; null: not measured. */
  readonly mapWalksPerS: number | null;
  /** Keys per second while the view was filled. */
  readonly fillKeysPerS: number;
  readonly churn: ChurnFigures;
}

export interface ChurnFigures {
  /** Keys removed or stored per second at full size, batches of one op of up to 16 keys. */
  readonly keysPerS: number;
  readonly batchP99Us: number;
  readonly batchMaxUs: number;
}

interface Filled {
  readonly store: MemoryStore;
  readonly chains: HeldChain[];
  readonly random: () => number;
  readonly sequences: number[];
  readonly fillKeysPerS: number;
}

export function measureLookups(shape: Shape, seed: number, quick: boolean): LookupFigures {
  const filled = fill(shape, seed);
  const { store, chains, random } = filled;
  const lookupsPerRun = quick ? 20_000 : 100_000;
  let probes = 0;
  const lookUp = (keys: BigUint64Array) => {
    probes += store.depths(keys).probes;
  };
  const firsts = chains.map(({ keys }) => extended(keys, shape.promptKeys, random));
  const firstUs = singly(firsts, firsts.length, lookUp);
  const firstProbes = probes / firsts.length;
  // As much as fits into some 32 MB of keys.
  const count = Math.min(PROMPTS_PER_MEASURE, Math.ceil(4_194_304 / shape.promptKeys));
  const prompts = makePrompts(chains, shape.promptKeys, count, random);
  staged(prompts, lookupsPerRun, lookUp);
  probes = 0;
  const runs = Array.from({ length: RUNS }, () => staged(prompts, lookupsPerRun, lookUp));
  const meanProbes = probes / (RUNS * lookupsPerRun);
  const latencies = singly(prompts, quick ? 10_000 : 50_000, lookUp);
  return {
    shape,
    lookupsPerS: median(runs.map(({ perS }) => perS)),
    lookupsPerSInterrupted: median(runs.map(({ perSInterrupted }) => perSInterrupted)),
    firstPerS: (firsts.length / firstUs.reduce((sum, each) => sum + each, 0)) * 1e6,
    hotPerS: staged(prompts.slice(0, 1), lookupsPerRun, lookUp).perS,
    p50Us: quantile(latencies, 0.5),
    p99Us: quantile(latencies, 0.99),
    probes: meanProbes,
    firstProbes,
    mapWalksPerS: shape.holders === 16 ? mapWalks(chains, prompts) : null,
    fillKeysPerS: filled.fillKeysPerS,
    churn: churn(filled, quick ? 20_000 : 100_000),
  };
}

/** Bytes per entry in a view of which every key has exactly two holders: counted by the store, and as the process grew. */
export function measureBytes(entries: number, seed: number): { tables: number; process: number } {
  const random = seeded(seed);
  const shape = { entries, promptKeys: 512, workers: 16, holders: 2, depths: 1 };
  const before = processBytes();
  const store = new MemoryStore({ now: () => performance.now(), random });
  register(store, shape.workers);
  // Chains are made and dropped one by one, so that only the store grows.
  const sequences: number[] = [];
  for (let held = 0, turn = 0; held < entries; turn++) {
    const keys = randomKeys(Math.min(512, entries - held), random);
    for (const worker of [turn % 16, (turn + 1) % 16]) {
      sequences[worker] = (sequences[worker] ?? 0) + 1;
      store.apply([batchOf(worker, sequences[worker], storeOp(keys, 0, keys.length))]);
    }
    held += keys.length;
  }
  const grown = processBytes() - before;
  const { bytes, entries: counted } = store.figures();
  return { tables: bytes / counted, process: grown / counted };
}

/** Reservations with a prediction of so many keys, per second, different prompts. */
export function measurePredictions(promptKeys: number, seed: number, quick: boolean): number {
  const random = seeded(seed);
  const store = new MemoryStore({ now: () => performance.now(), random });
  register(store, 16);
  const prompts = Array.from({ length: 256 }, () => randomKeys(promptKeys, random));
  const key = { worker: workerName(0), rank: 0, incarnation: "one" };
  const load = { requestId: "request", blocks: 1, prefillTokens: 1, reservationTtlMs: 1_000 };
  return staged(prompts, quick ? 4_000 : 20_000, (keys) => {
    store.reserve({ ...key, ...load, prediction: { keys, tokensPerKey: 16, ttlMs: 120_000 } });
  }).perS;
}

function fill(shape: Shape, seed: number): Filled {
  const random = seeded(seed);
  const chains = makeChains(shape, random);
  const store = new MemoryStore({ now: () => performance.now(), random });
  register(store, shape.workers);
  const sequences = new Array<number>(shape.workers).fill(0);
  let keys = 0;
  let spentMs = 0;
  for (const batch of batchesOf(chains)) {
    const startMs = performance.now();
    store.apply([batch]);
    spentMs += performance.now() - startMs;
    keys += batch.ops[0].keys.length;
    sequences[Number(batch.worker.slice(-3))] = batch.sequence;
  }
  return { store, chains, random, sequences, fillKeysPerS: (keys / spentMs) * 1_000 };
}

/** Evicts the last keys of random holders and stores them again. */
function churn({ store, chains, random, sequences }: Filled, batches: number): ChurnFigures {
  const latencies = new Float64Array(batches);
  let keys = 0;
  for (let i = 0; i < batches; i += 2) {
    const chain = chains[Math.floor(random() * chains.length)];
    const { worker, depth } = chain.holders[Math.floor(random() * chain.holders.length)];
    const start = Math.max(0, depth - 16);
    const op = storeOp(chain.keys, start, depth);
    const evict = { op: "remove", tier: "device", root: op.root, keys: op.keys.slice().reverse() } as const;
    for (const [j, each] of [evict, op].entries()) {
      sequences[worker] += 1;
      const batch = batchOf(worker, sequences[worker], each);
      const startMs = performance.now();
      store.apply([batch]);
      latencies[i + j] = (performance.now() - startMs) * 1_000;
      keys += op.keys.length;
    }
  }
  const spentUs = latencies.reduce((sum, each) => sum + each, 0);
  return {
    keysPerS: (keys / spentUs) * 1e6,
    batchP99Us: quantile(latencies, 0.99),
    batchMaxUs: latencies[batches - 1],
  };
}

function mapWalks(chains: readonly HeldChain[], prompts: readonly BigUint64Array[]): number {
  const map = new Map<bigint, number[]>();
  for (const { keys, holders } of chains) {
    keys.forEach((key, i) => {
      map.set(
        key,
        holders.filter(({ depth }) => depth > i).map(({ worker }) => worker),
      );
    });
  }
  const depths = new Uint32Array(256);
  const walk = (keys: BigUint64Array) => walkMap(map, keys, depths);
  const walks = Math.max(64, Math.ceil(1_000_000 / prompts[0].length));
  staged(prompts, walks, walk);
  return median(Array.from({ length: 3 }, () => staged(prompts, walks, walk).perS));
}

/** One get per key; holders are compared only where their number changes, which is the least such a walk must do. */
function walkMap(map: ReadonlyMap<bigint, number[]>, keys: BigUint64Array, depths: Uint32Array): void {
  let present: readonly number[] = [];
  let depth = 0;
  for (; depth < keys.length; depth++) {
    const holders = map.get(keys[depth]);
    if (holders === undefined) break;
    if (holders.length !== present.length) {
      for (const worker of present) if (!holders.includes(worker)) depths[worker] = depth;
    }
    present = holders;
  }
  for (const worker of present) depths[worker] = depth;
}

/**
 * Calls per second over prompts in turn, with and without the slowest 1 % of groups. Copying the prompts' keys to where
 * they are hot is not counted.
 */
function staged(
  prompts: readonly BigUint64Array[],
  calls: number,
  call: (keys: BigUint64Array) => void,
): { perS: number; perSInterrupted: number } {
  const stage = Array.from({ length: STAGED }, () => new BigUint64Array(prompts[0].length));
  const groupsMs = new Float64Array(Math.ceil(calls / STAGED));
  for (let group = 0; group < groupsMs.length; group++) {
    for (let i = 0; i < STAGED; i++) stage[i].set(prompts[(group * STAGED + i) % prompts.length]);
    const startMs = performance.now();
    for (const keys of stage) call(keys);
    groupsMs[group] = performance.now() - startMs;
  }
  groupsMs.sort();
  const rate = (groups: Float64Array) =>
    ((groups.length * STAGED) / groups.reduce((sum, each) => sum + each, 0)) * 1_000;
  return {
    perS: rate(groupsMs.subarray(0, Math.ceil(groupsMs.length * 0.99))),
    perSInterrupted: rate(groupsMs),
  };
}

/** Sorted microseconds of single calls. */
function singly(
  prompts: readonly BigUint64Array[],
  calls: number,
  call: (keys: BigUint64Array) => void,
): Float64Array {
  const keys = new BigUint64Array(prompts[0].length);
  const latencies = new Float64Array(calls);
  for (let i = 0; i < calls; i++) {
    keys.set(prompts[i % prompts.length]);
    const startMs = performance.now();
    call(keys);
    latencies[i] = (performance.now() - startMs) * 1_000;
  }
  return latencies.sort();
}

function extended(keys: BigUint64Array, length: number, random: () => number): BigUint64Array {
  const prompt = randomKeys(length, random);
  prompt.set(keys.subarray(0, length));
  return prompt;
}

/** Sorts. */
function quantile(values: Float64Array, q: number): number {
  values.sort();
  return values[Math.min(values.length - 1, Math.floor(values.length * q))];
}

function median(values: readonly number[]): number {
  return quantile(Float64Array.from(values), 0.5);
}

function processBytes(): number {
  setFlagsFromString("--expose-gc");
  const collect: () => void = runInNewContext("gc");
  collect();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}
