/** Redis, its REST proxy and NATS as real processes, agents on the bus that know what they published, and the view compared with that. */

import { Redis } from "ioredis";
import { expect } from "vitest";
import { defineConfig, type KedgeConfig } from "../../src/config/index.ts";
import { connectNatsBus, type NatsBus, natsOptions } from "../../src/events/nats/index.ts";
import type { IncarnationKey } from "../../src/fleet/types.ts";
import { monotonicClock } from "../../src/node/clock.ts";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { openStore } from "../../src/node/redis-store.ts";
import type { KvOp, ViewStore } from "../../src/store/types.ts";
import { MODEL, registrationOf, removeKeys, reportOf, storeKeys } from "../contract/view-samples.ts";
import { type NatsServer, type RunningServer, startNats, startRedis } from "../support/servers.ts";

export const TOKEN = "indexer-test";
const CHAINS = 4;
const CHAIN_KEYS = 400;

/** A small generator of its own, so that a run can be repeated. */
export function randomOf(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

/** One rank: what it has published is what it holds. */
class MirroredRank {
  readonly chains: readonly BigUint64Array[];
  depths: number[] = Array.from({ length: CHAINS }, () => 0);
  sequence = 0;
  key: IncarnationKey;
  reports = 0;

  constructor(worker: string, seed: number) {
    this.key = { worker, rank: 0, incarnation: `${worker}-1` };
    // All ranks share half of the chains, so that keys have several holders.
    this.chains = Array.from({ length: CHAINS }, (_, i) => chainOf(i < CHAINS / 2 ? i : seed * 10 + i));
  }

  step(random: () => number): readonly KvOp[] {
    const i = Math.floor(random() * CHAINS);
    const chain = this.chains[i]!;
    const depth = this.depths[i]!;
    const grows = depth < 50 || (random() < 0.7 && depth < CHAIN_KEYS - 50);
    const next = grows
      ? depth + 1 + Math.floor(random() * 40)
      : Math.max(0, depth - 1 - Math.floor(random() * 40));
    this.depths[i] = next;
    return [grows ? storeKeys(chain, depth, next) : removeKeys(chain, next, depth)];
  }

  restart(): void {
    this.key = { ...this.key, incarnation: `${this.key.incarnation}+` };
    this.depths = this.depths.map(() => 0);
    this.sequence = 0;
    this.reports = 0;
  }
}

function chainOf(n: number): BigUint64Array {
  return BigUint64Array.from({ length: CHAIN_KEYS }, (_, i) =>
    BigInt.asUintN(64, BigInt(n * 100_003 + i + 1) * 0x9e3779b97f4a7c15n),
  );
}

/** One agent of several ranks on its own connection; reports and registers as agents do. */
export class MirroredAgent {
  readonly ranks: MirroredRank[];
  readonly bus: NatsBus;
  readonly #random: () => number;
  readonly #timers: NodeJS.Timeout[] = [];

  constructor(config: KedgeConfig, name: string, workers: number, seed: number) {
    this.#random = randomOf(seed);
    this.ranks = Array.from({ length: workers }, (_, i) => new MirroredRank(`${name}-${i}`, seed + i));
    this.bus = connectNatsBus(
      natsOptions(
        { ...config, place: { ...config.place, node: name } },
        { role: "agent", name, timers: monotonicClock, random: Math.random, onError: () => undefined },
      ),
    );
    this.bus.onRollCall(() => this.register());
    this.bus.serveSnapshots((key) => {
      const rank = this.ranks.find(
        (each) => each.key.worker === key.worker && each.key.incarnation === key.incarnation,
      );
      if (rank === undefined) return null;
      const ops = rank.chains.flatMap((chain, i) =>
        rank.depths[i] === 0 ? [] : [storeKeys(chain, 0, rank.depths[i])],
      );
      return { ...rank.key, model: MODEL, sequence: rank.sequence, ops };
    });
    this.#timers.push(
      setInterval(() => this.report(), 1_000),
      setInterval(() => this.register(), 10_000),
    );
    this.register();
  }

  register(): void {
    for (const { key } of this.ranks) this.bus.publishRegistration(registrationOf(key));
  }

  report(): void {
    for (const rank of this.ranks) {
      const changes = { sequence: ++rank.reports, publishedSequence: rank.sequence };
      this.bus.publishLoad(reportOf(rank.key, changes));
    }
  }

  /** One batch of each rank. */
  step(): void {
    for (const rank of this.ranks) {
      const ops = rank.step(this.#random);
      this.bus.publishKv({ ...rank.key, model: MODEL, sequence: ++rank.sequence, ops });
    }
  }

  restartFirst(): void {
    const [rank] = this.ranks;
    rank!.restart();
    this.bus.publishRegistration(registrationOf(rank!.key));
  }

  async close(): Promise<void> {
    for (const timer of this.#timers) clearInterval(timer);
    await this.bus.close();
  }
}

export class Site {
  redis: RunningServer;
  nats: NatsServer;
  readonly rest: RestServer;
  readonly config: KedgeConfig;
  readonly store: ViewStore;
  readonly agents: MirroredAgent[] = [];
  readonly #closing: (() => Promise<unknown>)[] = [];

  private constructor(redis: RunningServer, nats: NatsServer, rest: RestServer, shards: number) {
    this.redis = redis;
    this.nats = nats;
    this.rest = rest;
    this.config = defineConfig({
      store: { url: rest.url, token: TOKEN, shards },
      nats: { url: nats.url },
      place: { region: "eu", cluster: "lab", node: "tests" },
    });
    this.store = openStore(this.config);
  }

  static async start({ shards = 1 } = {}): Promise<Site> {
    const [redis, nats] = await Promise.all([startRedis(), startNats()]);
    const rest = await startRedisRest({
      redis: { host: "127.0.0.1", port: redis.port },
      token: TOKEN,
      port: 0,
    });
    return new Site(redis, nats, rest, shards);
  }

  /** Environment of a process that belongs here. */
  get environment(): Record<string, string> {
    return {
      KEDGE_REDIS_URL: this.rest.url,
      KEDGE_REDIS_TOKEN: TOKEN,
      KEDGE_NATS_URL: this.nats.url,
      KEDGE_REGION: "eu",
      KEDGE_VIEW_SHARDS: String(this.config.store.shards),
    };
  }

  addAgent(name: string, workers: number, seed: number): MirroredAgent {
    const agent = new MirroredAgent(this.config, name, workers, seed);
    this.agents.push(agent);
    return agent;
  }

  closeAtEnd(close: () => Promise<unknown>): void {
    this.#closing.push(close);
  }

  async close(): Promise<void> {
    for (const close of this.#closing.splice(0).reverse()) await close();
    for (const agent of this.agents.splice(0)) await agent.close();
    await this.rest.close();
    await Promise.all([this.nats.stop("SIGKILL"), this.redis.stop("SIGKILL")]);
  }

  /** Everything in the database is gone, as after a restart without persistence. */
  async emptyRedis(): Promise<void> {
    const client = new Redis(this.redis.port, "127.0.0.1");
    await client.flushall();
    client.disconnect();
  }

  async stopNats(): Promise<void> {
    await this.nats.stop("SIGKILL");
  }

  /** At the same place, with the streams it had. */
  async startNatsAgain(): Promise<void> {
    const { port, storeDir } = this.nats;
    this.nats = await startNats({ port, storeDir });
  }

  /** Batches of all ranks, a few milliseconds apart, so that many writes are cut by whatever happens meanwhile. */
  async publish(rounds: number, meanwhile?: (round: number) => Promise<void> | void): Promise<void> {
    for (let round = 0; round < rounds; round++) {
      for (const agent of this.agents) agent.step();
      await meanwhile?.(round);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  /** Where the view differs from what was published; empty: nowhere. */
  async differences(): Promise<string[]> {
    const found: string[] = [];
    const rows = await this.store.fleet(0);
    const names = new Map(
      rows.map(({ slots, worker, incarnation }) => [slots.device, `${worker} ${incarnation}`]),
    );
    const ranks = this.agents.flatMap((agent) => agent.ranks);
    for (const { key } of ranks) {
      const name = `${key.worker} ${key.incarnation}`;
      if (![...names.values()].includes(name)) found.push(`${name} is not in the fleet`);
    }
    if (rows.length !== ranks.length) found.push(`${rows.length} ranks instead of ${ranks.length}`);
    const chains = new Map<bigint, { keys: BigUint64Array; depths: Map<string, number> }>();
    for (const rank of ranks) {
      for (const [i, keys] of rank.chains.entries()) {
        const chain = chains.get(keys[0]!) ?? { keys, depths: new Map() };
        chains.set(keys[0]!, chain);
        if (rank.depths[i]! > 0)
          chain.depths.set(`${rank.key.worker} ${rank.key.incarnation}`, rank.depths[i]!);
      }
    }
    for (const { keys, depths } of chains.values()) {
      const { lookup } = await this.store.read(MODEL, keys);
      const seen = new Map<string, number>();
      for (let i = 0; i < lookup.count; i++) {
        const name = names.get(lookup.slots[i]!) ?? `slot ${lookup.slots[i]}`;
        if (seen.has(name)) found.push(`${name} is there twice`);
        if (lookup.confirmedDepth[i]! > 0) seen.set(name, lookup.confirmedDepth[i]!);
      }
      for (const name of new Set([...seen.keys(), ...depths.keys()])) {
        const [view, truth] = [seen.get(name) ?? 0, depths.get(name) ?? 0];
        if (view !== truth) found.push(`${name} holds ${truth} keys of ${keys[0]}, in the view ${view}`);
      }
    }
    return found;
  }

  /** Resolves when the view is what was published. */
  async converged(withinMs = 20_000): Promise<void> {
    await expect
      .poll(() => this.differences().catch((thrown) => [String(thrown)]), {
        timeout: withinMs,
        interval: 100,
      })
      .toEqual([]);
  }
}
