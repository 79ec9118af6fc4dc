/** The engine behind the HTTP surface: ranks with their caches and event sockets, adapters, lives. */

import { randomBytes, randomUUID } from "node:crypto";
import { BlockManager, type BlockTableRow, type ChainFacts } from "./block-manager.ts";
import type { MockConfig } from "./config.ts";
import { KvPublisher, rankEndpoint } from "./kv-publisher.ts";
import { MisbehaviourSwitch } from "./misbehaviour.ts";
import { modelPath, wordIds } from "./model.ts";
import { Scheduler } from "./scheduler.ts";
import type { Sequence, SequenceRequest } from "./sequence.ts";
import { TextModel } from "./text.ts";
import { DEFAULT_TRANSFER, PROFILES } from "./timing.ts";
import { loadTokenizer, type Tokenizer } from "./tokenizer.ts";

export interface Adapter {
  readonly id: number;
  readonly name: string;
  readonly path: string;
}

interface Rank {
  readonly blocks: BlockManager;
  readonly scheduler: Scheduler;
  readonly publisher: KvPublisher | null;
}

/** One process life; a restart begins another. */
export interface Life {
  readonly startedUnixSeconds: number;
  /** Ends `system_fingerprint`. */
  readonly fingerprint: string;
  /** NIXL-style engine id. */
  readonly engineId: string;
}

/** A sequence handed to the engine; it reaches the scheduler after the front-end's overhead. */
export interface Submission {
  /** Null until the scheduler has it. */
  readonly sequence: Sequence | null;
  abort(): void;
}

export interface RankStats {
  readonly running: number;
  readonly waiting: number;
  readonly deferred: number;
  readonly usage: number;
  readonly cachedBlocks: number;
  readonly preemptions: number;
  readonly prefixQueries: number;
  readonly prefixHits: number;
  readonly generationTokens: number;
  readonly requestsFinished: number;
  /** Real ms by which simulated time was lost; above 0 the machine was too slow for this speed. */
  readonly lostMs: number;
  /** Number of the next event batch. */
  readonly nextSeq: bigint | null;
}

export class Engine {
  readonly config: MockConfig;
  readonly tokenizer: Tokenizer;
  readonly text: TextModel;
  readonly misbehaviour: MisbehaviourSwitch;
  readonly adapters = new Map<string, Adapter>();
  admissionRejections = 0;
  /** HTTP requests under way that make the engine work. */
  load = 0;
  #ranks: Rank[] = [];
  #life: Life;
  #nextAdapterId = 1;
  #nextRank = 0;
  #halted = false;

  private constructor(config: MockConfig) {
    this.config = config;
    this.tokenizer = loadTokenizer(modelPath("tokenizer.json"));
    this.text = new TextModel(this.tokenizer, wordIds(), config.meanOutputTokens);
    this.misbehaviour = new MisbehaviourSwitch(config.misbehaviour);
    this.#life = newLife(config);
    for (const { name, path } of config.loraModules) this.loadAdapter(name, path);
  }

  static async start(config: MockConfig): Promise<Engine> {
    const engine = new Engine(config);
    engine.#ranks = await engine.#openRanks(null);
    return engine;
  }

  async #openRanks(previous: readonly Rank[] | null): Promise<Rank[]> {
    const ranks: Rank[] = [];
    for (let rank = 0; rank < this.config.dataParallelSize; rank++) {
      ranks.push(await this.#openRank(rank, previous?.[rank]?.publisher ?? null));
    }
    return ranks;
  }

