/** Random lives of an engine through wire, sequencer, mirror, a bus that loses and repeats, indexer and view: in the end the view equals the table. */

import { pack } from "msgpackr";
import { beforeAll, describe, expect, test } from "vitest";
import { decodeBatch } from "../../gpu-agent/bridge/decode.ts";
import { RankPublisher } from "../../gpu-agent/bridge/publisher.ts";
import { Sequencer, type Step } from "../../gpu-agent/bridge/sequencer.ts";
import type { EventBus } from "../../src/events/bus.ts";
import { InProcessBus } from "../../src/events/in-process.ts";
import { Indexer } from "../../src/indexer/index.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import { Vocabulary } from "../../src/prefix/vocabulary.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import type { KvBatch } from "../../src/store/types.ts";
import { seeded } from "../contract/store-histories.ts";
import { reportOf } from "../contract/view-samples.ts";
import { differences, ViewKeys } from "../e2e/view-truth.ts";
import { bytesScheme, MODEL, registration, type Scheme, tokensScheme } from "./harness.ts";

const BLOCK = 4;
const TOKENS = 24;
const REASSERT_MS = 60_000;
const HORIZON_MS = 4 * REASSERT_MS;
const TICK_MS = 5_000;

let hasher: Hasher;
beforeAll(async () => {
  hasher = await createHasher();
});

type Random = () => number;
const below = (random: Random, limit: number): number => Math.floor(random() * limit);
const pick = <T>(random: Random, items: readonly T[]): T => items[below(random, items.length)]!;

interface Row {
  readonly parent: bigint | null;
  readonly tokenIds: readonly number[];
  copies: number;
}

/** The engine: a table, and the batches that tell of its changes. */
class Engine {
  life = 0;
  table = new Map<bigint, Row>();
  buffer: { readonly sequence: number; readonly payload: Uint8Array }[] = [];
  private readonly random: Random;

  constructor(random: Random) {
    this.random = random;
  }

  restart(): void {
    this.life++;
    this.table.clear();
    this.buffer = [];
  }

  /** One batch of one to four changes. */
  work(): { sequence: number; payload: Uint8Array } {
    const events = Array.from({ length: 1 + below(this.random, 4) }, () => this.change());
    const payload = pack([1.5 + this.life, events, 0]);
    const batch = { sequence: this.buffer.length, payload };
    this.buffer.push(batch);
    return batch;
  }

  /** Token ids from the root on, of every block that is held with all before it. */
  chains(): number[][] {
    return [...this.table.keys()].flatMap((hash) => {
      const path: number[] = [];
      for (let at: bigint | null = hash; at !== null; ) {
        const row = this.table.get(at);
        if (row === undefined) return [];
        path.unshift(...row.tokenIds);
        at = row.parent;
      }
      return [path];
    });
  }

  private change(): unknown {
    const dice = this.random();
    if (dice < 0.02) {
      this.table.clear();
      return ["AllBlocksCleared"];
    }
    return dice < 0.6 || this.table.size === 0 ? this.store() : this.evict();
  }

  private store(): unknown {
    const parents = [null, ...this.unbroken()];
    const parent = pick(this.random, parents);
    const hashes: bigint[] = [];
    const ids: number[] = [];
    let above = parent;
    for (let i = 0; i <= below(this.random, 4); i++) {
      const content = below(this.random, 3);
      const hash = hashOf(above, content);
      const tokenIds = Array.from({ length: BLOCK }, (_, at) => (content * 5 + at * 7) % TOKENS);
      const row = this.table.get(hash) ?? { parent: above, tokenIds, copies: 0 };
      row.copies++;
      this.table.set(hash, row);
      hashes.push(hash);
      ids.push(...tokenIds);
      above = hash;
    }
    const [sent, sentParent] = [hashes.map((hash) => this.wire(hash)), parent && this.wire(parent)];
    if (this.random() < 0.5) return ["BlockStored", sent, sentParent, ids, BLOCK, null, "GPU"];
    return {
      type: "BlockStored",
      block_hashes: sent,
      parent_block_hash: sentParent,
      token_ids: ids,
      block_size: BLOCK,
      medium: "GPU",
    };
  }

