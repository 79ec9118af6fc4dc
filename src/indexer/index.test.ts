/** The indexer on the real bus and the real memory store, with an agent that can lose batches. */

import { describe, expect, it } from "vitest";
import { MODEL, registrationOf, reportOf, storeKeys } from "../../test/contract/view-samples.ts";
import type { KedgeError } from "../errors/index.ts";
import { InProcessBus } from "../events/in-process.ts";
import type { IncarnationKey } from "../fleet/types.ts";
import { MemoryStore } from "../store/memory/index.ts";
import type { ApplyOutcome, KvBatch, KvOp, KvSnapshot, ViewStore } from "../store/types.ts";
import { Indexer } from "./index.ts";

const KEY: IncarnationKey = { worker: "w", rank: 0, incarnation: "one" };
const CHAIN = BigUint64Array.from({ length: 64 }, (_, i) => BigInt(i + 1) * 0x9e3779b97f4a7c15n);

/** One view with its indexer, and an agent whose rank holds the first `held` keys of one chain. */
class Site {
  nowMs = 0;
  held = 0;
  sequence = 0;
  readonly errors: string[] = [];
  readonly bus = new InProcessBus({ onHandlerError: (thrown) => this.errors.push(String(thrown)) });
  readonly memory = new MemoryStore({ now: () => this.nowMs, random: () => 0.5, horizonMs: 3_600_000 });
  readonly indexer: Indexer;
  private reports = 0;

  constructor(store?: (memory: MemoryStore) => ViewStore, settings: { maxBufferedBatches?: number } = {}) {
    this.indexer = new Indexer({
      bus: this.bus,
      store: store?.(this.memory) ?? this.memory,
      now: () => this.nowMs,
      name: "indexer-1",
      onError: (error: KedgeError, doing) => this.errors.push(`${doing}: ${error.code}`),
      ...settings,
    });
    this.indexer.start();
  }

  register(): void {
    this.bus.publishRegistration(registrationOf(KEY));
  }

  /** The engine computes `keys` more; `lost`: nobody hears of it. */
  grow(keys: number, lost = false): void {
    const op = storeKeys(CHAIN, this.held, this.held + keys);
    this.held += keys;
    this.sequence += 1;
    if (!lost) this.send(this.sequence, op);
  }

  send(sequence: number, ...ops: KvOp[]): void {
    this.bus.publishKv({ ...KEY, model: MODEL, sequence, ops });
  }

  snapshot(): KvSnapshot {
    return { ...KEY, model: MODEL, sequence: this.sequence, ops: [storeKeys(CHAIN, 0, this.held)] };
  }

  report(): void {
    this.bus.publishLoad(reportOf(KEY, { sequence: ++this.reports, publishedSequence: this.sequence }));
  }

  depth(): number {
    const { lookup } = this.memory.read(MODEL, CHAIN);
    return lookup.count === 0 ? 0 : lookup.confirmedDepth[0];
  }
}

/** Lets promises that are settled already run on. */
async function settle(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve();
}