  /** A new life keeps the addresses of the one before. */
  async #openRank(rank: number, previous: KvPublisher | null): Promise<Rank> {
    const { config } = this;
    const { clock, blockSize, kvEvents } = config;
    const blocks = new BlockManager({ blocks: config.numGpuBlocks, blockSize, hashSeed: config.hashSeed });
    const enabled = kvEvents?.enable_kv_cache_events === true && kvEvents.publisher !== "null";
    const publisher = enabled
      ? await KvPublisher.open({
          endpoint: previous?.endpoint ?? rankEndpoint(kvEvents.endpoint, rank),
          bindsLike: kvEvents.endpoint,
          replayEndpoint:
            previous?.replayEndpoint ??
            (kvEvents.replay_endpoint === null ? null : rankEndpoint(kvEvents.replay_endpoint, rank)),
          topic: kvEvents.topic,
          bufferSteps: kvEvents.buffer_steps,
          highWaterMark: kvEvents.hwm,
          rank,
          blockSize,
          host: config.host,
          misbehaviour: this.misbehaviour,
          unixSeconds: () => clock.unixSeconds(),
        })
      : null;
    const scheduler = new Scheduler({
      blocks,
      clock,
      profile: PROFILES[config.profile],
      transfer: DEFAULT_TRANSFER,
      speed: config.speed,
      maxBatchedTokens: config.maxNumBatchedTokens,
      maxSequences: config.maxNumSeqs,
      policy: config.schedulingPolicy,
      onEvents: (events) => publisher?.publish(events),
    });
    return { blocks, scheduler, publisher };
  }

  get life(): Life {
    return this.#life;
  }

  /** No new requests: the engine is going down. */
  get halted(): boolean {
    return this.#halted;
  }

  get rankCount(): number {
    return this.#ranks.length;
  }

  scheduler(rank: number): Scheduler {
    return this.#ranks[rank]!.scheduler;
  }

  publisher(rank: number): KvPublisher | null {
    return this.#ranks[rank]?.publisher ?? null;
  }

  usage(rank: number): number {
    return this.#ranks[rank]!.blocks.usage;
  }

  /** The least loaded rank (running + 4·waiting), in turn where several are: vLLM's own balancing, blind to prefixes. */
  pickRank(): number {
    let best = 0;
    let bestLoad = Number.POSITIVE_INFINITY;
    for (let i = 0; i < this.#ranks.length; i++) {
      const rank = (this.#nextRank + i) % this.#ranks.length;
      const { running, waiting, deferred } = this.#ranks[rank]!.scheduler;
      const load = running + 4 * (waiting + deferred);
      if (load < bestLoad) {
        best = rank;
        bestLoad = load;
      }
    }
    this.#nextRank = (best + 1) % this.#ranks.length;
    return best;
  }

  /** As many requests are under way as `--max-num-queued-reqs` allows; running ones count (recorded in admission-503). */
  queueFull(): boolean {
    const { maxNumQueuedReqs } = this.config;
    if (maxNumQueuedReqs === null) return false;
    return this.load >= maxNumQueuedReqs;
  }

  submit(rank: number, request: SequenceRequest, facts: ChainFacts): Submission {
    const { clock, requestOverheadMs, speed } = this.config;
    const { scheduler } = this.#ranks[rank]!;
    const submission: { sequence: Sequence | null; abort(): void } = {
      sequence: null,
      abort() {
        cancel?.();
        if (this.sequence !== null) scheduler.abort(this.sequence);
      },
    };
    const enter = (): void => {
      submission.sequence = scheduler.submit(request, facts);
    };
    let cancel: (() => void) | null = null;
    if (requestOverheadMs === 0) enter();
    else cancel = clock.at(clock.nowMs() + requestOverheadMs / speed, enter);
    return submission;
  }

  loadAdapter(name: string, path: string): void {
    this.adapters.set(name, { id: this.#nextAdapterId++, name, path });
  }

  unloadAdapter(name: string): boolean {
    return this.adapters.delete(name);
  }

  /** Clears every rank's cache; false if a block anywhere is in use. */
  resetPrefixCache(): boolean {
    return this.#ranks.map(({ blocks }) => blocks.reset()).every(Boolean);
  }

  blockTable(rank: number): BlockTableRow[] {
    return this.#ranks[rank]!.blocks.table();
  }

  stats(): RankStats[] {
    return this.#ranks.map(({ blocks, scheduler, publisher }) => ({
      running: scheduler.running,
      waiting: scheduler.waiting,
      deferred: scheduler.deferred,
      usage: blocks.usage,
      cachedBlocks: blocks.cachedBlocks,
      preemptions: scheduler.metrics.preemptions,
      prefixQueries: scheduler.metrics.prefixQueries,
      prefixHits: scheduler.metrics.prefixHits,
      generationTokens: scheduler.metrics.generationTokens,
      requestsFinished: Object.values(scheduler.metrics.success).reduce((sum, one) => sum + one, 0),
      lostMs: scheduler.lostMs,
      nextSeq: publisher?.nextSeq ?? null,
    }));
  }

  /** Takes no more work; what runs goes on. */
  halt(): void {
    this.#halted = true;
  }

  /** Stops all work without a word to anyone. */
  stop(): void {
    for (const { scheduler } of this.#ranks) scheduler.stop();
  }

  /** A new process life: empty caches, counters and batch numbers from 0, new ids, the same addresses. */
  async restart(): Promise<void> {
    this.stop();
    const previous = this.#ranks;
    for (const { publisher } of previous) publisher?.close();
    this.#ranks = await this.#openRanks(previous);
    this.#life = newLife(this.config);
    this.admissionRejections = 0;
    this.#nextRank = 0;
  }

  close(): void {
    this.#halted = true;
    this.stop();
    for (const { publisher } of this.#ranks) publisher?.close();
  }
}

function newLife(config: MockConfig): Life {
  return {
    startedUnixSeconds: config.clock.unixSeconds(),
    fingerprint: `vllm-${VLLM_VERSION}-${randomBytes(4).toString("hex")}`,
    engineId: config.kvTransfer?.engine_id ?? randomUUID(),
  };
}

/** The release whose protocols the mock speaks. */
export const VLLM_VERSION = "0.32.0";
