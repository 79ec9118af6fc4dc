/** Random histories of workers, their agents and gateways, written to a store and to the naive model alike. */

import { expect } from "vitest";
import { type IncarnationKey, type LoadReport, TIERS, type Tier } from "../../src/fleet/types.ts";
import type { ApplyOutcome, KvBatch, KvOp, StoreOp, ViewStore } from "../../src/store/types.ts";
import { placeOf, ViewModel } from "./view-model.ts";
import { MODEL, registrationOf } from "./view-samples.ts";

/** A store with a clock that the test moves. */
export interface StoreUnderTest {
  readonly store: ViewStore;
  advance(ms: number): void;
  close(): void | Promise<void>;
}

export interface StoreSettings {
  readonly horizonMs: number;
}

export const HORIZON_MS = 60_000;
const PLACES = [
  { worker: "a", rank: 0 },
  { worker: "a", rank: 1 },
  { worker: "b", rank: 0 },
  { worker: "c", rank: 0 },
];

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

/** One life of a rank as its agent sees it: what the engine holds, and the batches published. */
interface Agent {
  readonly key: IncarnationKey;
  readonly held: Record<Tier, Set<bigint>>;
  sequence: number;
  reports: number;
  readonly sent: KvBatch[];
}

export class History {
  private readonly random: () => number;
  private readonly model = new ViewModel(HORIZON_MS);
  private readonly chains: BigUint64Array[];
  private readonly agents: Agent[] = [];
  private readonly past: Agent[] = [];
  private readonly requests: { key: IncarnationKey; id: string }[] = [];
  private readonly tested: StoreUnderTest;
  private lives = 0;

  constructor(seed: number, tested: StoreUnderTest) {
    this.random = seeded(seed);
    this.tested = tested;
    this.chains = makeChains(this.random);
  }

  async run(steps: number): Promise<void> {
    for (const place of PLACES) await this.begin(place);
    for (let step = 0; step < steps; step++) {
      await this.step();
      await this.compare([this.pick(this.chains)], `step ${step}`);
    }
    await this.compare(this.chains, "end");
  }

  private async step(): Promise<void> {
    const dice = this.random();
    if (dice < 0.4) return this.publish(this.pick(this.agents));
    if (dice < 0.52) return this.reserve();
    if (dice < 0.62) return this.report(this.pick(this.agents));
    if (dice < 0.72) return this.wait();
    if (dice < 0.8) return this.resend();
    if (dice < 0.86) return this.snapshot(this.pick(this.agents));
    if (dice < 0.9) return this.skip(this.pick(this.agents));
    if (dice < 0.94) return this.restart();
    if (dice < 0.97) return this.refresh();
    return this.release();
  }

  private async begin(place: { worker: string; rank: number }): Promise<void> {
    const agent: Agent = {
      key: { ...place, incarnation: `life-${++this.lives}` },
      held: { device: new Set(), host: new Set(), disk: new Set() },
      sequence: 0,
      reports: 0,
      sent: [],
    };
    this.agents.push(agent);
    await this.register(agent);
  }

  private async register(agent: Agent): Promise<void> {
    const slots = await this.tested.store.register(registrationOf(agent.key));
    expect(slots !== null).toBe(this.model.register(agent.key));
  }

  private async publish(agent: Agent): Promise<void> {
    const ops = Array.from({ length: 1 + this.below(3) }, () => this.op(agent));
    const batch = { ...agent.key, model: MODEL, sequence: ++agent.sequence, ops };
    agent.sent.push(batch);
    await this.apply(batch);
  }

  /** The engine did something that the view never hears of: the next batch is a gap. */
  private async skip(agent: Agent): Promise<void> {
    this.op(agent);
    agent.sequence += 1;
  }

  private async resend(): Promise<void> {
    const agent = this.pick(this.past.length > 0 && this.random() < 0.5 ? this.past : this.agents);
    if (agent.sent.length > 0) await this.apply(this.pick(agent.sent));
    else if (this.past.includes(agent)) await this.register(agent);
  }

