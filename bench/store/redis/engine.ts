/** An engine's KV cache as its events show it: prompts of a few shared heads and own tails, a fixed number of blocks, the oldest tails go first. */

import type { BlockStored, EngineBatch, EngineEvent } from "../../../gpu-agent/engines/events.ts";

export const BLOCK_SIZE = 16;

const HEADS = 8;
const HEAD_BLOCKS = 128;
const TAIL_BLOCKS = { least: 16, most: 256 } as const;
/** Blocks that one step of prefill fills: 2,048 tokens. */
const STEP_BLOCKS = 128;
/** Blocks that the answer fills, one event each. */
const ANSWER_BLOCKS = 12;
const VOCABULARY = 32_000;

interface Chain {
  readonly hashes: readonly bigint[];
  readonly tokenIds: readonly number[];
}

export class CacheEvents {
  readonly #random: () => number;
  readonly #capacityBlocks: number;
  readonly #heads: readonly Chain[];
  readonly #headsHeld = new Set<Chain>();
  readonly #tails: (readonly bigint[])[] = [];
  #held = 0;
  #nextHash: bigint;

  /** `heads`: from {@link sharedHeads}; workers whose hashes begin far apart never share one by chance. */
  constructor(random: () => number, capacityBlocks: number, heads: readonly Chain[], firstHash: bigint) {
    this.#random = random;
    this.#capacityBlocks = capacityBlocks;
    this.#heads = heads;
    this.#nextHash = firstHash;
  }

  /** The engine's batches for one request, in order: removals that make room, prefill in steps, the answer block by block. */
  *request(): Generator<EngineBatch> {
    const head = this.#heads[Math.floor(this.#random() * this.#heads.length)]!;
    const { least, most } = TAIL_BLOCKS;
    const prompt = this.#chain(least + Math.floor(this.#random() * (most - least)) + ANSWER_BLOCKS);
    const isNewHead = !this.#headsHeld.has(head);
    const room = this.#makeRoom(prompt.hashes.length + (isNewHead ? HEAD_BLOCKS : 0));
    const steps: BlockStored[] = [];
    if (isNewHead) {
      this.#headsHeld.add(head);
      steps.push(...inSteps(head, null, 0, HEAD_BLOCKS));
    }
    const prefilled = prompt.hashes.length - ANSWER_BLOCKS;
    steps.push(...inSteps(prompt, head.hashes.at(-1)!, 0, prefilled));
    for (let i = prefilled; i < prompt.hashes.length; i++) steps.push(...inSteps(prompt, null, i, i + 1));
    this.#tails.push(prompt.hashes);
    for (const [i, step] of steps.entries()) yield batchOf(i === 0 ? [...room, step] : [step]);
  }

  #chain(blocks: number): Chain {
    const hashes = Array.from({ length: blocks }, () => this.#nextHash++);
    return { hashes, tokenIds: randomTokens(blocks, this.#random) };
  }

  #makeRoom(blocks: number): EngineEvent[] {
    const events: EngineEvent[] = [];
    this.#held += blocks;
    while (this.#held > this.#capacityBlocks && this.#tails.length > 0) {
      const hashes = this.#tails.shift()!;
      this.#held -= hashes.length;
      events.push({ type: "removed", hashes: hashes.toReversed(), tier: "device", group: 0 });
    }
    return events;
  }
}

/** The same for all workers, as system prompts are. */
export function sharedHeads(random: () => number): Chain[] {
  return Array.from({ length: HEADS }, (_, head) => ({
    hashes: Array.from({ length: HEAD_BLOCKS }, (_, i) => BigInt(1 + head * HEAD_BLOCKS + i)),
    tokenIds: randomTokens(HEAD_BLOCKS, random),
  }));
}

/** Blocks stored or removed, as a batch names them. */
export function blockEvents({ events }: EngineBatch): number {
  return events.reduce((sum, event) => sum + (event.type === "cleared" ? 0 : event.hashes.length), 0);
}

function* inSteps(chain: Chain, before: bigint | null, start: number, end: number): Generator<BlockStored> {
  for (let from = start; from < end; from += STEP_BLOCKS) {
    const to = Math.min(end, from + STEP_BLOCKS);
    yield {
      type: "stored",
      hashes: chain.hashes.slice(from, to),
      parent: from === 0 ? before : chain.hashes[from - 1]!,
      tokenIds: chain.tokenIds.slice(from * BLOCK_SIZE, to * BLOCK_SIZE),
      blockSize: BLOCK_SIZE,
      loraName: null,
      tier: "device",
      extraKeys: null,
      group: 0,
      specKind: null,
      slidingWindow: null,
    };
  }
}

function batchOf(events: readonly EngineEvent[]): EngineBatch {
  return { timestampSeconds: null, events, rank: null, skipped: [] };
}

function randomTokens(blocks: number, random: () => number): number[] {
  return Array.from({ length: blocks * BLOCK_SIZE }, () => Math.floor(random() * VOCABULARY));
}
