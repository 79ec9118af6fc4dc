/** One rank's KV blocks: hash chain, prefix reuse, reference counts, LRU eviction, and the events that tell of them. */

import { type BlockDigest, blockDigest, eventHash, noneDigest, type TaggedKey } from "./block-hash.ts";

/** A KV event before it is put on the wire. Digests are whole; the wire form is the publisher's business. */
export type KvEvent =
  | {
      readonly type: "stored";
      readonly digests: readonly BlockDigest[];
      readonly parent: BlockDigest | null;
      readonly tokenIds: readonly number[];
      readonly loraId: number | null;
      readonly loraName: string | null;
      /** Untagged, per block, as events carry them. */
      readonly extraKeys: readonly (readonly string[] | null)[];
      readonly sessionId: string | null;
    }
  | { readonly type: "removed"; readonly digests: readonly BlockDigest[] }
  | { readonly type: "cleared" };

/** What of a request decides its block hashes and event fields. */
export interface ChainFacts {
  readonly lora: { readonly id: number; readonly name: string; readonly path: string } | null;
  readonly salt: string | null;
  readonly sessionId: string | null;
}

/** A request's hold on blocks. The manager owns every field. */
export interface BlockHold {
  readonly facts: ChainFacts;
  /** Physical block ids, in token order. */
  readonly blocks: number[];
  /** Digests of the full blocks that `tokens` has so far. */
  readonly digests: BlockDigest[];
  /** How many leading blocks are registered for reuse. */
  registered: number;
}

/** One cached hash of the block table, for tests that compare an index with the truth. */
export interface BlockTableRow {
  /** Unsigned 64-bit, as in events. */
  readonly hash: bigint;
  readonly parent: bigint | null;
  readonly tokenIds: readonly number[];
  readonly extraKeys: readonly string[] | null;
  readonly loraName: string | null;
  /** Physical copies. */
  readonly copies: number;
}

interface CachedBlock {
  readonly digest: BlockDigest;
  readonly parent: BlockDigest | null;
  readonly tokenIds: readonly number[];
  readonly extraKeys: readonly string[] | null;
  readonly loraName: string | null;
}

const NONE = -1;

export class BlockManager {
  readonly blockSize: number;
  /** Blocks that can hold tokens: all but the null block. */
  readonly usable: number;
  readonly #root: BlockDigest;
  readonly #references: Int32Array;
  readonly #cached: (CachedBlock | null)[];
  /** Digest → copies, oldest first: look-ups take the oldest. */
  readonly #byDigest = new Map<BlockDigest, number[]>();
  /** Free list, next to be taken first; the last slot marks its end and thus its beginning. */
  readonly #next: Int32Array;
  readonly #previous: Int32Array;
  readonly #events: KvEvent[] = [];
  #free: number;
  #cachedCopies = 0;

  /** `blocks` counts the null block too, as vLLM's `num_gpu_blocks` does. */
  constructor(options: {
    readonly blocks: number;
    readonly blockSize: number;
    readonly hashSeed: string | null;
  }) {
    const { blocks, blockSize } = options;
    this.blockSize = blockSize;
    this.usable = blocks - 1;
    this.#root = noneDigest(options.hashSeed);
    this.#references = new Int32Array(blocks);
    this.#cached = new Array<CachedBlock | null>(blocks).fill(null);
    this.#next = new Int32Array(blocks + 1).fill(NONE);
    this.#previous = new Int32Array(blocks + 1).fill(NONE);
    this.#next[blocks] = blocks;
    this.#previous[blocks] = blocks;
    this.#free = 0;
    for (let id = 1; id < blocks; id++) this.#insertFree(id, blocks);
  }

  /** Blocks that can be reused, copies counted. */
  get cachedBlocks(): number {
    return this.#cachedCopies;
  }

  get freeBlocks(): number {
    return this.#free;
  }

  /** Share of blocks in use by requests; cached but unreferenced ones count as free. */
  get usage(): number {
    return this.usable === 0 ? 0 : 1 - this.#free / this.usable;
  }