  private evict(): unknown {
    const hash = pick(this.random, [...this.table.keys()]);
    const row = this.table.get(hash)!;
    if (--row.copies === 0) this.table.delete(hash);
    return ["BlockRemoved", [this.wire(hash)], "GPU"];
  }

  private unbroken(): bigint[] {
    const isHeld = (hash: bigint | null): boolean => {
      if (hash === null) return true;
      const row = this.table.get(hash);
      return row !== undefined && isHeld(row.parent);
    };
    return [...this.table.keys()].filter(isHeld);
  }

  private wire(hash: bigint): unknown {
    if (this.life % 3 === 0) return hash;
    if (this.life % 3 === 1) return BigInt.asIntN(64, hash);
    const bytes = Buffer.alloc(32, 1);
    bytes.writeBigUInt64BE(hash, 24);
    return bytes;
  }
}

function hashOf(parent: bigint | null, content: number): bigint {
  const mixed = ((parent ?? 11n) ^ BigInt(content + 1)) * 0x9e37_79b9_7f4a_7c15n;
  return BigInt.asUintN(64, mixed ^ (BigInt.asUintN(64, mixed) >> 29n));
}

/** Between agent and indexer: batches are lost, repeated, or come late. */
class LossyBus extends InProcessBus {
  lossy = true;
  private readonly random: Random;
  private late: KvBatch[] = [];

  constructor(random: Random, errors: unknown[]) {
    super({ onHandlerError: (thrown) => errors.push(thrown) });
    this.random = random;
  }

  override publishKv(batch: KvBatch): void {
    const dice = this.lossy ? this.random() : 1;
    if (dice < 0.1) return;
    if (dice < 0.2) this.late.push(batch);
    else super.publishKv(batch);
    if (dice > 0.9 || !this.lossy) this.deliverLate();
    if (dice > 0.8 && this.lossy) super.publishKv(batch);
  }

  override publishRegistration(registered: Parameters<EventBus["publishRegistration"]>[0]): void {
    if (!this.lossy || this.random() > 0.2) super.publishRegistration(registered);
  }

  private deliverLate(): void {
    for (const batch of this.late.splice(0).reverse()) super.publishKv(batch);
  }
}

class Site {
  readonly errors: unknown[] = [];
  readonly engine: Engine;
  readonly store: MemoryStore;
  private readonly random: Random;
  private readonly scheme: Scheme;
  private readonly bus: LossyBus;
  private readonly indexer: Indexer;
  private readonly publisher: RankPublisher;
  private readonly sequencer = new Sequencer({ replayable: true });
  private readonly view: ViewKeys;
  private replay: { from: number; life: number } | null = null;
  private nowMs = 0;
  private lostLast = false;
  private reports = 0;
  private lives = 0;

  constructor(random: Random, scheme: Scheme) {
    this.random = random;
    this.scheme = scheme;
    this.engine = new Engine(random);
    this.bus = new LossyBus(random, this.errors);
    const now = () => this.nowMs;
    this.store = new MemoryStore({ now, random, horizonMs: HORIZON_MS });
    this.view = new ViewKeys(this.bus, this.store, MODEL);
    const onError = (error: unknown) => this.errors.push(error);
    this.indexer = new Indexer({ bus: this.bus, store: this.store, now, name: "i", onError });
    this.indexer.start();
    this.publisher = new RankPublisher({
      bus: this.bus,
      registration: registration(scheme, BLOCK),
      mirror: { keyer: scheme.keyer, model: MODEL, blockSize: BLOCK, capacityBlocks: 100_000 },
      now,
      newIncarnation: () => `life-${++this.lives}`,
      reassertMs: REASSERT_MS,
      onMismatch: onError,
    });
    this.bus.serveSnapshots((key) => this.publisher.snapshot(key));
    this.take(this.sequencer.connected(0));
  }

  async step(): Promise<void> {
    const dice = this.random();
    if (dice < 0.75) this.work(this.random() < 0.1);
    else if (dice < 0.85) this.answerReplay();
    else if (dice < 0.96) this.pass(1 + below(this.random, 4));
    else if (dice < 0.98) this.restart();
    else this.sleep();
    await turns();
  }

