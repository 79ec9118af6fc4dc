/** The agent's mirror of one rank's KV cache: engine blocks → prefix keys, copies, tree and orphans; out come clean operations (design D5). */

import { KedgeError } from "../../src/errors/index.ts";
import { TIERS, type Tier } from "../../src/fleet/types.ts";
import type { ChainKeyer, ChainState } from "../../src/prefix/keyer.ts";
import type { KvOp, StoreOp } from "../../src/store/types.ts";
import type { BlockRemoved, BlockStored, EngineHash } from "../engines/events.ts";
import { Block, type BlockFacts, type KeyEntry, TIER_COUNT, TIER_INDEX } from "./block.ts";
import { Closure, type Group } from "./closure.ts";
import { Copies } from "./copies.ts";
import { isPlain, readExtraKeys, saltOfFirstBlock } from "./extra-keys.ts";
import { publishChanges, StoreWriter } from "./operations.ts";
import { Orphans } from "./orphans.ts";

export interface MirrorOptions {
  readonly keyer: ChainKeyer;
  /** Canonical model id: seeds every chain. */
  readonly model: string;
  /** Tokens per engine block, as discovered. */
  readonly blockSize: number;
  /** KV blocks of the rank, the null block included; null: unknown. Bounds the count of copies. */
  readonly capacityBlocks?: number | null;
  /** Monotonic milliseconds, for the age of orphans. */
  readonly now: () => number;
  /** Orphans are dropped after this; default 10 minutes. */
  readonly orphanTtlMs?: number;
  /** Most orphans kept, oldest dropped first; default 65,536. */
  readonly maxOrphans?: number;
  /** Most blocks known; past it the mirror is `overflowed` and wants a new incarnation. Default 4 million. */
  readonly maxBlocks?: number;
}

/** Counts since the mirror began; for metrics. */
export interface MirrorCounters {
  /** Stored events left out, by reason. */
  readonly skipped: Record<
    "block_size" | "token_count" | "duplicate_hash" | "conflicting_parent" | "no_tokens",
    number
  >;
  /** Removals of blocks that are not known. */
  unknownRemovals: number;
  orphansDropped: number;
  /** Blocks announced again while held, in whole chains: copies in doubt (see {@link Copies}). */
  repeated: number;
  /** Blocks beyond content without keys (images, tokens outside the vocabulary). */
  unkeyed: number;
}

/** One row of the block table, for tests and inspection. */
export interface HeldBlock {
  readonly hash: EngineHash;
  readonly tier: Tier;
  readonly copies: number;
  readonly keys: readonly bigint[];
}

/**
 * After every {@link Mirror.apply} the operations given out so far add up to the strict answer: a key is published in a tier
 * exactly if the block that closes it, and all before it, can be read back (rules in {@link Closure}), with its usable
 * tokens. Memory is bounded by the blocks that the engine holds, orphans by number and age.
 */
export class Mirror {
  readonly counters: MirrorCounters = {
    skipped: { block_size: 0, token_count: 0, duplicate_hash: 0, conflicting_parent: 0, no_tokens: 0 },
    unknownRemovals: 0,
    orphansDropped: 0,
    repeated: 0,
    unkeyed: 0,
  };
  readonly #options: MirrorOptions;
  readonly #blocks = new Map<EngineHash, Block>();
  readonly #keys = new Map<bigint, KeyEntry>();
  /** Blocks without a parent, of all identities. */
  readonly #roots = new Set<Block>();
  readonly #orphans = new Orphans();
  readonly #closure = new Closure();
  #idle: Block[] = [];
  readonly #copies: Copies;

