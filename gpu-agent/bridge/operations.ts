/** From blocks whose state changed to the operations that bring the published view there: prefix-closed at every step, runs merged. */

import { TIERS } from "../../src/fleet/types.ts";
import type { KvOp, RemoveOp, StoreOp } from "../../src/store/types.ts";
import { type Block, type KeyEntry, TIER_COUNT } from "./block.ts";

/** Collects stores; consecutive keys of one chain become one operation. */
export class StoreWriter {
  readonly ops: StoreOp[] = [];
  #tier = 0;
  #root = 0n;
  #parent: bigint | null = null;
  #last: bigint | null = null;
  #keys: bigint[] = [];
  #tokens: number[] = [];

  add(tier: number, entry: KeyEntry, tokens: number): void {
    const continues =
      this.#keys.length > 0 &&
      entry.parentKey === this.#last &&
      tier === this.#tier &&
      entry.root === this.#root;
    if (!continues) {
      this.flush();
      this.#tier = tier;
      this.#root = entry.root;
      this.#parent = entry.parentKey;
    }
    this.#keys.push(entry.key);
    this.#tokens.push(tokens);
    this.#last = entry.key;
  }

  flush(): readonly StoreOp[] {
    if (this.#keys.length > 0) {
      this.ops.push({
        op: "store",
        tier: TIERS[this.#tier]!,
        root: this.#root,
        parent: this.#parent,
        keys: BigUint64Array.from(this.#keys),
        tokens: Uint32Array.from(this.#tokens),
      });
      this.#keys = [];
      this.#tokens = [];
    }
    return this.ops;
  }
}

/** Usable tokens at an entry of this block in this tier; −1 if the block is no member there. */
function tokensAt(block: Block, entry: KeyEntry, tier: number): number {
  if ((block.member & (1 << tier)) === 0) return -1;
  const tokens = block.keyTokens[block.entries.indexOf(entry)]!;
  if (block.usable === null) return tokens;
  return tokens === block.endTokens ? block.usable[tier]! : (block.usableBefore?.[tier] ?? 0);
}

/** What should be published: the least that a holder vouches for, since the view cannot tell which of them a prompt meets. */
function target(entry: KeyEntry, tier: number): number {
  if (entry.holders.length === 1) return tokensAt(entry.holders[0]!, entry, tier);
  let least = -1;
  for (const holder of entry.holders) {
    const tokens = tokensAt(holder, entry, tier);
    if (tokens >= 0 && (least < 0 || tokens < least)) least = tokens;
  }
  return least;
}

/** The difference between what is published and what should be; marks it as published. Removals come first, deepest first. */
export function publishChanges(touched: readonly Block[]): KvOp[] {
  const removes = removals(touched);
  const writer = new StoreWriter();
  const tiers = tiersOf(touched);
  for (let tier = 0; tier < TIER_COUNT; tier++) {
    if ((tiers & (1 << tier)) === 0) continue;
    const done = new Set<Block>();
    for (const block of touched) {
      if ((block.member & (1 << tier)) === 0) {
        // What it vouched for may be published by another holder still, with other tokens.
        storeChanges(block, tier, writer, true);
      } else if (!done.has(block)) {
        for (const next of unstoredPath(block, tier, done)) storeChanges(next, tier, writer, false);
      }
    }
  }
  return [...removes, ...writer.flush()];
}

/** Tiers in which anything may have to be stored. */
function tiersOf(touched: readonly Block[]): number {
  let tiers = 0;
  for (const block of touched) {
    tiers |= block.member;
    for (const { holders } of block.entries) {
      if (holders.length > 1) for (const holder of holders) tiers |= holder.member;
    }
  }
  return tiers;
}

function storeChanges(block: Block, tier: number, writer: StoreWriter, onlyPublished: boolean): void {
  for (const entry of block.entries) {
    if (onlyPublished && (entry.holders.length === 1 || entry.published[tier]! < 0)) continue;
    const tokens = target(entry, tier);
    if (tokens < 0 || tokens === entry.published[tier]) continue;
    entry.published[tier] = tokens;
    writer.add(tier, entry, tokens);
  }
}

/** The block and those of its ancestors that are not published yet, root first. */
function unstoredPath(block: Block, tier: number, done: Set<Block>): Block[] {
  const path: Block[] = [];
  for (let at: Block | null = block; at !== null && !done.has(at); at = at.parent) {
    if (at !== block && at.entries.length > 0 && isPublished(at, tier)) break;
    done.add(at);
    path.push(at);
  }
  return path.reverse();
}

/** All of its keys: another block may vouch for some of them. */
function isPublished({ entries }: Block, tier: number): boolean {
  return entries.every(({ published }) => published[tier]! >= 0);
}

function removals(touched: readonly Block[]): RemoveOp[] {
  const found = new Map<string, { tier: number; root: bigint; entries: KeyEntry[] }>();
  for (const block of touched) {
    for (const entry of block.entries) {
      for (let tier = 0; tier < TIER_COUNT; tier++) {
        if (entry.published[tier]! < 0 || target(entry, tier) >= 0) continue;
        entry.published[tier] = -1;
        const name = `${tier} ${entry.root}`;
        let of = found.get(name);
        if (of === undefined) {
          of = { tier, root: entry.root, entries: [] };
          found.set(name, of);
        }
        of.entries.push(entry);
      }
    }
  }
  return [...found.values()].map(({ tier, root, entries }) => ({
    op: "remove",
    tier: TIERS[tier]!,
    root,
    keys: BigUint64Array.from(
      entries.sort((a, b) => b.depth - a.depth),
      (entry) => entry.key,
    ),
  }));
}
