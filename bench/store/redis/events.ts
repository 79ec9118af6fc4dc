/** What the event path costs in Redis: real publishers' batches, folded by a real indexer, in real time. */

import { RankPublisher } from "../../../gpu-agent/bridge/publisher.ts";
import { InProcessBus } from "../../../src/events/in-process.ts";
import type { LoadReport } from "../../../src/fleet/types.ts";
import { Indexer } from "../../../src/indexer/index.ts";
import { createHasher } from "../../../src/prefix/hasher.ts";
import { createTokensKeyer } from "../../../src/prefix/token-scheme.ts";
import type { RedisStore } from "../../../src/store/redis/index.ts";
import type { LeaderLease } from "../../../src/store/types.ts";
import { MODEL, registration, seeded, workerName } from "../population.ts";
import { BLOCK_SIZE, blockEvents, CacheEvents, sharedHeads } from "./engine.ts";
import type { Rig, Spent } from "./rig.ts";

export interface EventFigures {
  readonly workers: number;
  /** Blocks stored or removed by engines. */
  readonly blockEvents: number;
  readonly eventsPerS: number;
  /** Keys asserted again meanwhile. */
  readonly reassertedKeys: number;
  readonly commandsPer1000: number;
  readonly bytesUpPerEvent: number;
  readonly cpuUsPerEvent: number;
  readonly heldUsPerEvent: number;
}

export interface IdleFigures {
  readonly workers: number;
  readonly commandsPerS: number;
  readonly bytesPerS: number;
  readonly cpuShare: number;
}

/** Blocks that an engine holds here. */
const CAPACITY_BLOCKS = 2_048;
/** Blocks of an 80 GB card with an 8B model; all are asserted again every 15 minutes. */
const REAL_CAPACITY_BLOCKS = 26_313;
const REAL_REASSERT_MS = 900_000;
/** A smaller cache is walked over more often, so that as many keys per second are asserted again as of a real one. */
const REASSERT_MS = (REAL_REASSERT_MS * CAPACITY_BLOCKS) / REAL_CAPACITY_BLOCKS;
/** Between two portions of one worker's walk (450 keys each): agents that run for long are not in step. */
const PORTION_MS = (REASSERT_MS * 450) / CAPACITY_BLOCKS;
const STEP_MS = 20;
const TICK_MS = 1_000;
const REPORT_MS = 250;
const SETTLE_MS = 30_000;

/** `eventsPerS`: of all workers together. Nobody reports load and the indexer has no lease: that is counted idle. */
export async function measureEvents(
  rig: Rig,
  settings: {
    readonly workers: number;
    readonly eventsPerS: number;
    readonly durationMs: number;
    readonly seed: number;
  },
): Promise<EventFigures> {
  const { workers, eventsPerS, durationMs, seed } = settings;
  const random = seeded(seed);
  const { store } = rig.openStore(`events-${eventsPerS}`);
  const plane = startPlane(store, null);
  const hasher = await createHasher();
  const heads = sharedHeads(random);
  const clock = newClock(workers);
  const ranks = Array.from({ length: workers }, (_, i) => ({
    publisher: newPublisher(plane.bus, i, createTokensKeyer(hasher, BLOCK_SIZE), () => clock.nowMs(i)),
    engine: new CacheEvents(random, CAPACITY_BLOCKS, heads, BigInt(i + 1) << 40n),
  }));
  let published = 0;
  /** One worker's next engine batch; false: between requests. */
  const running = ranks.map(({ engine }) => engine.request());
  const publishNext = (worker: number): void => {
    let next = running[worker]!.next();
    if (next.done) {
      running[worker] = ranks[worker]!.engine.request();
      next = running[worker]!.next();
    }
    if (next.done) return;
    published += blockEvents(next.value);
    ranks[worker]!.publisher.apply(next.value);
  };
  try {
    // Caches are full before anything is counted: from then on each block stored is one removed.
    for (let worker = 0; worker < workers; worker++) {
      const wanted = published + CAPACITY_BLOCKS;
      while (published < wanted) publishNext(worker);
      await plane.settle();
    }
    published = 0;
    for (let worker = 0; worker < workers; worker++)
      clock.advance(worker, REASSERT_MS - random() * PORTION_MS);
    const reassertedBefore = plane.figures.keys;
    let elapsedMs = 0;
    const spent = await rig.spend(async () => {
      const startMs = performance.now();
      let nextTickMs = 0;
      let worker = 0;
      while (elapsedMs < durationMs) {
        await new Promise((resolve) => setTimeout(resolve, STEP_MS));
        elapsedMs = performance.now() - startMs;
        for (const due = (elapsedMs * eventsPerS) / 1_000; published < due; worker++)
          publishNext(worker % workers);
        if (elapsedMs < nextTickMs) continue;
        nextTickMs += TICK_MS;
        for (const { publisher } of ranks) publisher.tick();
      }
      await plane.settle();
    });
    plane.check();
    return {
      workers,
      blockEvents: published,
      eventsPerS: (published / elapsedMs) * 1_000,
      reassertedKeys: plane.figures.keys - reassertedBefore - published,
      commandsPer1000: (spent.commands / published) * 1_000,
      bytesUpPerEvent: spent.bytesUp / published,
      cpuUsPerEvent: spent.cpuUs / published,
      heldUsPerEvent: spent.heldUs / published,
    };
  } finally {
    await plane.stop();
  }
}