  /** The engine falls silent; what can be learnt still is: by replays, reports, snapshots and two walks over the table. */
  async settle(): Promise<void> {
    this.bus.lossy = false;
    // Nothing tells of a lost last batch but the one after it.
    if (this.lostLast) this.work(false);
    for (let ms = 0; ms < 3 * REASSERT_MS; ms += TICK_MS) {
      this.pass(1);
      await turns();
    }
  }

  /** Trouble begins again. */
  resume(): void {
    this.bus.lossy = true;
  }

  differences(): string[] {
    const keys = this.engine.chains().flatMap((ids) => [...this.scheme.keysOf(ids, {}).keys]);
    return differences(new Map([["w/0", new Set(keys)]]), this.view.held());
  }

  private work(lost: boolean): void {
    this.lostLast = lost;
    const { sequence, payload } = this.engine.work();
    if (!lost) this.take(this.sequencer.live(sequence, payload, this.nowMs));
  }

  private restart(): void {
    this.lostLast = false;
    this.engine.restart();
    this.take(this.sequencer.connected(this.nowMs));
  }

  private pass(ticks: number): void {
    for (let i = 0; i < ticks; i++) {
      // A replay that is not answered in time would lose the past for good.
      this.answerReplay();
      this.nowMs += TICK_MS;
      this.take(this.sequencer.tick(this.nowMs));
      this.publisher.tick();
      const { key, sequence: publishedSequence } = this.publisher;
      this.bus.publishLoad(reportOf(key, { sequence: ++this.reports, publishedSequence }));
      this.indexer.tick();
    }
  }

  /** All are suspended for longer than any lease; then the indexer wakes first, or the agent. */
  private sleep(): void {
    this.answerReplay();
    this.nowMs += 2 * HORIZON_MS;
    if (this.random() < 0.5) this.indexer.tick();
    this.pass(1);
  }

  private answerReplay(): void {
    const { replay } = this;
    this.replay = null;
    if (replay === null || replay.life !== this.engine.life) return;
    for (const { sequence, payload } of this.engine.buffer.slice(replay.from)) {
      this.take(this.sequencer.replayed(sequence, payload, this.nowMs));
      // Another one was asked for, whose socket is another.
      if (this.replay !== null) return;
    }
    this.take(this.sequencer.replayEnded(this.nowMs));
  }

  private take(steps: readonly Step[]): void {
    for (const step of steps) {
      if (step.kind === "replay") this.replay = { from: step.from, life: this.engine.life };
      else if (step.kind === "reset") this.publisher.reset(step.reason);
      else this.publisher.apply(decodeBatch(step.payload));
    }
  }
}

/** Lets promises that are settled already run on. */
async function turns(): Promise<void> {
  for (let i = 0; i < 12; i++) await Promise.resolve();
}

/** Some tokens spell what others spell together, so that different blocks close the same key. */
function punningVocabulary(): Vocabulary {
  const spellings = Array.from({ length: TOKENS }, (_, id) =>
    "ab".repeat(4).slice(id % 2, (id % 2) + 1 + (id % 3)),
  );
  const offsets = [0];
  for (const text of spellings) offsets.push(offsets.at(-1)! + text.length);
  return new Vocabulary(new TextEncoder().encode(spellings.join("")), Uint32Array.from(offsets));
}

describe("whatever is lost on the way, the view equals the table when all is quiet", () => {
  const schemes: [string, () => Scheme][] = [
    ["tokens", () => tokensScheme(hasher, 2)],
    ["bytes", () => bytesScheme(hasher, punningVocabulary(), 5)],
  ];
  test.each(schemes)("scheme %s", async (_, schemeOf) => {
    for (let seed = 1; seed <= 25; seed++) {
      const site = new Site(seeded(seed), schemeOf());
      for (let round = 0; round < 4; round++) {
        for (let i = 0; i < 40; i++) await site.step();
        await site.settle();
        expect([seed, round, site.differences(), site.errors]).toEqual([seed, round, [], []]);
        site.resume();
      }
    }
  });
});
