/** The mirror against a naive model: whatever the engine does, what is published is prefix-closed and the strict answer. */

import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { TIERS, type Tier } from "../../src/fleet/types.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import type { ChainKeyer, ChainState } from "../../src/prefix/keyer.ts";
import { createTokensKeyer } from "../../src/prefix/token-scheme.ts";
import type { KvOp, StoreOp } from "../../src/store/types.ts";
import type { BlockRemoved, BlockStored } from "../engines/events.ts";
import { Mirror, type MirrorOptions } from "./mirror.ts";

const BLOCK = 4;
const UNIT = 2;
const MODEL = "m";
const WINDOW_TOKENS = 9;
const WINDOW_BLOCKS = 2;

let keyer: ChainKeyer;
beforeAll(async () => {
  keyer = createTokensKeyer(await createHasher(), UNIT);
});

function mirrorWith(options: Partial<MirrorOptions> = {}): Mirror {
  return new Mirror({ keyer, model: MODEL, blockSize: BLOCK, now: () => 0, ...options });
}

function stored(
  hashes: bigint[],
  parent: bigint | null,
  tokenIds: number[],
  more: Partial<BlockStored> = {},
): BlockStored {
  return {
    type: "stored",
    hashes,
    parent,
    tokenIds,
    blockSize: BLOCK,
    loraName: null,
    tier: "device",
    extraKeys: null,
    group: 0,
    specKind: "full_attention",
    slidingWindow: null,
    ...more,
  };
}

function removed(hashes: bigint[], tier: Tier = "device", group = 0): BlockRemoved {
  return { type: "removed", hashes, tier, group };
}

/** What a view makes of the operations; throws if one breaks prefix-closedness. */
class NaiveView {
  readonly tiers = new Map<Tier, Map<bigint, { parent: bigint | null; tokens: number }>>(
    TIERS.map((tier) => [tier, new Map()]),
  );

  apply(ops: readonly KvOp[]): void {
    for (const op of ops) {
      const held = this.tiers.get(op.tier)!;
      if (op.op === "remove") for (const key of op.keys) held.delete(key);
      else {
        let parent = op.parent;
        for (const [i, key] of op.keys.entries()) {
          held.set(key, { parent, tokens: op.tokens[i]! });
          parent = key;
        }
      }
      for (const [key, { parent }] of held) {
        if (parent !== null && !held.has(parent)) throw new Error(`${op.tier}: ${key} lost its parent`);
      }
    }
  }

  /** key → tokens, per tier, in a form that compares. */
  rows(): string[] {
    return TIERS.flatMap((tier) =>
      [...this.tiers.get(tier)!].map(([key, { tokens }]) => `${tier} ${key} ${tokens}`),
    ).sort();
  }
}

/** A forest of blocks: `parents[i]` < i or −1, and contents that siblings may share. */
interface Forest {
  readonly parents: readonly number[];
  readonly contents: readonly number[];
}

type Action =
  | {
      readonly kind: "store";
      readonly block: number;
      readonly length: number;
      readonly tier: number;
      readonly group: number;
    }
  | { readonly kind: "remove"; readonly block: number; readonly tier: number; readonly group: number };

const hashOf = (block: number): bigint => (BigInt(block + 1) * 0x9e3779b97f4a7c15n) & 0xffff_ffff_ffff_ffffn;
const tokensOf = (content: number): number[] => Array.from({ length: BLOCK }, (_, i) => content * 10 + i);

/** The engine's block table, and the strict answer straight from its definition. */
class NaiveModel {
  readonly forest: Forest;
  readonly hybrid: boolean;
  readonly copies: number[][];
  readonly states: ChainState[] = [];
  readonly keys: (readonly bigint[])[] = [];

  constructor(forest: Forest, hybrid: boolean) {
    this.forest = forest;
    this.hybrid = hybrid;
    this.copies = forest.parents.map(() => [0, 0, 0, 0, 0, 0]);
    for (const [i, parent] of forest.parents.entries()) {
      const before =
        parent < 0 ? keyer.start({ model: MODEL, adapter: null, salt: null }) : this.states[parent]!;
      const extension = keyer.extend(before, tokensOf(forest.contents[i]!));
      this.states.push(extension.state);
      this.keys.push(extension.keys);
    }
  }

