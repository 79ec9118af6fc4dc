/** Which blocks can be read back, tier by tier, and where a hybrid model can resume: kept up to date from the blocks that changed. */

import type { BlockStored } from "../engines/events.ts";
import { ALL_TIERS, type Block, TIER_COUNT } from "./block.ts";

/** Kinds of group that hold a whole chain; an engine that names no kinds has only such groups. */
const FULL_ATTENTION: ReadonlySet<string> = new Set([
  "full_attention",
  "mla_attention",
  "mla",
  "sink_full_attention",
]);

export function isFullAttention({ specKind }: BlockStored): boolean {
  return specKind === null || FULL_ATTENTION.has(specKind);
}

/**
 * Blocks of a group that must be held before a boundary: null for full attention, for a sliding window the blocks of its
 * tokens but one, for Mamba the last state, for an unknown kind everything down to the root.
 */
function windowOf(event: BlockStored): number | null {
  if (isFullAttention(event)) return null;
  const { specKind, slidingWindow, blockSize } = event;
  if (slidingWindow !== null && blockSize > 0) return Math.max(1, Math.ceil((slidingWindow - 1) / blockSize));
  return specKind === "mamba" ? 1 : Number.POSITIVE_INFINITY;
}

/** One KV-cache group of the engine. */
export interface Group {
  /** Position in per-group arrays. */
  readonly index: number;
  /** Consecutive blocks that must be held up to a boundary for the engine to resume there; null: full attention. */
  readonly window: number | null;
  /** Position among the window groups; −1 for full attention. */
  readonly windowIndex: number;
  /** False: its blocks do not line up with the full-attention ones, so no boundary can be trusted. */
  readonly aligned: boolean;
}

const DEVICE = 1;
const HOST = 2;
const DISK = 4;

/**
 * The rules, for a block n with parent p (the root counts as read back everywhere):
 * - device: n is on the device and p is in the device's reach;
 * - host: n is in the device's reach, or on the host with p in the host's reach; so lower tiers *extend* what lies above them, as engines read
 *   them and as Dynamo counts (device, host extension, disk extension);
 * - disk: likewise upon host.
 * A lower tier publishes n only if n, or something below n, is itself read from that tier: its set is prefix-closed, and an
 * engine without lower tiers pays nothing for them. The depth of a tier's slot beyond the tier above is its extension.
 *
 * Hybrid models (design D5): full-attention groups alone define the reach. A boundary is *usable* if every window group
 * holds the blocks before it that its window covers, or all of them down to the root.
 */
export class Closure {
  readonly #groups = new Map<number, Group>();
  #full: Group[] = [];
  #windows: Group[] = [];
  #queue: Block[] = [];
  #touched: Block[] = [];

  group(id: number): Group | undefined {
    return this.#groups.get(id);
  }

  /** Adds the event's group; what is chained already must be marked again. */
  learn(event: BlockStored, blockSize: number): Group {
    const window = windowOf(event);
    const windowIndex = window === null ? -1 : this.#windows.length;
    const group: Group = {
      index: this.#groups.size,
      window,
      windowIndex,
      aligned: event.blockSize === blockSize,
    };
    this.#groups.set(event.group, group);
    if (window === null) this.#full = [...this.#full, group];
    else this.#windows = [...this.#windows, group];
    return group;
  }

  /** To be called for every chained block whose copies, place or groups changed. */
  mark(block: Block): void {
    if (block.queued || block.status !== "chained") return;
    block.queued = true;
    this.#queue.push(block);
  }

  /** Brings all derived state up to date; answers the blocks whose published state may have changed, parents mostly first. */
  settle(): readonly Block[] {
    const queue = this.#queue;
    for (let i = 0; i < queue.length; i++) {
      const block = queue[i]!;
      block.queued = false;
      if (!this.#recompute(block)) continue;
      this.#touch(block);
      this.#updateMembership(block);
      block.eachChild((child) => this.mark(child));
    }
    this.#queue = [];
    const touched = this.#touched;
    this.#touched = [];
    for (const block of touched) block.touched = false;
    return touched;
  }

  #touch(block: Block): void {
    if (block.touched) return;
    block.touched = true;
    this.#touched.push(block);
  }

  /** True if anything that children or publication lean on changed. */
  #recompute(block: Block): boolean {
    const above = block.parent === null ? ALL_TIERS : block.parent.reach;
    let reach = this.#held(block, 0) ? above & DEVICE : 0;
    const onHost = (above & HOST) !== 0 && this.#held(block, 1);
    const onDisk = (above & DISK) !== 0 && this.#held(block, 2);
    if (reach !== 0 || onHost) reach |= HOST;
    if ((reach & HOST) !== 0 || onDisk) reach |= DISK;
    const extended = (onHost ? HOST : 0) | (onDisk ? DISK : 0);
    let changed = reach !== block.reach || extended !== block.extends;
    block.reach = reach;
    block.extends = extended;
    if (this.#windows.length > 0 && this.#recomputeUsable(block)) changed = true;
    return changed;
  }

  /** In every full-attention group. */
  #held(block: Block, tier: number): boolean {
    for (const group of this.#full)
      if (!((block.copies[group.index * TIER_COUNT + tier] ?? 0) > 0)) return false;
    return this.#full.length > 0;
  }

  #recomputeUsable(block: Block): boolean {
    const runs = block.runs ?? [];
    const usable = block.usable ?? [];
    const usableBefore = block.usableBefore ?? [];
    let changed = block.runs === null;
    for (let tier = 0; tier < TIER_COUNT; tier++) {
      let here = true;
      for (const group of this.#windows) {
        const need = group.window ?? 0;
        const at = group.windowIndex * TIER_COUNT + tier;
        const before = block.parent === null ? need : (block.parent.runs?.[at] ?? 0);
        const run = holdsUpTo(block, group, tier) ? Math.min(need, before + 1) : 0;
        if (run < need) here = false;
        if (runs[at] !== run) {
          runs[at] = run;
          changed = true;
        }
      }
      const before = block.parent?.usable?.[tier] ?? 0;
      const value = here ? block.endTokens : before;
      if (usable[tier] !== value || usableBefore[tier] !== before) {
        usable[tier] = value;
        usableBefore[tier] = before;
        changed = true;
      }
    }
    block.runs = runs;
    block.usable = usable;
    block.usableBefore = usableBefore;
    return changed;
  }

  /** A change of membership in a lower tier is felt by all ancestors that were, or now are, on a path to it. */
  #updateMembership(start: Block): void {
    for (let block: Block | null = start; block !== null; block = block.parent) {
      const host = (block.reach & HOST) !== 0 && ((block.extends & HOST) !== 0 || block.hostChildren > 0);
      const disk = (block.reach & DISK) !== 0 && ((block.extends & DISK) !== 0 || block.diskChildren > 0);
      const member = (block.reach & DEVICE) | (host ? HOST : 0) | (disk ? DISK : 0);
      const changed = member ^ block.member;
      if (changed === 0) return;
      block.member = member;
      this.#touch(block);
      if (block.parent === null || (changed & (HOST | DISK)) === 0) return;
      if ((changed & HOST) !== 0) block.parent.hostChildren += host ? 1 : -1;
      if ((changed & DISK) !== 0) block.parent.diskChildren += disk ? 1 : -1;
    }
  }
}

/** In this tier or one above it. */
function holdsUpTo(block: Block, group: Group, tier: number): boolean {
  if (!group.aligned) return false;
  for (let t = 0; t <= tier; t++) if ((block.copies[group.index * TIER_COUNT + t] ?? 0) > 0) return true;
  return false;
}
