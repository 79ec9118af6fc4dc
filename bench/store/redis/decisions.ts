/** What a routed request costs in Redis: lookup, reservation with prediction, and a naive index beside them. */

import type { RedisStore } from "../../../src/store/redis/index.ts";
import type { ReserveWrite } from "../../../src/store/types.ts";
import {
  batchesOf,
  type HeldChain,
  MODEL,
  makeChains,
  makePrompts,
  type Shape,
  seeded,
  workerName,
} from "../population.ts";
import { type Baseline, fillBaseline, lookUpNaively } from "./baseline.ts";
import { type Rig, registerWorkers, type Spent } from "./rig.ts";

/** Per call. */
export interface CallFigures extends Spent {
  /** Largest of any prompt. */
  readonly innerMax: number;
  /**
   * The same of the time that it held Redis, without the machine's interruptions: the shortest of several runs, and never more than
   * the processor time of Redis's main thread, which is bookkeeping and talk besides.
   */
  readonly heldMaxUs: number;
}

export interface DecisionFigures {
  readonly shape: Shape;
  readonly requests: number;
  /** Billed commands per routed request (lookup, reservation with prediction). */
  readonly billedFresh: number;
  /** The same when each lookup finds its copy of the fleet too old. */
  readonly billedStale: number;
  readonly lookup: CallFigures;
  /** With a fleet copy that is too old. */
  readonly staleLookup: Spent;
  readonly reserve: CallFigures;
  readonly probes: number;
  /** Share of lookups that ran out of probes, and gave lower bounds. */
  readonly truncated: number;
  /** One command per key in pipelines, same chains, same prompts. */
  readonly baseline: Spent;
}

/** Runs of one prompt, of which the shortest counts. */
const REPEATS = 5;
/** Keys per batch while a view is filled. */
const FILL_KEYS = 480;
/** Batches per call while a view is filled. */
const FILL_BATCHES = 64;
const FLEET_STALE_MS = 1_000;

export interface DecisionShape {
  readonly promptKeys: number;
  readonly workers: number;
  readonly depths: number;
}

export async function measureDecisions(
  rig: Rig,
  { promptKeys, workers, depths }: DecisionShape,
  settings: { readonly seed: number; readonly requests: number; readonly maxCells: number },
): Promise<DecisionFigures> {
  const random = seeded(settings.seed);
  const chains = Math.min(16, Math.max(1, Math.floor(settings.maxCells / (promptKeys * workers))));
  const shape: Shape = { entries: chains * promptKeys, promptKeys, workers, holders: workers, depths };
  const held = makeChains(shape, random);
  const { store, advance } = rig.openStore(`bench-${promptKeys}-${workers}-${depths}`);
  await fill(store, workers, held);
  const prompts = makePrompts(held, promptKeys, settings.requests, random);
  const requests = new Requests(store, workers);

  // Both scripts are loaded, the fleet is known, and predictions are in the view that is measured.
  await store.read(MODEL, prompts[0]);
  const predicted = await rig.spend(() => each(prompts, (keys) => requests.reserve(keys)));
  let probes = 0;
  let truncated = 0;
  const read = async (keys: BigUint64Array): Promise<void> => {
    const { lookup } = await store.read(MODEL, keys);
    probes += lookup.probes;
    truncated += lookup.truncated ? 1 : 0;
    checkDepth(held, keys, lookup.confirmedDepth.subarray(0, lookup.count), lookup.truncated);
  };
  const lookups = await rig.spend(() => each(prompts, read));
  probes /= prompts.length;
  truncated /= prompts.length;
  const staleLookups = await rig.spend(() =>
    each(prompts, async (keys) => {
      advance(FLEET_STALE_MS);
      await store.read(MODEL, keys);
    }),
  );
  const routed = async (keys: BigUint64Array, stale: boolean): Promise<void> => {
    if (stale) advance(FLEET_STALE_MS);
    await store.read(MODEL, keys);
    await requests.reserve(keys);
  };
  const fresh = await rig.spend(() => each(prompts, (keys) => routed(keys, false)));
  const stale = await rig.spend(() => each(prompts, (keys) => routed(keys, true)));
  const few = prompts.slice(0, 32);
  return {
    shape,
    requests: prompts.length,
    billedFresh: fresh.commands / prompts.length,
    billedStale: stale.commands / prompts.length,
    lookup: await withWorst(rig, perCall(lookups, prompts.length), few, async (keys) => {
      await store.read(MODEL, keys);
    }),
    staleLookup: perCall(staleLookups, prompts.length),
    reserve: await withWorst(rig, perCall(predicted, prompts.length), few, (keys) => requests.reserve(keys)),
    probes,
    truncated,
    baseline: await measureBaseline(rig, held, few),
  };
}

