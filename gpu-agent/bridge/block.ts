/** The mirror's data: one engine block with its physical copies and place in the tree, and one prefix key with its holders. */

import type { Tier } from "../../src/fleet/types.ts";
import type { ChainState } from "../../src/prefix/keyer.ts";
import type { EngineHash } from "../engines/events.ts";

export const TIER_COUNT = 3;
/** Position of a tier in every per-tier array and bit mask. */
export const TIER_INDEX: Readonly<Record<Tier, number>> = { device: 0, host: 1, disk: 2 };
/** Bits of all tiers. */
export const ALL_TIERS = 0b111;

/** `unplaced`: known by a window group only; `orphan`: its parent is not known yet; `dead`: beyond content without keys. */
export type Status = "unplaced" | "orphan" | "chained" | "dead";

/** A block's content, as announced. */
export interface BlockFacts {
  readonly tokenIds: readonly number[];
  readonly extraKeys: readonly unknown[] | null;
  readonly adapter: string | null;
}

/** What an orphan keeps to be chained later. */
export interface OrphanFacts extends BlockFacts {
  readonly parentHash: EngineHash;
  readonly sinceMs: number;
}

/** One prefix key: published while a block that closes it is held, however many blocks do. */
export interface KeyEntry {
  readonly key: bigint;
  /** First key of the chain. */
  readonly root: bigint;
  /** Key before this one, null at the chain's start. */
  readonly parentKey: bigint | null;
  /** Position in the chain, 0 first. */
  readonly depth: number;
  /** Blocks that close this key: one, or several where different tokens give the same bytes. */
  readonly holders: Block[];
  /** Usable tokens as published, per tier; −1: not published. */
  readonly published: number[];
}

const NO_ENTRIES: readonly KeyEntry[] = [];
const NO_TOKENS: readonly number[] = [];

/** One engine hash. Its content is the same in every group and tier; copies are counted per (group, tier). */
export class Block {
  readonly hash: EngineHash;
  status: Status = "unplaced";
  parent: Block | null = null;
  /** The one child, or all of them: most blocks have one, and a set is several times a block's size. */
  #children: Block | Set<Block> | null = null;
  orphan: OrphanFacts | null = null;
  /** Salt of the chain, for the check of later blocks. */
  salt: string | null = null;

  /** Where the chain stands behind this block; null unless chained. */
  state: ChainState | null = null;
  /** Keys that this block closes. */
  entries: readonly KeyEntry[] = NO_ENTRIES;
  /** Per entry: tokens wholly inside. */
  keyTokens: readonly number[] = NO_TOKENS;

  /** Physical copies at [group index · 3 + tier]. */
  readonly copies: number[] = [0, 0, 0];
  totalCopies = 0;

  /** Bit per tier: everything up to this block can be read back with this tier's help. */
  reach = 0;
  /** Bit per lower tier: this block itself is read from it. */
  extends = 0;
  /** Bit per tier: a member of the tier's published set. */
  member = 0;
  /** Children that are members of the host and of the disk set. */
  hostChildren = 0;
  diskChildren = 0;
  /** Hybrid models: unbroken blocks of a window group that end here, at [window index · 3 + tier]. */
  runs: number[] | null = null;
  /** Hybrid models, per tier: tokens up to the deepest boundary at or above this block where the engine can resume. */
  usable: number[] | null = null;
  /** The same of the parent: what keys that close inside this block can vouch for. */
  usableBefore: number[] | null = null;

  queued = false;
  touched = false;

  constructor(hash: EngineHash) {
    this.hash = hash;
  }

  /** Tokens up to and including this block. */
  get endTokens(): number {
    return this.state?.tokens ?? 0;
  }

  addChild(child: Block): void {
    if (this.#children === null) this.#children = child;
    else if (this.#children instanceof Set) this.#children.add(child);
    else if (this.#children !== child) this.#children = new Set([this.#children, child]);
  }

  removeChild(child: Block): void {
    if (this.#children === child) this.#children = null;
    else if (this.#children instanceof Set) this.#children.delete(child);
  }

  eachChild(visit: (child: Block) => void): void {
    if (this.#children instanceof Set) for (const child of this.#children) visit(child);
    else if (this.#children !== null) visit(this.#children);
  }

  /** True if nothing needs this block any longer. */
  get idle(): boolean {
    return (
      this.totalCopies === 0 &&
      (this.#children instanceof Set ? this.#children.size === 0 : this.#children === null)
    );
  }
}
