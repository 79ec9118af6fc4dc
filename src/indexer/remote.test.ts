/** The indexer in front of a view that is elsewhere: few calls, nothing lost when the view fails, is emptied, or another indexer works too. */

import { describe, expect, it } from "vitest";
import { ManualTimers } from "../../test/bridge/manual-timers.ts";
import { MODEL, registrationOf, reportOf, storeKeys } from "../../test/contract/view-samples.ts";
import { KedgeError } from "../errors/index.ts";
import type { EventBus } from "../events/bus.ts";
import { InProcessBus } from "../events/in-process.ts";
import type { IncarnationKey, LoadReport } from "../fleet/types.ts";
import { MemoryStore } from "../store/memory/index.ts";
import type { KvBatch, LeaderLease, ViewStore } from "../store/types.ts";
import { Registry } from "../telemetry/registry.ts";
import { Indexer, IndexerMetrics, type IndexerOptions } from "./index.ts";

const chainOf = (n: number): BigUint64Array =>
  BigUint64Array.from({ length: 256 }, (_, i) => BigInt(n * 1_000 + i + 1) * 0x9e3779b97f4a7c15n);

/** A view that answers a little later, may be out of reach, and may be emptied. */
class FarStore {
  memory: MemoryStore;
  down = false;
  calls: string[] = [];
  applied: number[] = [];
  reported: (readonly LoadReport[])[] = [];
  heartbeats = 0;
  readonly #now: () => number;
  #lives = 0;

  constructor(now: () => number) {
    this.#now = now;
    this.memory = this.#newMemory();
  }

  empty(): void {
    this.memory = this.#newMemory();
  }

  #newMemory(): MemoryStore {
    this.#lives += 1;
    const life = this.#lives;
    return new MemoryStore({ now: this.#now, random: () => life / 1_000 });
  }

  async #call<T>(name: string, act: () => T): Promise<T> {
    this.calls.push(name);
    await Promise.resolve();
    if (this.down) throw new KedgeError("view_unavailable", "The view is out of reach.");
    return act();
  }

  store(): ViewStore {
    const far = this;
    return {
      get epoch() {
        return far.memory.epoch;
      },
      read: (model, keys) => far.#call("read", () => far.memory.read(model, keys)),
      register: (registration) => far.#call("register", () => far.memory.register(registration)),
      retire: (key) => far.#call("retire", () => far.memory.retire(key)),
      apply: (batches) =>
        far.#call("apply", () => {
          far.applied.push(batches.length);
          return far.memory.apply(batches);
        }),
      applySnapshot: (snapshot) => far.#call("snapshot", () => far.memory.applySnapshot(snapshot)),
      reserve: (write) => far.#call("reserve", () => far.memory.reserve(write)),
      release: (key, id) => far.#call("release", () => far.memory.release(key, id)),
      report: (reports, heartbeat) =>
        far.#call("report", () => {
          far.reported.push(reports);
          if (heartbeat) far.heartbeats += 1;
          return far.memory.report(reports, heartbeat);
        }),
      fleet: () => far.#call("fleet", () => far.memory.fleet()),
      getThresholds: (model) => far.memory.getThresholds(model),
      setThresholds: (model, thresholds) => far.memory.setThresholds(model, thresholds),
      reset: () => far.#call("reset", () => far.memory.reset()),
    };
  }
}

/** A rank as its agent knows it. */
class Publisher {
  readonly chain: BigUint64Array;
  held = 0;
  sequence = 0;
  reports = 0;
  key: IncarnationKey;
  readonly #bus: EventBus;

  constructor(bus: EventBus, number: number, incarnation = "one") {
    this.#bus = bus;
    this.key = { worker: `w${number}`, rank: 0, incarnation };
    this.chain = chainOf(number);
    bus.onRollCall(() => this.register());
    bus.serveSnapshots((key) =>
      key.worker === this.key.worker && key.incarnation === this.key.incarnation
        ? {
            ...this.key,
            model: MODEL,
            sequence: this.sequence,
            ops: this.held === 0 ? [] : [storeKeys(this.chain, 0, this.held)],
          }
        : null,
    );
  }