  private async apply(batch: KvBatch): Promise<void> {
    const outcomes: readonly ApplyOutcome[] = await this.tested.store.apply([batch]);
    expect(outcomes).toEqual([this.model.apply(batch)]);
  }

  private async snapshot(agent: Agent): Promise<void> {
    const ops: StoreOp[] = [];
    for (const tier of TIERS) {
      for (const chain of this.chains) {
        const depth = heldDepth(agent.held[tier], chain);
        if (depth > 0) ops.push(storeOp(tier, chain, 0, depth, this.below(3)));
      }
    }
    // Now and then an old snapshot, which must change nothing.
    const sequence = this.random() < 0.2 ? Math.max(0, agent.sequence - 2) : agent.sequence;
    const snapshot = { ...agent.key, model: MODEL, sequence, ops };
    expect(await this.tested.store.applySnapshot(snapshot)).toBe(this.model.applySnapshot(snapshot));
  }

  private async restart(): Promise<void> {
    const index = this.below(this.agents.length);
    const [agent] = this.agents.splice(index, 1);
    this.past.push(agent);
    if (this.random() < 0.3) {
      await this.tested.store.retire(agent.key);
      this.model.retire(agent.key);
    }
    await this.begin(agent.key);
  }

  /** A heartbeat's refresh, sometimes of a life that is over. */
  private async refresh(): Promise<void> {
    const late = this.past.length > 0 && this.random() < 0.5;
    await this.register(this.pick(late ? this.past : this.agents));
  }

  private async reserve(): Promise<void> {
    const { key } = this.pick(this.past.length > 0 && this.random() < 0.1 ? this.past : this.agents);
    const id = `request-${this.requests.length}`;
    this.requests.push({ key, id });
    if (this.random() < 0.1) return;
    const chain = this.pick(this.chains);
    const write = {
      ...key,
      requestId: id,
      blocks: this.below(20),
      prefillTokens: this.below(300),
      reservationTtlMs: 1_000 * (1 + this.below(20)),
      prediction:
        this.random() < 0.2
          ? null
          : {
              keys: chain.slice(0, this.below(chain.length + 1)),
              tokensPerKey: 16 * this.random(),
              ttlMs: 1_000 * (1 + this.below(10)),
            },
    };
    await this.tested.store.reserve(write);
    this.model.reserve(write);
  }

  /** Covers some requests, those included that have no reservation. */
  private async report(agent: Agent): Promise<void> {
    const stale = agent.reports > 0 && this.random() < 0.1;
    const report: LoadReport = {
      ...agent.key,
      sequence: stale ? agent.reports : ++agent.reports,
      activeBlocks: this.random() < 0.1 ? null : this.below(1_000),
      prefillTokens: this.below(10_000),
      running: this.below(10),
      waiting: this.below(10),
      admitted: this.requests
        .filter(({ key }) => key === agent.key && this.random() < 0.5)
        .map(({ id }) => id)
        .slice(-5),
      publishedSequence: agent.sequence,
    };
    await this.tested.store.report([report]);
    this.model.fold(report);
  }

  private async release(): Promise<void> {
    if (this.requests.length === 0) return;
    const { key, id } = this.pick(this.requests);
    await this.tested.store.release(key, id);
    this.model.release(key, id);
  }

  private async wait(): Promise<void> {
    const seconds = this.random() < 0.2 ? 1 + this.below(HORIZON_MS / 1_000 + 1) : 1 + this.below(4);
    this.tested.advance(seconds * 1_000);
    this.model.nowMs += seconds * 1_000;
  }

  /** What an engine may do: extend a chain, assert one again from its root, or evict from the leaves. */
  private op(agent: Agent): KvOp {
    const tier = this.random() < 0.7 ? "device" : this.pick(TIERS);
    const chain = this.pick(this.chains);
    const held = agent.held[tier];
    const depth = heldDepth(held, chain);
    if (depth > 0 && this.random() < 0.35) return this.evict(tier, held, chain, this.below(depth));
    const again = this.random() < 0.3;
    const start = again ? 0 : Math.min(depth, chain.length - 1);
    const end = Math.max(again ? depth : 0, start + 1 + this.below(chain.length - start));
    for (let i = start; i < end; i++) held.add(chain[i]);
    return storeOp(tier, chain, start, end, this.below(3));
  }