/** A gateway's writes: each request goes to the next worker. */
class Requests {
  readonly #store: RedisStore;
  readonly #workers: number;
  #sent = 0;

  constructor(store: RedisStore, workers: number) {
    this.#store = store;
    this.#workers = workers;
  }

  async reserve(keys: BigUint64Array): Promise<void> {
    this.#sent += 1;
    const write: ReserveWrite = {
      worker: workerName(this.#sent % this.#workers),
      rank: 0,
      incarnation: "one",
      requestId: `request-${String(this.#sent).padStart(28, "0")}`,
      blocks: keys.length,
      prefillTokens: keys.length * 16,
      reservationTtlMs: 60_000,
      prediction: { keys, tokensPerKey: 16, ttlMs: 120_000 },
    };
    await this.#store.reserve(write);
  }
}

async function measureBaseline(
  rig: Rig,
  held: readonly HeldChain[],
  prompts: readonly BigUint64Array[],
): Promise<Spent> {
  const baseline: Baseline = { url: rig.url, token: rig.token };
  await fillBaseline(rig.redis, held);
  const spent = await rig.spend(() => each(prompts, (keys) => lookUpNaively(baseline, keys)));
  await rig.redis.flushall();
  return perCall(spent, prompts.length);
}

async function fill(store: RedisStore, workers: number, chains: readonly HeldChain[]): Promise<void> {
  await registerWorkers(store, workers);
  const batches = [...batchesOf(chains, FILL_KEYS)];
  for (let start = 0; start < batches.length; start += FILL_BATCHES) {
    const outcomes = await store.apply(batches.slice(start, start + FILL_BATCHES));
    const refused = outcomes.find((outcome) => outcome !== "applied");
    if (refused !== undefined) throw new Error(`a batch was ${refused}`);
  }
}

/** What is measured must be right: the deepest holder of a prompt's chain is found at its depth. */
function checkDepth(
  held: readonly HeldChain[],
  keys: BigUint64Array,
  depths: Uint32Array,
  truncated: boolean,
): void {
  const chain = held.find((each) => each.keys[0] === keys[0]);
  const deepest = Math.min(keys.length, chain?.keys.length ?? 0);
  const found = Math.max(0, ...depths);
  if (!truncated && found !== deepest) throw new Error(`a chain of ${deepest} keys was found ${found} deep`);
}

/** Adds the most that any of these prompts took. */
async function withWorst(
  rig: Rig,
  mean: Spent,
  prompts: readonly BigUint64Array[],
  call: (keys: BigUint64Array) => Promise<void>,
): Promise<CallFigures> {
  let innerMax = 0;
  let heldMaxUs = 0;
  for (const keys of prompts) {
    const runs: Spent[] = [];
    for (let i = 0; i < REPEATS; i++) runs.push(await rig.spend(() => call(keys)));
    innerMax = Math.max(innerMax, ...runs.map(({ inner }) => inner));
    heldMaxUs = Math.max(heldMaxUs, Math.min(...runs.flatMap(({ heldUs, cpuUs }) => [heldUs, cpuUs])));
  }
  return { ...mean, innerMax, heldMaxUs };
}

async function each(
  prompts: readonly BigUint64Array[],
  call: (keys: BigUint64Array) => Promise<void>,
): Promise<void> {
  for (const keys of prompts) await call(keys);
}

export function perCall(spent: Spent, calls: number): Spent {
  return {
    commands: spent.commands / calls,
    bytesUp: spent.bytesUp / calls,
    bytesDown: spent.bytesDown / calls,
    inner: spent.inner / calls,
    heldUs: spent.heldUs / calls,
    cpuUs: spent.cpuUs / calls,
  };
}