describe("indexer", () => {
  it("writes registrations, batches, loads and retirements as they are published", () => {
    const site = new Site();
    site.register();
    site.grow(5);
    site.grow(5);
    site.bus.publishLoad(reportOf(KEY, { activeBlocks: 3, publishedSequence: 2 }));
    expect(site.depth()).toBe(10);
    expect(site.memory.fleet()[0]).toMatchObject({ load: { activeBlocks: 3 }, feed: { lagEvents: 0 } });
    site.bus.publishRetirement(KEY);
    expect(site.memory.fleet()).toEqual([]);
    expect(site.errors).toEqual([]);
  });

  it("fills a gap by one snapshot, then goes on with the batches that came meanwhile", async () => {
    const site = new Site();
    const answers: ((snapshot: KvSnapshot) => void)[] = [];
    site.bus.serveSnapshots(() => new Promise((resolve) => answers.push(resolve)));
    site.register();
    site.grow(4);
    site.grow(4, true);
    site.grow(4);
    await settle();
    const taken = site.snapshot();
    site.grow(4);
    site.grow(4);
    expect(site.depth()).toBe(4);
    expect(site.indexer.snapshotsPending).toBe(1);
    answers[0](taken);
    await settle();
    expect(site.depth()).toBe(20);
    expect(answers).toHaveLength(1);
    expect(site.indexer.figures).toMatchObject({
      snapshotsRequested: 1,
      snapshotsApplied: 1,
      batchesDuplicate: 1,
    });
  });

  it("finds a lost last batch by two load reports, though no later batch tells", async () => {
    const site = new Site();
    site.bus.serveSnapshots(() => site.snapshot());
    site.register();
    site.grow(4);
    site.grow(4, true);
    site.report();
    await settle();
    expect(site.depth()).toBe(4);
    site.report();
    await settle();
    expect(site.depth()).toBe(8);
  });

  it("starts a feed in the middle of an incarnation's life", async () => {
    const site = new Site();
    site.bus.serveSnapshots(() => site.snapshot());
    site.grow(10, true);
    site.grow(10);
    site.register();
    site.grow(10);
    await settle();
    expect(site.depth()).toBe(30);
  });

  it("keeps a batch that overtook its registration, for a while", () => {
    const site = new Site();
    let rolls = 0;
    site.bus.onRollCall(() => void rolls++);
    site.nowMs = 5_000;
    site.grow(10);
    expect([site.depth(), rolls]).toEqual([0, 1]);
    site.register();
    site.grow(10);
    expect(site.depth()).toBe(20);

    const late = new Site();
    late.grow(10);
    late.nowMs = 10_000;
    late.indexer.tick();
    expect(late.indexer.figures.batchesRefused).toBe(1);
    late.register();
    expect(late.depth()).toBe(0);
  });

  it("asks for everybody's registration when it begins", () => {
    let rolls = 0;
    const bus = new InProcessBus({ onHandlerError: () => undefined });
    bus.onRollCall(() => void rolls++);
    const store = new MemoryStore({ now: () => 0, random: () => 0.5 });
    new Indexer({ bus, store, now: () => 0, name: "one", onError: () => undefined }).start();
    expect(rolls).toBe(1);
  });

  it("does not buffer without bound, and asks again for what it let go", async () => {
    const site = new Site(undefined, { maxBufferedBatches: 2 });
    const answers: ((snapshot: KvSnapshot) => void)[] = [];
    site.bus.serveSnapshots(() => new Promise((resolve) => answers.push(resolve)));
    site.register();
    site.grow(1, true);
    site.grow(1);
    await settle();
    const taken = site.snapshot();
    for (let i = 0; i < 5; i++) site.grow(1);
    answers[0](taken);
    await settle();
    expect(site.depth()).toBe(3);
    expect(site.indexer.figures.batchesOverflown).toBe(4);
    site.nowMs += 1_000;
    site.grow(1);
    await settle();
    answers[1](site.snapshot());
    await settle();
    expect(site.depth()).toBe(8);
  });

  it("asks at most once a second, and gives up on a snapshot that never comes", async () => {
    const site = new Site();
    let asked = 0;
    let answerLate: (snapshot: KvSnapshot) => void = () => undefined;
    site.bus.serveSnapshots(() => {
      asked += 1;
      if (asked === 1) return null;
      return new Promise((resolve) => {
        if (asked === 2) answerLate = resolve;
      });
    });
    site.register();
    site.grow(1, true);
    for (let i = 0; i < 5; i++) {
      site.grow(1);
      await settle();
    }
    expect(asked).toBe(1);
    site.nowMs = 1_000;
    site.grow(1);
    await settle();
    expect([asked, site.indexer.snapshotsPending]).toEqual([2, 1]);
    site.nowMs = 11_000;
    site.indexer.tick();
    expect(site.indexer.snapshotsPending).toBe(0);
    site.grow(1);
    await settle();
    expect(asked).toBe(3);
    answerLate(site.snapshot());
    await settle();
    expect([site.depth(), site.indexer.snapshotsPending]).toEqual([0, 1]);
  });

  it("ignores a snapshot of a life that ended while it was on its way", async () => {
    const site = new Site();
    const answers: ((snapshot: KvSnapshot) => void)[] = [];
    site.bus.serveSnapshots(() => new Promise((resolve) => answers.push(resolve)));
    site.register();
    site.grow(4, true);
    site.grow(4);
    await settle();
    site.bus.publishRegistration(registrationOf({ ...KEY, incarnation: "two" }));
    answers[0](site.snapshot());
    await settle();
    expect(site.depth()).toBe(0);
    expect(site.errors).toEqual([]);
  });

  it("keeps order and joins writes when the store answers later", async () => {
    const runs: number[] = [];
    const site = new Site((memory) =>
      later(memory, (batches) => {
        runs.push(batches.length);
      }),
    );
    site.register();
    for (let i = 0; i < 10; i++) site.grow(2);
    site.report();
    await settle();
    await settle();
    expect(site.depth()).toBe(20);
    expect(site.indexer.queued).toBe(0);
    expect(runs.length).toBeLessThan(10);
  });

  it("tells of a malformed batch, applies the others of its write and heals by a snapshot", async () => {
    const site = new Site((memory) => later(memory, () => undefined));
    site.bus.serveSnapshots(() => site.snapshot());
    site.register();
    site.grow(3);
    site.send(++site.sequence, { ...storeKeys(CHAIN, 3, 6), tokens: new Uint32Array(1) });
    site.held = 6;
    site.grow(3);
    for (let i = 0; i < 10; i++) await settle();
    expect(site.errors).toEqual(["kv: invalid_request"]);
    expect(site.depth()).toBe(9);
  });

  it("proves the bus by its own heartbeat, so that silent ranks die", () => {
    const site = new Site();
    site.register();
    site.nowMs = 6_000;
    site.bus.publishHeartbeat("somebody else");
    expect(site.memory.fleet()).toHaveLength(1);
    site.indexer.tick();
    site.nowMs = 6_100;
    expect(site.memory.fleet()).toHaveLength(0);
  });

  it("hears nothing after stop", () => {
    const site = new Site();
    site.register();
    site.indexer.stop();
    site.grow(4);
    expect(site.depth()).toBe(0);
  });
});

/** The same store, answering later. */
function later(memory: MemoryStore, onApply: (batches: readonly KvBatch[]) => void): ViewStore {
  return {
    epoch: memory.epoch,
    read: (model, keys) => memory.read(model, keys),
    register: async (registration) => memory.register(registration),
    retire: async (key) => memory.retire(key),
    apply: async (batches): Promise<ApplyOutcome[]> => {
      await Promise.resolve();
      onApply(batches);
      return memory.apply(batches);
    },
    applySnapshot: async (snapshot) => memory.applySnapshot(snapshot),
    reserve: async (write) => memory.reserve(write),
    release: async (key, requestId) => memory.release(key, requestId),
    report: async (reports, heartbeat) => memory.report(reports, heartbeat),
    reset: async () => memory.reset(),
    fleet: async () => memory.fleet(),
    getThresholds: async (model) => memory.getThresholds(model),
    setThresholds: async (model, thresholds) => memory.setThresholds(model, thresholds),
  };
}