  /** Removes a key and all that descends from it. */
  private evict(tier: Tier, held: Set<bigint>, chain: BigUint64Array, depth: number): KvOp {
    const gone = new Set<bigint>();
    for (const other of this.chains) {
      if (other[depth] !== chain[depth]) continue;
      for (const key of other.subarray(depth)) if (held.has(key)) gone.add(key);
    }
    for (const key of gone) held.delete(key);
    return { op: "remove", tier, root: chain[0], keys: BigUint64Array.from([...gone].reverse()) };
  }

  private async compare(chains: readonly BigUint64Array[], when: string): Promise<void> {
    for (const chain of chains) {
      const keys = chain.slice(0, 1 + this.below(chain.length));
      const { fleet, lookup } = await this.tested.store.read(MODEL, keys);
      const rowOf = new Map(Array.from(lookup.slots.subarray(0, lookup.count), (slot, row) => [slot, row]));
      const seen: Record<string, object> = {};
      const wanted: Record<string, object> = {};
      for (const row of fleet) {
        const rank = this.model.current(row);
        if (rank === undefined) throw new Error(`${when}: ${placeOf(row)} of another life in the fleet`);
        const lagEvents = Math.max(0, rank.published - rank.watermark);
        wanted[placeOf(row)] = { reserved: this.model.reserved(rank), lagEvents };
        seen[placeOf(row)] = { reserved: row.reserved, lagEvents: row.feed.lagEvents };
        expect(row.load.activeBlocks, when).toBe(rank.report?.activeBlocks ?? null);
        for (const tier of TIERS) {
          const at = rowOf.get(row.slots[tier]);
          rowOf.delete(row.slots[tier]);
          wanted[`${placeOf(row)} ${tier}`] = this.model.depth(rank, tier, keys);
          seen[`${placeOf(row)} ${tier}`] = {
            confirmedDepth: at === undefined ? 0 : lookup.confirmedDepth[at],
            confirmedTokens: at === undefined ? 0 : lookup.confirmedTokens[at],
            predictedDepth: at === undefined ? 0 : lookup.predictedDepth[at],
            predictedTokens: at === undefined ? 0 : lookup.predictedTokens[at],
          };
        }
      }
      expect(seen, when).toEqual(wanted);
      expect([...rowOf.keys()], `${when}: slots of nobody in the fleet`).toEqual([]);
      expect(fleet.map(placeOf), when).toEqual([...this.model.ranks.keys()].sort());
      expect(lookup.truncated, when).toBe(false);
    }
  }

  private below(limit: number): number {
    return Math.floor(this.random() * limit);
  }

  private pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)];
  }
}

function storeOp(tier: Tier, chain: BigUint64Array, start: number, end: number, fewer: number): StoreOp {
  const keys = chain.slice(start, end);
  const tokens = Uint32Array.from(keys, (_, i) => 16 * (start + i + 1) - fewer);
  return { op: "store", tier, root: chain[0], parent: start === 0 ? null : chain[start - 1], keys, tokens };
}

function heldDepth(held: ReadonlySet<bigint>, chain: BigUint64Array): number {
  const first = chain.findIndex((key) => !held.has(key));
  return first < 0 ? chain.length : first;
}

/** Chains that branch off one another. */
function makeChains(random: () => number): BigUint64Array[] {
  const chains: BigUint64Array[] = [];
  for (let i = 0; i < 8; i++) {
    const length = 1 + Math.floor(random() * (i < 4 ? 20 : 300));
    const chain = new BigUint64Array(length);
    for (let j = 0; j < length; j++) chain[j] = randomKey(random);
    const trunk = chains[Math.floor(random() * chains.length * 1.3)];
    if (trunk !== undefined)
      chain.set(trunk.subarray(0, Math.floor(random() * Math.min(length, trunk.length))));
    chains.push(chain);
  }
  return chains;
}

export function randomKey(random: () => number): bigint {
  const word = () => BigInt(Math.floor(random() * 2 ** 32));
  return (word() << 32n) | word();
}