  /** The blocks from `block` towards the root, at most `length`, root first. */
  path(block: number, length: number): number[] {
    const path: number[] = [];
    for (let at = block; at >= 0 && path.length < length; at = this.forest.parents[at]!) path.unshift(at);
    return path;
  }

  event(action: Action): BlockStored | BlockRemoved {
    const tier = TIERS[action.tier]!;
    const at = action.group * 3 + action.tier;
    if (action.kind === "remove") {
      const row = this.copies[action.block]!;
      if (row[at]! > 0) row[at]!--;
      return removed([hashOf(action.block)], tier, action.group);
    }
    const path = this.path(action.block, action.length);
    const parent = this.forest.parents[path[0]!]!;
    const again = parent < 0 && path.length > 1 && path.every((block) => this.copies[block]![at]! > 0);
    if (!again) for (const block of path) this.copies[block]![at]!++;
    const tokens = path.flatMap((block) => tokensOf(this.forest.contents[block]!));
    const group =
      action.group === 0 ? {} : { group: 1, specKind: "sliding_window", slidingWindow: WINDOW_TOKENS };
    return stored(path.map(hashOf), parent < 0 ? null : hashOf(parent), tokens, { tier, ...group });
  }

  #held(block: number, tier: number): boolean {
    return this.copies[block]![tier]! > 0;
  }

  #reaches(block: number, tier: number): boolean {
    if (block < 0) return true;
    const parent = this.forest.parents[block]!;
    if (tier > 0 && this.#reaches(block, tier - 1)) return true;
    return this.#held(block, tier) && this.#reaches(parent, tier);
  }

  #publishes(block: number, tier: number): boolean {
    if (!this.#reaches(block, tier)) return false;
    if (tier === 0) return true;
    const extends_ = this.#held(block, tier) && this.#reaches(this.forest.parents[block]!, tier);
    return (
      extends_ ||
      this.forest.parents.some((parent, child) => parent === block && this.#publishes(child, tier))
    );
  }

  #usable(block: number, tier: number): number {
    if (block < 0) return 0;
    const tail = this.path(block, WINDOW_BLOCKS);
    const inWindow = (at: number): boolean => this.copies[at]!.slice(3, 4 + tier).some((count) => count > 0);
    if (tail.every(inWindow)) return this.states[block]!.tokens;
    return this.#usable(this.forest.parents[block]!, tier);
  }

  rows(): string[] {
    const least = new Map<string, number>();
    for (const [block, keys] of this.keys.entries()) {
      for (let tier = 0; tier < 3; tier++) {
        if (!this.#publishes(block, tier)) continue;
        for (const [i, key] of keys.entries()) {
          const end = this.states[block]!.tokens;
          const inside = end - BLOCK + (i + 1) * UNIT;
          const usable = this.#usable(inside === end ? block : this.forest.parents[block]!, tier);
          const tokens = this.hybrid ? usable : inside;
          const name = `${TIERS[tier]} ${key}`;
          least.set(name, Math.min(tokens, least.get(name) ?? tokens));
        }
      }
    }
    return [...least].map(([name, tokens]) => `${name} ${tokens}`).sort();
  }
}

const BLOCKS = 14;
const forests: fc.Arbitrary<Forest> = fc.record({
  parents: fc.tuple(
    ...Array.from({ length: BLOCKS }, (_, i) => fc.integer({ min: Math.max(-1, i - 4), max: i - 1 })),
  ),
  contents: fc.array(fc.integer({ min: 0, max: 2 }), { minLength: BLOCKS, maxLength: BLOCKS }),
});

function histories(tiers: number, groups: number): fc.Arbitrary<Action[]> {
  const block = fc.integer({ min: 0, max: BLOCKS - 1 });
  const tier = fc.integer({ min: 0, max: tiers - 1 });
  const group = fc.integer({ min: 0, max: groups - 1 });
  const store = fc.record({
    kind: fc.constant("store" as const),
    block,
    length: fc.integer({ min: 1, max: 6 }),
    tier,
    group,
  });
  const remove = fc.record({ kind: fc.constant("remove" as const), block, tier, group });
  return fc.array(fc.oneof(store, remove), { maxLength: 60 });
}