  /** Errors: `engine_mismatch` if blocks of this size cannot be cut into the scheme's units. */
  constructor(options: MirrorOptions) {
    const { keyer, blockSize } = options;
    if (keyer.scheme === "tokens" && blockSize % keyer.unitSize !== 0) {
      throw new KedgeError(
        "engine_mismatch",
        `The engine's block of ${blockSize} tokens is not a multiple of the model card's unit of ${keyer.unitSize}. ` +
          `Start the engine with --block-size set to a multiple of ${keyer.unitSize}, or make the card with a unit that divides ${blockSize}.`,
        { param: "unitSize" },
      );
    }
    this.#options = options;
    this.#copies = new Copies(options.capacityBlocks ?? null, (block) => {
      this.#closure.mark(block);
      this.#noteIdle(block);
    });
  }

  /** Keys known, published or not. */
  get keyCount(): number {
    return this.#keys.size;
  }

  /** Entries of all tiers together that a full walk would assert. */
  publishedCount(): number {
    let count = 0;
    for (const { published } of this.#keys.values()) for (const tokens of published) if (tokens >= 0) count++;
    return count;
  }

  /** Times that copies were dropped because there were more than the device has blocks. */
  get recounts(): number {
    return this.#copies.recounts;
  }

  /** Blocks some of whose copies may not be real. */
  get doubtedCount(): number {
    return this.#copies.doubted;
  }

  get orphanCount(): number {
    return this.#orphans.size;
  }

  /** More blocks than bounded memory allows: only a new incarnation helps (an engine that never announces removals). */
  get overflowed(): boolean {
    return this.#blocks.size > (this.#options.maxBlocks ?? 4_000_000);
  }

  /** Blocks with at least one copy. */
  blockCount(): number {
    let count = 0;
    for (const block of this.#blocks.values()) if (block.totalCopies > 0) count++;
    return count;
  }

  /** The mirror's own block table. */
  heldBlocks(): HeldBlock[] {
    const rows: HeldBlock[] = [];
    for (const block of this.#blocks.values()) {
      for (const tier of TIERS) {
        let copies = 0;
        for (let i = TIER_INDEX[tier]; i < block.copies.length; i += TIER_COUNT)
          copies += block.copies[i] ?? 0;
        if (copies > 0)
          rows.push({ hash: block.hash, tier, copies, keys: block.entries.map(({ key }) => key) });
      }
    }
    return rows;
  }

  /** Takes events in order and answers the operations that follow from all of them together. */
  apply(events: readonly (BlockStored | BlockRemoved)[]): KvOp[] {
    this.#dropOldOrphans();
    for (const event of events) {
      if (event.type === "stored") this.#stored(event);
      else this.#removed(event);
    }
    this.#copies.check(this.#blocks.values());
    this.#dropOldOrphans();
    const ops = publishChanges(this.#closure.settle());
    this.#forgetIdle();
    return ops;
  }

  /** All that is published, root to leaf. */
  snapshot(): readonly StoreOp[] {
    const writer = new StoreWriter();
    const order = [...this.#rootToLeaf()];
    for (let tier = 0; tier < TIER_COUNT; tier++)
      for (const block of order) writePublished(block, tier, writer);
    return writer.flush();
  }

  /**
   * All that is published, in portions of at least `budget` keys (a block is not cut), root to leaf in every tier. May be
   * drawn out over minutes: each portion says what is published when it is drawn. A block that comes meanwhile below one
   * that is not asserted yet is asserted in this walk too: otherwise a chain that grows with every walk would inherit
   * ever older leases.
   */
  *reassert(budget: number): Generator<readonly StoreOp[], void, void> {
    let writers = TIERS.map(() => new StoreWriter());
    let written = 0;
    for (const block of this.#rootToLeaf()) {
      for (const [tier, writer] of writers.entries()) written += writePublished(block, tier, writer);
      if (written < budget) continue;
      yield writers.flatMap((writer) => writer.flush());
      writers = TIERS.map(() => new StoreWriter());
      written = 0;
    }
    if (written > 0) yield writers.flatMap((writer) => writer.flush());
  }

  #stored(event: BlockStored): void {
    const group = this.#groupOf(event);
    if (event.hashes.length === 0) return;
    if (event.hashes.length > 1 && new Set(event.hashes).size < event.hashes.length) {
      this.counters.skipped.duplicate_hash++;
      return;
    }
    const at = indexOf(group, event.tier);
    const repeated = this.#isRepeated(event, at);
    if (repeated) this.counters.repeated += event.hashes.length;
    if (group.window !== null) {
      for (const hash of event.hashes) this.#copies.add(this.#block(hash), at, repeated);
    } else if (event.tokenIds.length === 0) {
      this.#storedWithoutTokens(event, at, repeated);
    } else {
      this.#storedWithTokens(event, at, repeated);
    }
  }

  /** Offload tiers announce hashes only; blocks that are known get their copy (engines.md §1.7). */
  #storedWithoutTokens(event: BlockStored, at: number, repeated: boolean): void {
    for (const hash of event.hashes) {
      const block = this.#blocks.get(hash);
      if (block === undefined) this.counters.skipped.no_tokens++;
      else this.#copies.add(block, at, repeated);
    }
  }

  #storedWithTokens(event: BlockStored, at: number, repeated: boolean): void {
    const { blockSize } = this.#options;
    const { hashes, tokenIds } = event;
    if (event.blockSize !== blockSize) {
      // Also the partial entries of hybrid models, which close no block.
      this.counters.skipped.block_size++;
      return;
    }
    if (tokenIds.length > hashes.length * blockSize) {
      // The tokens span blocks that are not named: which hash is which block cannot be known.
      this.counters.skipped.token_count++;
      return;
    }
    const whole = Math.floor(tokenIds.length / blockSize);
    if (whole < hashes.length) this.counters.skipped.token_count++;
    let parent = event.parent;
    for (let i = 0; i < whole; i++) {
      const block = this.#block(hashes[i]!);
      const facts = {
        tokenIds: tokenIds.slice(i * blockSize, (i + 1) * blockSize),
        extraKeys: event.extraKeys?.[i] ?? null,
        adapter: event.loraName,
      };
      if (!this.#locate(block, parent, facts)) {
        this.counters.skipped.conflicting_parent++;
        this.#noteIdle(block);
        return;
      }
      this.#copies.add(block, at, repeated);
      parent = block.hash;
    }
  }

  /** False if the block is known to hang elsewhere. */
  #locate(block: Block, parentHash: EngineHash | null, facts: BlockFacts): boolean {
    if (block.status === "chained" || block.status === "dead")
      return (block.parent?.hash ?? null) === parentHash;
    const parent = parentHash === null ? null : this.#blocks.get(parentHash);
    if (parent === null || parent?.status === "chained" || parent?.status === "dead") {
      this.#chain(block, parent, facts);
    } else if (block.status === "unplaced" && parentHash !== null) {
      this.#orphans.add(block, { ...facts, parentHash, sinceMs: this.#options.now() });
    }
    return true;
  }

  /** Gives the block its place and keys, then those that waited for it. */
  #chain(first: Block, firstParent: Block | null, firstFacts: BlockFacts): void {
    const work = [{ block: first, parent: firstParent, facts: firstFacts }];
    for (let next = work.pop(); next !== undefined; next = work.pop()) {
      const { block, parent, facts } = next;
      this.#orphans.drop(block);
      block.parent = parent;
      if (parent === null) this.#roots.add(block);
      else parent.addChild(block);
      const start = chainStart(this.#options, block, parent, facts);
      if (start === null || !this.#key(block, start, facts.tokenIds)) {
        block.status = "dead";
        this.counters.unkeyed++;
      }
      this.#closure.mark(block);
      for (const child of this.#orphans.of(block.hash))
        work.push({ block: child, parent: block, facts: child.orphan! });
    }
  }

  #key(block: Block, start: ChainState, tokenIds: readonly number[]): boolean {
    let extension: ReturnType<ChainKeyer["extend"]>;
    try {
      extension = this.#options.keyer.extend(start, tokenIds);
    } catch (thrown) {
      if (thrown instanceof KedgeError && thrown.code === "invalid_request") return false;
      throw thrown;
    }
    block.status = "chained";
    block.state = extension.state;
    block.keyTokens = extension.tokens.slice();
    let parentKey = start.depth === 0 ? null : start.key;
    const root = (parentKey === null ? undefined : this.#keys.get(parentKey)?.root) ?? extension.keys[0]!;
    block.entries = extension.keys.map((key, i) => {
      let entry = this.#keys.get(key);
      if (entry === undefined) {
        entry = {
          key,
          root,
          parentKey,
          depth: start.depth + i,
          holders: [block],
          published: [-1, -1, -1],
        };
        this.#keys.set(key, entry);
      } else entry.holders.push(block);
      parentKey = key;
      return entry;
    });
    return true;
  }

  #removed(event: BlockRemoved): void {
    const group = this.#closure.group(event.group);
    for (const hash of event.hashes) {
      const block = this.#blocks.get(hash);
      const known =
        block !== undefined && group !== undefined && this.#copies.remove(block, indexOf(group, event.tier));
      if (!known) this.counters.unknownRemovals++;
    }
  }

  /** A cached chain, announced once more from its root: either anew without a copy, or computed a second time. */
  #isRepeated(event: BlockStored, at: number): boolean {
    if (event.parent !== null || event.hashes.length < 2) return false;
    return event.hashes.every((hash) => (this.#blocks.get(hash)?.copies[at] ?? 0) > 0);
  }

  #groupOf(event: BlockStored): Group {
    const known = this.#closure.group(event.group);
    if (known !== undefined) return known;
    const group = this.#closure.learn(event, this.#options.blockSize);
    for (const block of this.#rootToLeaf()) this.#closure.mark(block);
    return group;
  }

  #block(hash: EngineHash): Block {
    let block = this.#blocks.get(hash);
    if (block === undefined) {
      block = new Block(hash);
      this.#blocks.set(hash, block);
    }
    return block;
  }

  /** Orphans past their time or number leave with their copies. */
  #dropOldOrphans(): void {
    if (this.#orphans.size === 0) return;
    const oldest = this.#options.now() - (this.#options.orphanTtlMs ?? 600_000);
    for (const block of this.#orphans.dropOld(oldest, this.#options.maxOrphans ?? 65_536)) {
      this.counters.orphansDropped++;
      this.#copies.drop(block);
      this.#blocks.delete(block.hash);
    }
  }

  #noteIdle(block: Block): void {
    if (block.idle) this.#idle.push(block);
  }

  /** A block without copies stays as long as something below it is held: if the hole is filled again, that comes back. */
  #forgetIdle(): void {
    for (let block = this.#idle.pop(); block !== undefined; block = this.#idle.pop()) {
      if (!block.idle || this.#blocks.get(block.hash) !== block) continue;
      this.#blocks.delete(block.hash);
      this.#orphans.drop(block);
      for (const entry of block.entries) {
        entry.holders.splice(entry.holders.indexOf(block), 1);
        if (entry.holders.length === 0) this.#keys.delete(entry.key);
      }
      this.#roots.delete(block);
      if (block.parent === null) continue;
      block.parent.removeChild(block);
      this.#noteIdle(block.parent);
    }
  }

  /**
   * Every chained block, parents before children, a chain's blocks one after the other where it does not fork. Children
   * are looked for when the next block is asked for.
   */
  *#rootToLeaf(): Generator<Block, void, void> {
    const stack: Block[] = [...this.#roots];
    for (let block = stack.pop(); block !== undefined; block = stack.pop()) {
      yield block;
      block.eachChild((child) => stack.push(child));
    }
  }
}

/** Position of a tier's copies in a group. */
function indexOf(group: Group, tier: Tier): number {
  return group.index * TIER_COUNT + TIER_INDEX[tier];
}

function writePublished(block: Block, tier: number, writer: StoreWriter): number {
  let written = 0;
  if ((block.member & (1 << tier)) === 0) return written;
  for (const entry of block.entries) {
    if (entry.published[tier]! < 0) continue;
    writer.add(tier, entry, entry.published[tier]!);
    written++;
  }
  return written;
}

/** Where the block's chain stands before it; null if no key can stand for it. Sets the block's salt. */
function chainStart(
  { keyer, model }: MirrorOptions,
  block: Block,
  parent: Block | null,
  { extraKeys, adapter }: BlockFacts,
): ChainState | null {
  const keys = readExtraKeys(extraKeys, adapter);
  if (parent === null) {
    const salt = saltOfFirstBlock(keys);
    if (salt === undefined) return null;
    block.salt = salt;
    return keyer.start({ model, adapter, salt });
  }
  block.salt = parent.salt;
  return isPlain(keys, parent.salt) ? parent.state : null;
}