  register(): void {
    this.#bus.publishRegistration(registrationOf(this.key));
  }

  grow(keys = 1, lost = false): void {
    const op = storeKeys(this.chain, this.held, this.held + keys);
    this.held += keys;
    this.sequence += 1;
    if (!lost) this.#bus.publishKv({ ...this.key, model: MODEL, sequence: this.sequence, ops: [op] });
  }

  report(...admitted: string[]): void {
    const changes = { sequence: ++this.reports, publishedSequence: this.sequence, admitted };
    this.#bus.publishLoad(reportOf(this.key, changes));
  }
}

async function settle(): Promise<void> {
  for (let i = 0; i < 4; i++) await new Promise(setImmediate);
}

class Site {
  readonly timers = new ManualTimers();
  readonly now = (): number => this.timers.nowMs;
  readonly errors: string[] = [];
  readonly bus = new InProcessBus({ onHandlerError: (thrown) => this.errors.push(String(thrown)) });
  readonly far = new FarStore(this.now);
  readonly publishers: Publisher[];
  readonly indexers: Indexer[] = [];
  states: string[] = [];

  constructor(ranks = 1) {
    this.publishers = Array.from({ length: ranks }, (_, i) => new Publisher(this.bus, i));
  }

  get first(): Publisher {
    return this.publishers[0]!;
  }

  indexer(name = "one", options: Partial<IndexerOptions> = {}): Indexer {
    const indexer = new Indexer({
      bus: this.bus,
      store: this.far.store(),
      now: this.now,
      name,
      remote: { timers: this.timers },
      onError: (error, doing) => this.errors.push(`${doing}: ${error.code}`),
      onState: (state) => this.states.push(`${name} ${state}`),
      ...options,
    });
    this.indexers.push(indexer);
    return indexer;
  }

  /** Time goes by, in steps of 50 ms; indexers tick each second. */
  async pass(ms: number): Promise<void> {
    for (let left = ms; left > 0; left -= 50) {
      this.timers.advance(Math.min(50, left));
      if (this.timers.nowMs % 1_000 === 0) for (const indexer of this.indexers) indexer.tick();
      await settle();
    }
  }

  depth(publisher = this.first): number {
    const { lookup } = this.far.memory.read(MODEL, publisher.chain);
    let depth = 0;
    for (let i = 0; i < lookup.count; i++) depth = Math.max(depth, lookup.confirmedDepth[i]!);
    return depth;
  }

  /** Holders of all chains, which are as many as there are ranks if nothing is doubled. */
  holders(): number {
    return this.publishers.reduce(
      (sum, { chain }) => sum + this.far.memory.read(MODEL, chain).lookup.count,
      0,
    );
  }
}

/** One lease for several indexers. */
class SharedLease {
  holder: string | null = null;
  endsAtMs = 0;
  down = false;
  readonly #now: () => number;

  constructor(now: () => number) {
    this.#now = now;
  }