function expectStrict(forest: Forest, actions: readonly Action[], batch: number, hybrid: boolean): void {
  const mirror = mirrorWith();
  const view = new NaiveView();
  const model = new NaiveModel(forest, hybrid);
  if (hybrid) {
    // Engines announce all their groups with the first request.
    mirror.apply([
      stored([], null, [], { group: 1, specKind: "sliding_window", slidingWindow: WINDOW_TOKENS }),
    ]);
  }
  for (let at = 0; at < actions.length; at += batch) {
    view.apply(mirror.apply(actions.slice(at, at + batch).map((action) => model.event(action))));
    expect(view.rows()).toEqual(model.rows());
  }
  const fresh = new NaiveView();
  fresh.apply(mirror.snapshot());
  expect(fresh.rows()).toEqual(view.rows());
  const again = new NaiveView();
  for (const portion of mirror.reassert(3)) again.apply(portion);
  expect(again.rows()).toEqual(view.rows());
  for (const [block, row] of model.copies.entries()) {
    const counted = mirror
      .heldBlocks()
      .filter(({ hash }) => hash === hashOf(block))
      .reduce((sum, { copies }) => sum + copies, 0);
    expect(counted).toBe(row.reduce((sum, copies) => sum + copies, 0));
  }
}

describe("random engine histories (store, duplicate, evict in any order, unknown parents)", () => {
  const runs = { numRuns: 300 };

  test("one tier, checked after every event", () => {
    fc.assert(
      fc.property(forests, histories(1, 1), (forest, actions) => expectStrict(forest, actions, 1, false)),
      runs,
    );
  });

  test("three tiers, in batches of three events", () => {
    fc.assert(
      fc.property(forests, histories(3, 1), (forest, actions) => expectStrict(forest, actions, 3, false)),
      runs,
    );
  });

  test("a sliding-window group beside full attention", () => {
    fc.assert(
      fc.property(forests, histories(1, 2), (forest, actions) => expectStrict(forest, actions, 2, true)),
      runs,
    );
  });

  test("a sliding-window group with tiers", () => {
    fc.assert(
      fc.property(forests, histories(3, 2), (forest, actions) => expectStrict(forest, actions, 4, true)),
      runs,
    );
  });

  test("after everything is evicted nothing is left", () => {
    fc.assert(
      fc.property(forests, histories(3, 1), (forest, actions) => {
        const mirror = mirrorWith();
        const model = new NaiveModel(forest, false);
        const view = new NaiveView();
        for (const action of actions) view.apply(mirror.apply([model.event(action)]));
        for (const { hash, tier, copies } of mirror.heldBlocks()) {
          for (let i = 0; i < copies; i++) view.apply(mirror.apply([removed([hash], tier)]));
        }
        expect([view.rows(), mirror.blockCount(), mirror.keyCount, mirror.orphanCount]).toEqual([
          [],
          0,
          0,
          0,
        ]);
      }),
      { numRuns: 100 },
    );
  });
});

const A = 1n;
const B = 2n;
const C = 3n;
const chainOf = (...contents: number[]): number[] => contents.flatMap(tokensOf);