/** Workers that report their load and repeat their registrations, and do nothing else; one indexer that leads. */
export async function measureIdle(rig: Rig, workers: number, durationMs: number): Promise<IdleFigures> {
  const { store } = rig.openStore(`idle-${workers}`);
  const plane = startPlane(store, store.lease("indexer", "bench", 6_000));
  const keyer = createTokensKeyer(await createHasher(), BLOCK_SIZE);
  const publishers = Array.from({ length: workers }, (_, i) => newPublisher(plane.bus, i, keyer));
  let sequence = 0;
  const every = (stepMs: number, act: () => void): NodeJS.Timeout => setInterval(act, stepMs);
  const timers = [
    every(REPORT_MS, () => {
      sequence += 1;
      for (const { key } of publishers) plane.bus.publishLoad(reportOf(key, sequence));
    }),
    every(TICK_MS, () => {
      for (const publisher of publishers) publisher.tick();
      plane.indexer.tick();
    }),
  ];
  try {
    plane.bus.onRollCall(() => {
      for (const publisher of publishers) publisher.announce();
    });
    plane.bus.callRoll();
    await plane.registered(workers);
    let elapsedMs = 0;
    const spent: Spent = await rig.spend(async () => {
      const startMs = performance.now();
      await new Promise((resolve) => setTimeout(resolve, durationMs));
      elapsedMs = performance.now() - startMs;
    });
    plane.check();
    return {
      workers,
      commandsPerS: (spent.commands / elapsedMs) * 1_000,
      bytesPerS: ((spent.bytesUp + spent.bytesDown) / elapsedMs) * 1_000,
      cpuShare: spent.cpuUs / 1_000 / elapsedMs,
    };
  } finally {
    for (const timer of timers) clearInterval(timer);
    await plane.stop();
  }
}

/** Agents' clocks: the real one, each put forward by its own amount. */
function newClock(workers: number): {
  nowMs(worker: number): number;
  advance(worker: number, ms: number): void;
} {
  const aheadMs = new Float64Array(workers);
  return {
    nowMs: (worker) => performance.now() + aheadMs[worker]!,
    advance: (worker, ms) => {
      aheadMs[worker]! += ms;
    },
  };
}

interface Plane {
  readonly bus: InProcessBus;
  readonly indexer: Indexer;
  /** Keys of all batches so far. */
  readonly figures: { keys: number };
  /** Waits until everything published is written. */
  settle(): Promise<void>;
  /** Waits until all workers are in the view, and a second more. */
  registered(workers: number): Promise<void>;
  /** Errors: anything that the indexer had to repair, for then something else was measured. */
  check(): void;
  stop(): Promise<void>;
}

function startPlane(store: RedisStore, lease: LeaderLease | null): Plane {
  const errors: string[] = [];
  const bus = new InProcessBus({
    onHandlerError: (thrown, channel) => {
      errors.push(`${channel}: ${String(thrown)}`);
    },
  });
  const figures = { keys: 0, batches: 0 };
  bus.onKv(({ ops }) => {
    figures.batches += 1;
    for (const { keys } of ops) figures.keys += keys.length;
  });
  const indexer = new Indexer({
    bus,
    store,
    now: () => performance.now(),
    name: "bench",
    lease,
    remote: {
      timers: {
        setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
        clearTimeout: (timer) => clearTimeout(timer as NodeJS.Timeout),
      },
    },
    onError: ({ code, message }, doing) => {
      errors.push(`${doing}: ${code}: ${message}`);
    },
  });
  indexer.start();
  return {
    bus,
    indexer,
    figures,
    settle: () => until(() => indexer.figures.batchesApplied >= figures.batches),
    registered: async (workers) => {
      await until(() => indexer.ranks >= workers && indexer.queued === 0);
      await new Promise((resolve) => setTimeout(resolve, TICK_MS));
      const known = (await store.fleet(0)).length;
      if (known !== workers) errors.push(`of ${workers} workers ${known} are in the view`);
    },
    check: () => {
      const { batchesApplied, snapshotsRequested } = indexer.figures;
      if (batchesApplied !== figures.batches || snapshotsRequested > 0) {
        errors.push(
          `of ${figures.batches} batches ${batchesApplied} were applied, ${snapshotsRequested} snapshots`,
        );
      }
      if (errors.length > 0) throw new Error(`the indexer did not run undisturbed: ${errors.join("; ")}`);
    },
    stop: async () => {
      await indexer.stop();
    },
  };
}

async function until(isSo: () => boolean): Promise<void> {
  const giveUpMs = performance.now() + SETTLE_MS;
  while (!isSo() && performance.now() < giveUpMs) await new Promise((resolve) => setTimeout(resolve, 5));
}

function newPublisher(
  bus: InProcessBus,
  index: number,
  keyer: ReturnType<typeof createTokensKeyer>,
  now = () => performance.now(),
): RankPublisher {
  const { incarnation: _, ...facts } = registration(workerName(index));
  return new RankPublisher({
    bus,
    registration: facts,
    mirror: { keyer, model: MODEL, blockSize: BLOCK_SIZE, capacityBlocks: null },
    now,
    newIncarnation: () => "one",
    reassertMs: REASSERT_MS,
    onMismatch: (error) => {
      throw error;
    },
  });
}

function reportOf(key: RankPublisher["key"], sequence: number): LoadReport {
  return {
    ...key,
    sequence,
    activeBlocks: 0,
    prefillTokens: 0,
    running: 0,
    waiting: 0,
    admitted: [],
    publishedSequence: 0,
  };
}
