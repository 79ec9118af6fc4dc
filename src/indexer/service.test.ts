/** The indexer as hosts run it: what it says, when it is ready, how it begins and ends. */

import { expect, it } from "vitest";
import { ManualTimers } from "../../test/bridge/manual-timers.ts";
import { MODEL, registrationOf, storeKeys } from "../../test/contract/view-samples.ts";
import { defineConfig, type KedgeConfigInput } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import { InProcessBus } from "../events/in-process.ts";
import { MemoryStore } from "../store/memory/index.ts";
import type { LeaderLease } from "../store/types.ts";
import { type IndexerBus, IndexerService, type LeasingStore } from "./index.ts";

const KEY = { worker: "w", rank: 0, incarnation: "one" };
const UNAVAILABLE = new KedgeError("view_unavailable", "The view is out of reach.");

class Bus extends InProcessBus implements IndexerBus {
  connected = true;
  closed = false;

  constructor() {
    super({ onHandlerError: () => undefined });
  }

  status() {
    const figures = { redelivered: 0, undecodable: 0, pendingAcks: 3, consumerLag: 7 };
    return { server: this.connected ? "ws://nats" : null, ...figures };
  }

  async close(): Promise<void> {
    this.closed = true;
  }
}

class Rig {
  readonly timers = new ManualTimers();
  readonly bus = new Bus();
  readonly lines: string[] = [];
  readonly memory = new MemoryStore({ now: () => this.timers.nowMs, random: Math.random });
  readonly service: IndexerService;
  down = false;
  hangs = false;
  taken = false;
  /** Another asks for the lease between any two renewals. */
  wanted = false;
  released = 0;
  changed: () => void = () => undefined;
  failed: (error: KedgeError, doing: string) => void = () => undefined;

  constructor(config: KedgeConfigInput = {}) {
    this.service = new IndexerService({
      config: defineConfig({ place: { region: "eu" }, ...config }),
      name: "one",
      store: this.#store(),
      connect: ({ onError, onStatus }) => {
        this.changed = onStatus;
        this.failed = onError;
        return this.bus;
      },
      timers: this.timers,
      now: () => this.timers.nowMs,
      log: (level, message) => this.lines.push(`${level}: ${message}`),
    });
  }

  #store(): LeasingStore {
    const { memory } = this;
    const answer = async <T>(act: () => T): Promise<T> => {
      await Promise.resolve();
      if (this.hangs) return new Promise(() => undefined);
      if (this.down) throw UNAVAILABLE;
      return act();
    };
    const lease: LeaderLease = {
      renew: () => answer(() => !this.taken),
      release: () =>
        answer(() => {
          this.released++;
          this.taken = this.wanted;
        }),
    };
    return {
      get epoch() {
        return memory.epoch;
      },
      read: (model, keys) => memory.read(model, keys),
      register: (registration) => answer(() => memory.register(registration)),
      retire: (key) => answer(() => memory.retire(key)),
      apply: (batches) => answer(() => memory.apply(batches)),
      applySnapshot: (snapshot) => answer(() => memory.applySnapshot(snapshot)),
      reserve: (write) => memory.reserve(write),
      release: (key, id) => memory.release(key, id),
      report: (reports, heartbeat) => answer(() => memory.report(reports, heartbeat)),
      fleet: () => answer(() => memory.fleet()),
      getThresholds: (model) => memory.getThresholds(model),
      setThresholds: (model, thresholds) => memory.setThresholds(model, thresholds),
      reset: () => answer(() => memory.reset()),
      lease: () => lease,
    };
  }

  async pass(ms: number): Promise<void> {
    for (let left = ms; left > 0; left -= 50) {
      this.timers.advance(Math.min(50, left));
      for (let i = 0; i < 3; i++) await new Promise(setImmediate);
    }
  }
}

it("cut off from NATS it leaves the lease to an indexer that asks for it, and leads on without a word while there is none", async () => {
  const rig = new Rig();
  rig.service.start();
  await rig.pass(60_000);
  expect(rig.released).toBe(0);
  rig.bus.connected = false;
  await rig.pass(5_000);
  expect(rig.released).toBe(0);
  await rig.pass(60_000);
  expect(rig.released).toBeGreaterThan(5);
  expect(rig.service.status().state).toBe("leading");
  rig.wanted = true;
  await rig.pass(12_000);
  expect(rig.service.status().state).toBe("standby");
  expect(rig.lines).toEqual([
    "info: leading: folds the log into the view",
    "info: standing by: another indexer leads",
  ]);
  const { released } = rig;
  rig.bus.connected = true;
  rig.taken = false;
  await rig.pass(60_000);
  expect([rig.service.status().state, rig.released]).toEqual(["leading", released]);
});