describe("one case each", () => {
  test("a run along one chain is one operation", () => {
    const ops = mirrorWith().apply([stored([A, B], null, chainOf(1, 2)), stored([C], B, chainOf(3))]);
    expect(ops).toHaveLength(1);
    expect(ops[0]).toMatchObject({ op: "store", tier: "device", parent: null });
    expect([...(ops[0] as StoreOp).tokens]).toEqual([2, 4, 6, 8, 10, 12]);
  });

  test("a hole in the middle takes what is behind it out, and filling it brings that back", () => {
    const mirror = mirrorWith();
    mirror.apply([stored([A, B, C], null, chainOf(1, 2, 3))]);
    const [gone] = mirror.apply([removed([B])]);
    expect(gone!.keys).toHaveLength(4);
    const [back] = mirror.apply([stored([B], A, chainOf(2))]);
    expect(back!.keys).toHaveLength(4);
  });

  test("orphans attach when their parent appears, and not after their time", () => {
    let nowMs = 0;
    const mirror = mirrorWith({ now: () => nowMs, orphanTtlMs: 1_000 });
    expect(mirror.apply([stored([C], B, chainOf(3))])).toEqual([]);
    expect(mirror.apply([stored([A, B], null, chainOf(1, 2))])[0]!.keys).toHaveLength(6);

    mirror.apply([stored([11n], 10n, chainOf(5))]);
    nowMs = 1_001;
    expect(mirror.apply([stored([10n], null, chainOf(4))])[0]!.keys).toHaveLength(2);
    expect(mirror.counters.orphansDropped).toBe(1);
    expect(mirror.blockCount()).toBe(4);
  });

  test("orphans are bounded, the oldest go first", () => {
    const mirror = mirrorWith({ maxOrphans: 10 });
    for (let i = 0; i < 25; i++) mirror.apply([stored([BigInt(100 + i)], 99n, chainOf(i))]);
    expect([mirror.orphanCount, mirror.blockCount(), mirror.counters.orphansDropped]).toEqual([10, 10, 15]);
  });

  describe("a cached chain that is announced again: report mode full, or computed twice", () => {
    const twice = (capacityBlocks: number | null): Mirror => {
      const mirror = mirrorWith({ capacityBlocks });
      mirror.apply([stored([A, B], null, chainOf(1, 2))]);
      expect(mirror.apply([stored([A, B], null, chainOf(1, 2))])).toEqual([]);
      return mirror;
    };

    test("without a known capacity it is no second copy", () => {
      expect(twice(null).apply([removed([B])])).toHaveLength(1);
    });

    test("it is one while the device has room for it", () => {
      const mirror = twice(100);
      expect(mirror.apply([removed([B])])).toEqual([]);
      expect(mirror.apply([removed([B])])).toHaveLength(1);
    });

    test("nothing of it is kept when all copies are evicted, however often that happens", () => {
      const mirror = twice(100);
      for (let round = 0; round < 50; round++) {
        mirror.apply([removed([B, A]), removed([B, A])]);
        expect([mirror.blockCount(), mirror.keyCount, mirror.doubtedCount]).toEqual([0, 0, 0]);
        mirror.apply([stored([A, B], null, chainOf(1, 2)), stored([A, B], null, chainOf(1, 2))]);
        expect(mirror.doubtedCount).toBe(2);
      }
    });

    test("it never was one if there are more copies than blocks; copies beyond doubt stay", () => {
      const mirror = twice(7);
      mirror.apply([stored([B], A, chainOf(2)), stored([C], B, chainOf(3))]);
      expect(mirror.recounts).toBe(0);
      mirror.apply([stored([4n], C, chainOf(4))]);
      expect(mirror.recounts).toBe(1);
      expect(mirror.heldBlocks().map(({ copies }) => copies)).toEqual([1, 2, 1, 1]);
    });

    test("dropping the last doubtful copy takes the block out", () => {
      const mirror = twice(5);
      expect(mirror.apply([removed([B])])).toEqual([]);
      const ops = mirror.apply([stored([10n, 11n], null, chainOf(5, 6))]);
      expect(ops.map(({ op, keys }) => [op, keys.length])).toEqual([
        ["remove", 2],
        ["store", 4],
      ]);
    });
  });

  test("a recomputed last block is a second copy: the first eviction leaves it held", () => {
    const mirror = mirrorWith();
    mirror.apply([stored([A, B], null, chainOf(1, 2)), stored([B], A, chainOf(2))]);
    expect(mirror.apply([removed([B])])).toEqual([]);
    expect(mirror.apply([removed([B])])).toHaveLength(1);
  });

  test("more copies than the device has blocks were never real: each block keeps one", () => {
    const mirror = mirrorWith({ capacityBlocks: 4 });
    mirror.apply([stored([A, B], null, chainOf(1, 2))]);
    for (let i = 0; i < 2; i++) mirror.apply([stored([B], A, chainOf(2))]);
    expect(mirror.recounts).toBe(1);
    expect(mirror.apply([removed([B])])).toHaveLength(1);
  });

  test("an image ends the chain before its block, for what follows too", () => {
    const mirror = mirrorWith();
    const [op] = mirror.apply([
      stored([A, B, C], null, chainOf(1, 2, 3), { extraKeys: [["tenant"], [["f00d", 3]], null] }),
      stored([4n], C, chainOf(4)),
    ]);
    expect(op!.keys).toHaveLength(2);
    expect(mirror.counters.unkeyed).toBe(3);
    expect(mirror.apply([removed([4n, C, B, A])])[0]!.keys).toHaveLength(2);
    expect(mirror.blockCount()).toBe(0);
  });

  test.each<[string, readonly unknown[]]>([
    ["an untagged salt", ["s"]],
    ["a tagged salt", [["cache_salt", "s"]]],
    ["a map", [{ cache_salt: "s" }]],
    ["adapter and salt, untagged", ["ad", "s"]],
    [
      "adapter and salt, tagged",
      [
        ["lora", "ad", "/path"],
        ["cache_salt", "s"],
      ],
    ],
  ])("the chain's seed commits to adapter and salt: %s", (_, keys) => {
    const adapter = keys.length > 1 ? "ad" : null;
    const [op] = mirrorWith().apply([
      stored([A], null, chainOf(1), { extraKeys: [keys], loraName: adapter }),
    ]);
    const start = keyer.start({ model: MODEL, adapter, salt: "s" });
    expect(op!.keys[0]).toBe(keyer.extend(start, chainOf(1)).keys[0]);
    expect(op!.root).toBe(op!.keys[0]);
  });

  test("an offload tier that names only hashes extends what is known", () => {
    const mirror = mirrorWith();
    mirror.apply([stored([A, B], null, chainOf(1, 2))]);
    const bare = { tier: "host" as const, blockSize: 0 };
    const ops = mirror.apply([stored([A, B, 9n], null, [], bare), removed([B])]);
    expect(ops.map(({ op, tier, keys }) => [op, tier, keys.length])).toEqual([
      ["remove", "device", 2],
      ["store", "host", 4],
    ]);
    expect(mirror.counters.skipped.no_tokens).toBe(1);
  });

  test("token ids that span unnamed blocks are left out, partial entries too", () => {
    const mirror = mirrorWith();
    expect(mirror.apply([stored([A], null, chainOf(1, 2))])).toEqual([]);
    expect(mirror.apply([stored([B], null, [1, 2], { blockSize: 2 })])).toEqual([]);
    expect([mirror.counters.skipped.token_count, mirror.counters.skipped.block_size]).toEqual([1, 1]);
    expect(mirror.blockCount()).toBe(0);
  });

  test("one hash under two parents keeps its first place", () => {
    const mirror = mirrorWith();
    mirror.apply([stored([A, B], null, chainOf(1, 2)), stored([C], null, chainOf(3))]);
    expect(mirror.apply([stored([B], C, chainOf(2))])).toEqual([]);
    expect(mirror.counters.skipped.conflicting_parent).toBe(1);
  });

  test("a hybrid model whose window group holds nothing can resume nowhere", () => {
    const group = { group: 1, specKind: "sliding_window", slidingWindow: WINDOW_TOKENS };
    const [op] = mirrorWith().apply([stored([], null, chainOf(1), group), stored([A], null, chainOf(1))]);
    expect([...(op as StoreOp).tokens]).toEqual([0, 0]);
  });

  test("Mamba needs its last state only, an unknown kind everything", () => {
    const tokens = (specKind: string): number[] => {
      const [op] = mirrorWith().apply([
        stored([B], A, chainOf(2), { group: 1, specKind }),
        stored([A, B], null, chainOf(1, 2)),
      ]);
      return [...(op as StoreOp).tokens];
    };
    expect(tokens("mamba")).toEqual([0, 0, 0, 8]);
    expect(tokens("chunked_local_attention")).toEqual([0, 0, 0, 0]);
  });

  test("a block that does not fit the card's unit is refused with the fix", () => {
    expect(() => mirrorWith({ blockSize: 5 })).toThrowError(/--block-size set to a multiple of 2/);
  });

  test("more blocks than memory allows asks for a new incarnation", () => {
    const mirror = mirrorWith({ maxBlocks: 2 });
    mirror.apply([stored([A, B, C], null, chainOf(1, 2, 3), { tier: "host" })]);
    expect(mirror.overflowed).toBe(true);
  });

  test("a chain of 20,000 blocks is evicted from its root without a deep call stack", () => {
    const mirror = mirrorWith();
    const hashes = Array.from({ length: 20_000 }, (_, i) => BigInt(i + 1));
    mirror.apply([
      stored(
        hashes,
        null,
        hashes.flatMap(() => tokensOf(1)),
      ),
    ]);
    expect(mirror.apply([removed([1n])])[0]!.keys).toHaveLength(40_000);
    expect(mirror.snapshot()).toEqual([]);
  });
});
