/**
 * The strict answer, as plainly as it can be put: a rank holds a prompt as deep as an unbroken run of its own blocks
 * reaches from the root along their parents. Slow and simple on purpose; the measure for the real index.
 */

import { TIERS, type Tier } from "../../fleet/types.ts";
import { type BlockIndex, type Depths, type Place, placeName, type StoredBlock } from "./block-index.ts";

interface Entry {
  parent: bigint | null;
  tokens: string;
  readonly tiers: Set<Tier>;
  /** Its parents are known up to the root. */
  placed: boolean;
}

type Held = Map<bigint, Entry>;

/**
 * The rules, which are those of the agent's mirror without its counting of copies:
 * - a block is named by its hash and known while it is held or something placed hangs on it;
 * - a placed block stays where it is: an announcement that hangs it elsewhere counts up to that block only;
 * - a block whose parent is unknown waits for it; one whose parent is known but not held waits for its return;
 * - an announcement that names a block twice counts for nothing;
 * - nothing is credited to a rank that it did not announce itself.
 */
export class StrictIndex implements BlockIndex {
  readonly #blockSize: number;
  readonly #ranks = new Map<string, Held>();

  constructor(blockSize: number) {
    this.#blockSize = blockSize;
  }

  store(place: Place, tier: Tier, parent: bigint | null, blocks: readonly StoredBlock[]): void {
    if (new Set(blocks.map((block) => block.hash)).size < blocks.length) return;
    const held = this.#rank(place);
    let above = parent;
    for (const block of blocks) {
      if (!locate(held, above, block)) return;
      held.get(block.hash)!.tiers.add(tier);
      above = block.hash;
    }
  }

  remove(place: Place, tier: Tier, hashes: readonly bigint[]): void {
    const held = this.#rank(place);
    for (const hash of hashes) held.get(hash)?.tiers.delete(tier);
    forget(held);
  }

  clear(place: Place): void {
    this.#ranks.delete(placeName(place));
  }

  lookup(tokenIds: readonly number[]): ReadonlyMap<string, Depths> {
    const found = new Map<string, Depths>();
    for (const [name, held] of this.#ranks) {
      const device = this.#depth(held, tokenIds, ["device"]);
      const host = this.#depth(held, tokenIds, ["device", "host"]) - device;
      const disk = this.#depth(held, tokenIds, TIERS) - device - host;
      if (device + host + disk > 0) found.set(name, { device, host, disk });
    }
    return found;
  }

  blockCount(place: Place): number {
    return [...this.#rank(place).values()].filter((entry) => entry.tiers.size > 0).length;
  }

  /** Tiers are read in order: a run that has gone down a tier does not come up again. */
  #depth(held: Held, tokenIds: readonly number[], tiers: readonly Tier[]): number {
    let reached: { readonly hash: bigint | null; readonly tier: number }[] = [{ hash: null, tier: 0 }];
    for (let depth = 0; ; depth++) {
      const end = (depth + 1) * this.#blockSize;
      if (end > tokenIds.length) return depth;
      const wanted = tokenIds.slice(end - this.#blockSize, end).join();
      const next: typeof reached = [];
      for (const [hash, entry] of held) {
        if (!entry.placed || entry.tokens !== wanted) continue;
        const above = reached.find((one) => one.hash === entry.parent);
        if (above === undefined) continue;
        const tier = tiers.findIndex((one, index) => index >= above.tier && entry.tiers.has(one));
        if (tier >= 0) next.push({ hash, tier });
      }
      if (next.length === 0) return depth;
      reached = next;
    }
  }

  #rank(place: Place): Held {
    const name = placeName(place);
    let held = this.#ranks.get(name);
    if (held === undefined) {
      held = new Map();
      this.#ranks.set(name, held);
    }
    return held;
  }
}

/** False if the block is placed elsewhere. */
function locate(held: Held, parent: bigint | null, block: StoredBlock): boolean {
  const known = held.get(block.hash);
  if (known?.placed) return known.parent === parent;
  const placed = parent === null || held.get(parent)?.placed === true;
  if (known === undefined || placed) {
    const tiers = known?.tiers ?? new Set<Tier>();
    held.set(block.hash, { parent, tokens: block.tokenIds.join(), tiers, placed });
  }
  if (placed) placeWaiting(held);
  return true;
}

function placeWaiting(held: Held): void {
  for (let changed = true; changed; ) {
    changed = false;
    for (const entry of held.values()) {
      if (entry.placed || entry.parent === null || held.get(entry.parent)?.placed !== true) continue;
      entry.placed = true;
      changed = true;
    }
  }
}

function forget(held: Held): void {
  for (let changed = true; changed; ) {
    changed = false;
    const needed = new Set([...held.values()].filter((entry) => entry.placed).map((entry) => entry.parent));
    for (const [hash, entry] of held) {
      if (entry.tiers.size > 0 || (entry.placed && needed.has(hash))) continue;
      held.delete(hash);
      changed = true;
    }
  }
}