  hold(facts: ChainFacts): BlockHold {
    return { facts, blocks: [], digests: [], registered: 0 };
  }

  /** Leading blocks of `tokens` that are cached; at least one token is left to compute. Takes nothing. */
  lookup(hold: BlockHold, tokens: ArrayLike<number>): number {
    this.#digestUpTo(hold, tokens, tokens.length);
    const limit = Math.floor((tokens.length - 1) / this.blockSize);
    let count = 0;
    while (count < limit && this.#byDigest.has(hold.digests[count]!)) count++;
    return count;
  }

  /** Blocks that must be free for a new request of `tokens` tokens that reuses `reused` cached blocks. */
  needed(hold: BlockHold, tokens: number, reused: number): number {
    let needed = Math.ceil(tokens / this.blockSize) - reused;
    for (let i = 0; i < reused; i++) {
      if (this.#references[this.#byDigest.get(hold.digests[i]!)![0]!] === 0) needed++;
    }
    return needed;
  }

  /** Takes the first `count` cached blocks that `lookup` found. */
  reuse(hold: BlockHold, count: number): void {
    for (let i = 0; i < count; i++) {
      const id = this.#byDigest.get(hold.digests[i]!)![0]!;
      if (this.#references[id] === 0) this.#unlink(id);
      this.#references[id]!++;
      hold.blocks.push(id);
    }
    hold.registered = count;
  }

  /** Grows the hold to `tokens` tokens, evicting what is needed. False, and nothing taken, if too few blocks are free. */
  allocate(hold: BlockHold, tokens: number): boolean {
    const wanted = Math.ceil(tokens / this.blockSize) - hold.blocks.length;
    if (wanted > this.#free) return false;
    for (let i = 0; i < wanted; i++) hold.blocks.push(this.#takeFree());
    return true;
  }

  /** Makes the full blocks among the first `computed` tokens reusable and announces them. */
  register(hold: BlockHold, tokens: ArrayLike<number>, computed: number): void {
    const full = Math.floor(computed / this.blockSize);
    if (full <= hold.registered) return;
    this.#digestUpTo(hold, tokens, computed);
    for (let i = hold.registered; i < full; i++) this.#cache(hold, tokens, i);
    this.#announce(hold, tokens, hold.registered, full);
    hold.registered = full;
  }

  /** Announces the first `count` blocks again (`kv_cache_report_mode: full`). */
  announceAgain(hold: BlockHold, tokens: ArrayLike<number>, count: number): void {
    if (count > 0) this.#announce(hold, tokens, 0, count);
  }

  /** Gives the blocks back, last first, so that a chain's tail is evicted before its head; uncached ones are taken first. */
  release(hold: BlockHold): void {
    for (let i = hold.blocks.length - 1; i >= 0; i--) {
      const id = hold.blocks[i]!;
      if (--this.#references[id]! > 0) continue;
      if (this.#cached[id] === null) this.#insertFree(id, this.#next[this.#next.length - 1]!);
      else this.#insertFree(id, this.#next.length - 1);
    }
    hold.blocks.length = 0;
    hold.registered = 0;
  }

  /** Forgets every cached block. False if any is in use. The event waits for the next batch. */
  reset(): boolean {
    if (this.#free < this.usable) return false;
    this.#cached.fill(null);
    this.#byDigest.clear();
    this.#cachedCopies = 0;
    this.#events.push({ type: "cleared" });
    return true;
  }

  /** Events since the last call, in order. */
  takeEvents(): KvEvent[] {
    return this.#events.splice(0);
  }

  table(): BlockTableRow[] {
    const rows: BlockTableRow[] = [];
    for (const [digest, copies] of this.#byDigest) {
      const { parent, tokenIds, extraKeys, loraName } = this.#cached[copies[0]!]!;
      const parentHash = parent === null ? null : eventHash(parent);
      rows.push({
        hash: eventHash(digest),
        parent: parentHash,
        tokenIds,
        extraKeys,
        loraName,
        copies: copies.length,
      });
    }
    return rows;
  }

  #digestUpTo(hold: BlockHold, tokens: ArrayLike<number>, length: number): void {
    const { digests, facts } = hold;
    for (let i = digests.length; (i + 1) * this.blockSize <= length; i++) {
      const parent = digests[i - 1] ?? this.#root;
      digests.push(
        blockDigest(parent, tokens, i * this.blockSize, (i + 1) * this.blockSize, tagged(facts, i)),
      );
    }
  }

  #cache(hold: BlockHold, tokens: ArrayLike<number>, index: number): void {
    const digest = hold.digests[index]!;
    const id = hold.blocks[index]!;
    this.#cached[id] = {
      digest,
      parent: hold.digests[index - 1] ?? null,
      tokenIds: slice(tokens, index * this.blockSize, (index + 1) * this.blockSize),
      extraKeys: untagged(hold.facts, index),
      loraName: hold.facts.lora?.name ?? null,
    };
    this.#cachedCopies++;
    const copies = this.#byDigest.get(digest);
    if (copies === undefined) this.#byDigest.set(digest, [id]);
    else copies.push(id);
  }

  #announce(hold: BlockHold, tokens: ArrayLike<number>, from: number, to: number): void {
    const { facts } = hold;
    this.#events.push({
      type: "stored",
      digests: hold.digests.slice(from, to),
      parent: hold.digests[from - 1] ?? null,
      tokenIds: slice(tokens, from * this.blockSize, to * this.blockSize),
      loraId: facts.lora?.id ?? null,
      loraName: facts.lora?.name ?? null,
      extraKeys: Array.from({ length: to - from }, (_, i) => untagged(facts, from + i)),
      sessionId: facts.sessionId,
    });
  }

  #takeFree(): number {
    const id = this.#next[this.#next.length - 1]!;
    this.#unlink(id);
    const cached = this.#cached[id];
    if (cached !== null && cached !== undefined) {
      const copies = this.#byDigest.get(cached.digest)!;
      if (copies.length === 1) this.#byDigest.delete(cached.digest);
      else copies.splice(copies.indexOf(id), 1);
      this.#cached[id] = null;
      this.#cachedCopies--;
      this.#events.push({ type: "removed", digests: [cached.digest] });
    }
    this.#references[id] = 1;
    return id;
  }

  /** Puts a block into the free list before another one; before the end marker means last. */
  #insertFree(id: number, before: number): void {
    const previous = this.#previous[before]!;
    this.#next[previous] = id;
    this.#previous[id] = previous;
    this.#next[id] = before;
    this.#previous[before] = id;
    this.#free++;
  }

  #unlink(id: number): void {
    const previous = this.#previous[id]!;
    const next = this.#next[id]!;
    this.#next[previous] = next;
    this.#previous[next] = previous;
    this.#free--;
  }
}

/** Extra keys as hashed: the adapter in every block, the salt in the first; later blocks inherit it through the chain. */
function tagged(facts: ChainFacts, index: number): TaggedKey[] {
  const keys: TaggedKey[] = [];
  if (facts.lora !== null) keys.push(["lora", facts.lora.name, facts.lora.path]);
  if (facts.salt !== null && index === 0) keys.push(["cache_salt", facts.salt]);
  return keys;
}

/** Extra keys as events carry them. */
function untagged(facts: ChainFacts, index: number): readonly string[] | null {
  const keys: string[] = [];
  if (facts.lora !== null) keys.push(facts.lora.name);
  if (facts.salt !== null && index === 0) keys.push(facts.salt);
  return keys.length > 0 ? keys : null;
}

function slice(tokens: ArrayLike<number>, from: number, to: number): number[] {
  const out = new Array<number>(to - from);
  for (let i = from; i < to; i++) out[i - from] = tokens[i]!;
  return out;
}