it("cut off from NATS while it stands by, it does not keep a lease that is offered", async () => {
  const rig = new Rig();
  rig.taken = true;
  rig.bus.connected = false;
  rig.service.start();
  await rig.pass(10_000);
  rig.taken = false;
  await rig.pass(30_000);
  expect(rig.service.status().state).toBe("standby");
  expect(rig.released).toBeGreaterThan(5);
  rig.bus.connected = true;
  await rig.pass(3_000);
  expect(rig.service.status().state).toBe("leading");
});

it("says each change of state once, and is ready while it leads or stands by with bus and view in reach", async () => {
  const rig = new Rig();
  rig.taken = true;
  rig.service.start();
  await rig.pass(5_000);
  expect(rig.service.ready).toBe(true);
  rig.taken = false;
  await rig.pass(5_000);
  rig.down = true;
  await rig.pass(3_000);
  expect(rig.service.ready).toBe(false);
  rig.down = false;
  await rig.pass(5_000);
  expect(rig.service.ready).toBe(true);
  rig.bus.connected = false;
  rig.changed();
  expect(rig.service.ready).toBe(false);
  expect(rig.service.status()).toMatchObject({ natsConnected: false, natsServer: null, logPending: 7 });
  rig.bus.connected = true;
  rig.changed();
  expect(rig.lines.filter((line) => !line.startsWith("error"))).toEqual([
    "info: standing by: another indexer leads",
    "info: leading: folds the log into the view",
    "warn: the view is out of reach: The view is out of reach.",
    "info: the view answers again",
    "warn: the connection to NATS is lost; trying again",
    "info: connected to NATS at ws://nats",
  ]);
});

it("tells the same trouble once in ten seconds", async () => {
  const rig = new Rig();
  rig.service.start();
  await rig.pass(100);
  for (let i = 0; i < 50; i++) rig.failed(UNAVAILABLE, "publishing");
  rig.failed(new KedgeError("invalid_request", "Garbled."), "kv");
  await rig.pass(10_000);
  rig.failed(UNAVAILABLE, "publishing");
  expect(rig.lines.filter((line) => line.startsWith("error"))).toEqual([
    "error: publishing: The view is out of reach.",
    "error: kv: Garbled.",
    "error: publishing: The view is out of reach.",
  ]);
});

it("begins a new epoch once, when it leads for the first time, and not while it stands by", async () => {
  const rig = new Rig({ router: { resetStates: true } });
  const { epoch } = rig.memory;
  rig.memory.register(registrationOf(KEY));
  rig.taken = true;
  rig.service.start();
  await rig.pass(5_000);
  expect(rig.memory.epoch).toBe(epoch);
  rig.taken = false;
  await rig.pass(5_000);
  const next = rig.memory.epoch;
  expect(next).not.toBe(epoch);
  expect(rig.memory.fleet()).toEqual([]);
  await rig.pass(20_000);
  expect(rig.memory.epoch).toBe(next);
});

it("ends with what it heard in the view, the lease given up and the bus closed", async () => {
  const rig = new Rig();
  rig.service.start();
  await rig.pass(100);
  rig.bus.publishRegistration(registrationOf(KEY));
  const chain = BigUint64Array.of(1n, 2n, 3n);
  rig.bus.publishKv({ ...KEY, model: MODEL, sequence: 1, ops: [storeKeys(chain)] });
  await rig.service.stop();
  expect(rig.memory.read(MODEL, chain).lookup.confirmedDepth[0]).toBe(3);
  expect([rig.released, rig.bus.closed, rig.service.status().state]).toEqual([1, true, "stopped"]);
});

it("ends within seconds even if the view never answers", async () => {
  const rig = new Rig();
  rig.service.start();
  await rig.pass(100);
  rig.hangs = true;
  rig.bus.publishRegistration(registrationOf(KEY));
  const stopped = rig.service.stop();
  await rig.pass(6_000);
  await stopped;
  expect(rig.bus.closed).toBe(true);
});

it("shows bus and work as metrics", async () => {
  const rig = new Rig();
  rig.service.start();
  await rig.pass(100);
  const metrics = rig.service.metrics();
  for (const line of [
    "kedge_indexer_leading 1",
    "kedge_indexer_nats_connected 1",
    "kedge_indexer_log_pending 7",
    "kedge_indexer_pending_acks 3",
  ])
    expect(metrics).toContain(`${line}\n`);
});