  of(name: string): LeaderLease {
    return {
      renew: async () => {
        if (this.down) throw new KedgeError("view_unavailable", "The view is out of reach.");
        if (this.holder !== name && this.holder !== null && this.endsAtMs > this.#now()) return false;
        this.holder = name;
        this.endsAtMs = this.#now() + 6_000;
        return true;
      },
      release: async () => {
        if (this.holder === name) this.holder = null;
      },
    };
  }
}

describe("few calls", () => {
  it("joins what all ranks publish within a moment into one write, and acknowledges it after", async () => {
    const site = new Site(16);
    site.indexer().start();
    await site.pass(100);
    site.far.calls = [];
    for (let i = 0; i < 4; i++) for (const publisher of site.publishers) publisher.grow(2);
    await settle();
    expect(site.far.calls).toEqual([]);
    await site.pass(50);
    expect(site.far.applied).toEqual([64]);
    for (const publisher of site.publishers) expect(site.depth(publisher)).toBe(8);
  });

  it("does not wait for more when there is enough for a write", async () => {
    const site = new Site(4);
    site.indexer().start();
    await site.pass(100);
    for (const publisher of site.publishers) publisher.grow(128);
    await settle();
    expect(site.far.applied).toEqual([4]);
  });

  it("writes while idle at most five times a second, however many ranks there are", async () => {
    const site = new Site(64);
    const lease = new SharedLease(site.now);
    let renewals = 0;
    const { renew, release } = lease.of("one");
    const counted = {
      release,
      renew: () => {
        renewals += 1;
        return renew();
      },
    };
    site.indexer("one", { lease: counted }).start();
    await site.pass(3_000);
    site.far.calls = [];
    renewals = 0;
    for (let ms = 0; ms < 60_000; ms += 100) {
      // Each rank reports once a second and registers every ten, all at different moments.
      for (const [i, publisher] of site.publishers.entries()) {
        if (ms % 1_000 === (i % 10) * 100) publisher.report();
        if (ms % 10_000 === (i % 100) * 100) publisher.register();
      }
      await site.pass(100);
    }
    expect(site.far.calls.length + renewals).toBeLessThanOrEqual(5 * 60);
    expect(site.far.memory.fleet()).toHaveLength(64);
  });

  it("joins the reports of a rank between two folds and loses no admitted request", async () => {
    const site = new Site(2);
    site.indexer().start();
    await site.pass(250);
    site.far.reported = [];
    site.first.report("a", "b");
    site.publishers[1]!.report("x");
    site.first.report("c");
    site.far.down = true;
    await site.pass(250);
    site.first.report("d");
    site.far.down = false;
    await site.pass(250);
    expect(site.far.reported).toHaveLength(1);
    const [reports] = site.far.reported;
    expect(
      reports!.map(({ key, ...each }: LoadReport & { key?: never }) => [
        each.worker,
        each.sequence,
        each.admitted,
      ]),
    ).toEqual([
      ["w0", 3, ["a", "b", "c", "d"]],
      ["w1", 1, ["x"]],
    ]);
    expect(site.indexers[0]!.figures.reports).toBe(4);
  });

  it("keeps what waits for the view small enough to be written in one call, however long the view is away", async () => {
    const site = new Site(40);
    site.indexer().start();
    await site.pass(250);
    site.far.down = true;
    for (let second = 0; second < 20; second++) {
      for (const publisher of site.publishers)
        publisher.report(...Array.from({ length: 500 }, (_, i) => `${second}-${i}`));
      await site.pass(1_000);
    }
    site.far.down = false;
    site.far.reported = [];
    await site.pass(500);
    const admitted = site.far.reported.flat().flatMap((report) => report.admitted);
    expect(admitted.length).toBe(16_384);
    expect(site.indexers[0]!.figures.admissionsLost).toBe(40 * 20 * 500 - 16_384);
    // The newest are kept.
    expect(admitted).toContain("19-499");
    expect(site.far.reported.flat()).toHaveLength(40);
  });

  it("writes a registration again when it changed or its lease runs down, and not for each repetition", async () => {
    const site = new Site();
    site.indexer("one", { registerAgainMs: 60_000 }).start();
    await site.pass(100);
    const writes = (): number => site.far.calls.filter((call) => call === "register").length;
    expect(writes()).toBe(1);
    for (let i = 0; i < 5; i++) {
      await site.pass(10_000);
      site.first.register();
    }
    await site.pass(100);
    expect(writes()).toBe(1);
    await site.pass(10_000);
    site.first.register();
    await site.pass(100);
    expect(writes()).toBe(2);
    site.bus.publishRegistration(registrationOf(site.first.key, { servedNames: ["other"] }));
    await site.pass(100);
    expect(writes()).toBe(3);
    expect(site.far.memory.fleet()[0]!.servedNames).toEqual(["other"]);
  });
});

/** A bus whose batches are logged: what nobody was done with is kept. */
function logging(bus: InProcessBus): { bus: EventBus; open: Set<number> } {
  const open = new Set<number>();
  const wrapped = new Proxy(bus, {
    get(target, name) {
      if (name === "onKv") {
        return (handler: (batch: KvBatch, done: () => void) => void) =>
          target.onKv((batch) => {
            open.add(batch.sequence);
            handler(batch, () => open.delete(batch.sequence));
          });
      }
      const value = Reflect.get(target, name) as unknown;
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
  return { bus: wrapped, open };
}

describe("nothing lost", () => {
  it("acknowledges a batch when it is in the view, not before", async () => {
    const site = new Site();
    const { bus, open } = logging(site.bus);
    site.indexer("one", { bus }).start();
    await site.pass(100);
    site.far.down = true;
    site.first.grow();
    site.first.grow();
    await site.pass(10_000);
    expect([...open]).toEqual([1, 2]);
    site.far.down = false;
    await site.pass(2_000);
    expect([...open]).toEqual([]);
    expect(site.depth()).toBe(2);
    expect(site.indexers[0]!.figures.snapshotsRequested).toBe(0);
  });

  it("acknowledges what waits behind a gap when the snapshot is in, or was given up", async () => {
    for (const answers of [true, false]) {
      const site = new Site();
      const { bus, open } = logging(site.bus);
      if (!answers) bus.requestSnapshot = () => new Promise(() => undefined);
      site.indexer("one", { bus }).start();
      await site.pass(100);
      site.first.grow(1, true);
      site.first.grow();
      site.first.grow();
      await settle();
      expect([...open]).toEqual([2, 3]);
      await site.pass(answers ? 200 : 12_000);
      expect([...open]).toEqual([]);
      expect(site.depth()).toBe(answers ? 3 : 0);
    }
  });

  it("keeps only so many batches unacknowledged that the log goes on delivering", async () => {
    const site = new Site();
    const { bus, open } = logging(site.bus);
    bus.requestSnapshot = () => new Promise(() => undefined);
    site.indexer("one", { bus }).start();
    await site.pass(100);
    site.first.grow(1, true);
    for (let i = 0; i < 250; i++) site.first.grow(0);
    await site.pass(100);
    for (let i = 0; i < 250; i++) site.first.grow(0);
    await site.pass(100);
    expect(open.size).toBe(256);
  });

  it("lets go of a write that alone fails, and heals what it held by a snapshot", async () => {
    const site = new Site();
    const store = site.far.store();
    let poisoned = true;
    const apply = store.apply.bind(store);
    store.apply = (batches) => {
      if (poisoned) throw new KedgeError("internal_error", "Out of sorts.");
      return apply(batches);
    };
    const { bus, open } = logging(site.bus);
    site.indexer("one", { bus, store }).start();
    await site.pass(100);
    site.first.grow();
    for (let i = 0; i < 8; i++) {
      site.first.report();
      await site.pass(1_000);
    }
    expect(open.size).toBe(0);
    poisoned = false;
    site.first.grow();
    await site.pass(1_000);
    expect(site.depth()).toBe(2);
  });

  it("finds a lost last batch by load reports, though no later batch tells", async () => {
    const site = new Site();
    site.indexer().start();
    await site.pass(100);
    site.first.grow();
    site.first.grow(1, true);
    for (let i = 0; i < 5; i++) {
      site.first.report();
      await site.pass(1_000);
    }
    expect(site.depth()).toBe(2);
    expect(site.indexers[0]!.figures.snapshotsRequested).toBe(1);
  });

  it("after a restart asks the view how far it is, and for no snapshot of feeds that are complete", async () => {
    const site = new Site(3);
    const before = site.indexer("before");
    before.start();
    await site.pass(100);
    for (const publisher of site.publishers) publisher.grow();
    for (const publisher of site.publishers) publisher.report();
    await site.pass(300);
    await before.stop();
    site.publishers[2]!.grow(1, true);
    const next = site.indexer("next");
    next.start();
    for (let i = 0; i < 6; i++) {
      for (const publisher of site.publishers) publisher.report();
      await site.pass(1_000);
    }
    expect(next.figures.snapshotsRequested).toBe(1);
    expect(site.depth(site.publishers[2])).toBe(2);
  });
});

describe("an emptied view", () => {
  it("is refilled by registrations and snapshots as soon as an idle fleet reports", async () => {
    const site = new Site(20);
    site.indexer().start();
    await site.pass(100);
    for (const publisher of site.publishers) publisher.grow(5);
    await site.pass(1_000);
    site.far.empty();
    for (const publisher of site.publishers) publisher.report();
    await site.pass(1_000);
    expect(site.publishers.map((publisher) => site.depth(publisher))).toEqual(site.publishers.map(() => 5));
    expect(site.holders()).toBe(20);
    expect(site.indexers[0]!.figures.snapshotsApplied).toBe(20);
  });

  it("is refilled when a batch finds it empty, and the batch is in it", async () => {
    const site = new Site();
    const { bus, open } = logging(site.bus);
    site.indexer("one", { bus }).start();
    await site.pass(100);
    site.first.grow(5);
    await site.pass(1_000);
    site.far.empty();
    site.first.grow(5);
    await site.pass(1_000);
    expect(site.depth()).toBe(10);
    expect(open.size).toBe(0);
  });

  it("is filled by an indexer that never knew the fleet", async () => {
    const site = new Site(3);
    for (const publisher of site.publishers) publisher.grow(5, true);
    site.indexer().start();
    for (let i = 0; i < 3; i++) {
      for (const publisher of site.publishers) publisher.report();
      await site.pass(1_000);
    }
    expect(site.publishers.map((publisher) => site.depth(publisher))).toEqual([5, 5, 5]);
  });

  it("is found at the next audit even if it looks like the old one but for lost data", async () => {
    const site = new Site();
    site.indexer().start();
    await site.pass(100);
    site.first.grow(5);
    await site.pass(1_000);
    const { epoch } = site.far.memory;
    site.far.empty();
    Object.defineProperty(site.far.memory, "epoch", { value: epoch });
    site.far.memory.register(registrationOf(site.first.key));
    for (let i = 0; i < 15; i++) {
      site.first.report();
      await site.pass(1_000);
    }
    expect(site.depth()).toBe(5);
  });
});

describe("silence", () => {
  it("counts only after the bus has carried for a while: agents come back one by one after an outage", async () => {
    const site = new Site(2);
    site.indexer().start();
    for (let i = 0; i < 10; i++) {
      for (const publisher of site.publishers) publisher.report();
      await site.pass(1_000);
    }
    expect(site.far.heartbeats).toBeGreaterThan(0);
    expect(site.indexers[0]!.figures.heartbeats).toBe(site.far.heartbeats);
    // The bus is away for ten seconds.
    const { publishHeartbeat } = site.bus;
    site.bus.publishHeartbeat = () => undefined;
    await site.pass(10_000);
    site.bus.publishHeartbeat = publishHeartbeat;
    // The longest wait for a connection, the time to settle, and the next fold.
    for (let i = 0; i < 7; i++) {
      site.first.report();
      await site.pass(1_000);
      expect(site.far.memory.fleet()).toHaveLength(2);
    }
    // The other does not come back at all.
    for (let i = 0; i < 4; i++) {
      site.first.report();
      await site.pass(1_000);
    }
    expect(site.far.memory.fleet().map(({ worker }) => worker)).toEqual(["w0"]);
  });
});

describe("several indexers", () => {
  it("only the holder of the lease works; when it dies another goes on within the lease's life and a renewal", async () => {
    const site = new Site(2);
    const lease = new SharedLease(site.now);
    const one = site.indexer("one", { lease: lease.of("one") });
    const two = site.indexer("two", { lease: lease.of("two") });
    one.start();
    await settle();
    two.start();
    await site.pass(1_000);
    expect([one.state, two.state]).toEqual(["leading", "standby"]);
    for (const publisher of site.publishers) publisher.grow(5);
    await site.pass(1_000);
    expect([one.figures.batchesApplied, two.figures.batchesApplied]).toEqual([2, 0]);
    // Killed: it neither renews nor hears.
    site.indexers.splice(0, 1);
    const died = site.now();
    while (two.state !== "leading") {
      expect(site.now() - died).toBeLessThanOrEqual(8_000);
      await site.pass(1_000);
    }
    for (const publisher of site.publishers) publisher.grow(5);
    await site.pass(1_000);
    expect(site.publishers.map((publisher) => site.depth(publisher))).toEqual([10, 10]);
    expect(two.figures.batchesApplied + two.figures.batchesDuplicate).toBe(2);
  });

  it("hands over at once when it is stopped, with all that it had heard written", async () => {
    const site = new Site();
    const lease = new SharedLease(site.now);
    const one = site.indexer("one", { lease: lease.of("one") });
    one.start();
    await site.pass(1_000);
    site.first.grow(5);
    site.first.report("a");
    await one.stop();
    expect(site.depth()).toBe(5);
    expect(site.far.reported.flat().flatMap(({ admitted }) => admitted)).toEqual(["a"]);
    const two = site.indexer("two", { lease: lease.of("two") });
    two.start();
    await settle();
    expect(two.state).toBe("leading");
  });

  it("stops consuming when it cannot renew the lease, and goes on with what it knows when it can", async () => {
    const site = new Site();
    const lease = new SharedLease(site.now);
    const { bus, open } = logging(site.bus);
    const one = site.indexer("one", { lease: lease.of("one"), bus });
    one.start();
    await site.pass(1_000);
    lease.down = true;
    await site.pass(9_000);
    expect(one.state).toBe("suspended");
    site.first.grow(1);
    expect(open.size).toBe(0);
    lease.down = false;
    await site.pass(3_000);
    expect(site.states).toEqual(["one leading", "one suspended", "one leading"]);
    // What was published meanwhile comes again from a log; here it is lost and healed.
    for (let i = 0; i < 6; i++) {
      site.first.report();
      await site.pass(1_000);
    }
    expect(site.depth()).toBe(1);
  });

  it("two that both believe to lead do no harm", async () => {
    const site = new Site(8);
    site.indexer("one").start();
    site.indexer("two").start();
    await site.pass(1_000);
    for (let round = 0; round < 20; round++) {
      for (const publisher of site.publishers) publisher.grow(1, (round + publisher.chain.length) % 7 === 0);
      if (round % 5 === 0) for (const publisher of site.publishers) publisher.report();
      if (round === 10) site.far.empty();
      await site.pass(150);
    }
    for (let i = 0; i < 5; i++) {
      for (const publisher of site.publishers) publisher.report();
      await site.pass(1_000);
    }
    expect(site.publishers.map((publisher) => site.depth(publisher))).toEqual(
      site.publishers.map(({ held }) => held),
    );
    expect(site.holders()).toBe(8);
  });
});

describe("lag", () => {
  it("is told per rank in batches and milliseconds, and forgotten with the rank", async () => {
    const site = new Site(2);
    const indexer = site.indexer("one", { snapshotIntervalMs: 1e9 });
    const registry = new Registry();
    const metrics = new IndexerMetrics(indexer, registry);
    indexer.start();
    await site.pass(100);
    for (const publisher of site.publishers) publisher.grow();
    await site.pass(100);
    site.bus.requestSnapshot = async () => null;
    site.first.grow(1, true);
    site.first.grow(1, true);
    for (const publisher of site.publishers) publisher.report();
    await site.pass(250);
    await site.pass(700);
    metrics.collect();
    expect(registry.encode()).toContain('kedge_indexer_lag_events{worker="w0",rank="0"} 2');
    expect(registry.encode()).toMatch(/kedge_indexer_lag_ms\{worker="w0",rank="0"\} [6-9]\d\d\n/);
    expect(registry.encode()).toContain('kedge_indexer_lag_events{worker="w1",rank="0"} 0');
    expect(registry.encode()).toContain('kedge_indexer_batches_total{outcome="applied"} 2');
    site.bus.publishRetirement(site.first.key);
    await site.pass(100);
    metrics.collect();
    expect(registry.encode()).not.toContain('worker="w0"');
    expect(indexer.ranks).toBe(1);
  });
});

describe("malformed registrations", () => {
  it("are told and let go, and the others of their write go in", async () => {
    const site = new Site(4);
    const store = site.far.store();
    const register = store.register.bind(store);
    store.register = async (registration) => {
      if (registration.worker === "w2") throw new KedgeError("invalid_request", "No such worker can be.");
      return register(registration);
    };
    site.indexer("one", { store }).start();
    await site.pass(500);
    expect(site.far.memory.fleet().map(({ worker }) => worker)).toEqual(["w0", "w1", "w3"]);
    expect(site.errors).toEqual(["registration: invalid_request"]);
    expect(site.indexers[0]!.queued).toBe(0);
  });
});
