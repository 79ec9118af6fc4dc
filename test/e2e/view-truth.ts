/** Two accounts of who holds which prefix: the engines' own block tables, and what the view answers to look-ups. */

import { loadAgentModel } from "../../gpu-agent/agent.ts";
import { type BlockTableRow, MODEL_DIR, type MockEngine } from "../../gpu-agent/engines/mock/index.ts";
import type { EventBus } from "../../src/events/bus.ts";
import { bytesChain } from "../../src/prefix/bytes-scheme.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import { tokensChain } from "../../src/prefix/token-scheme.ts";
import type { PrefixSchemeName } from "../../src/prefix/types.ts";
import type { Vocabulary } from "../../src/prefix/vocabulary.ts";
import type { MemoryStore } from "../../src/store/memory/index.ts";

const MODEL = "mock";

/** Held keys by `worker/rank`. */
export type Holdings = ReadonlyMap<string, ReadonlySet<bigint>>;

/** Keys as a gateway computes them, from prompts: not with the agent's keyer. */
export class TableKeys {
  private readonly hasher: Hasher;
  private readonly vocabulary: Vocabulary | null;

  private constructor(hasher: Hasher, vocabulary: Vocabulary | null) {
    this.hasher = hasher;
    this.vocabulary = vocabulary;
  }

  static async load(scheme: PrefixSchemeName): Promise<TableKeys> {
    const { vocabulary } = await loadAgentModel({ path: MODEL_DIR, model: MODEL, scheme });
    return new TableKeys(await createHasher(), vocabulary);
  }

  /** Keys of every chain of the table that is unbroken from its root. */
  heldBy(table: readonly BlockTableRow[]): Set<bigint> {
    const held = new Set<bigint>();
    for (const chain of this.chainsOf(table)) for (const key of chain) held.add(key);
    return held;
  }

  /** One per row whose chain is unbroken from its root. */
  chainsOf(table: readonly BlockTableRow[]): BigUint64Array[] {
    const rows = new Map(table.map((row) => [row.hash, row]));
    return table.flatMap((row) => {
      const path = pathTo(row, rows);
      return path === null ? [] : [this.chainOf(path)];
    });
  }

  private chainOf(path: readonly BlockTableRow[]): BigUint64Array {
    const [first] = path;
    const adapter = first?.loraName ?? null;
    const salt = first?.extraKeys?.[adapter === null ? 0 : 1] ?? null;
    const identity = { model: MODEL, adapter, salt };
    const ids = path.flatMap(({ tokenIds }) => [...tokenIds]);
    if (this.vocabulary === null) return tokensChain(this.hasher, identity, ids).keys;
    const bytes = this.vocabulary.decode(ids);
    if (bytes === null) throw new Error("the table holds a token outside the vocabulary");
    return bytesChain(this.hasher, identity, bytes).keys;
  }
}

function pathTo(row: BlockTableRow, rows: ReadonlyMap<bigint, BlockTableRow>): BlockTableRow[] | null {
  const path = [row];
  for (let { parent } = row; parent !== null; ) {
    const above = rows.get(parent);
    if (above === undefined) return null;
    path.unshift(above);
    parent = above.parent;
  }
  return path;
}

export function tablesOf(engines: readonly MockEngine[], keys: TableKeys): Holdings {
  const holdings = new Map<string, Set<bigint>>();
  engines.forEach((engine, i) => {
    engine.stats().forEach((_, rank) => {
      holdings.set(`w${i}/${rank}`, keys.heldBy(engine.blockTable(rank)));
    });
  });
  return holdings;
}

/** Looks up every chain that was ever published, so that nothing which the view may hold stays unseen. */
export class ViewKeys {
  /** Incarnations by `worker/rank`, in order. */
  readonly lives = new Map<string, string[]>();
  private readonly store: MemoryStore;
  private readonly model: string;
  private readonly parents = new Map<bigint, bigint | null>();

  constructor(bus: EventBus, store: MemoryStore, model = MODEL) {
    this.store = store;
    this.model = model;
    for (const row of store.fleet()) this.lives.set(`${row.worker}/${row.rank}`, [row.incarnation]);
    bus.onRegistration(({ worker, rank, incarnation }) => {
      const lives = this.lives.get(`${worker}/${rank}`) ?? [];
      if (!lives.includes(incarnation)) this.lives.set(`${worker}/${rank}`, [...lives, incarnation]);
    });
    bus.onKv(({ ops }) => {
      for (const op of ops) {
        if (op.op === "remove") continue;
        let parent = op.parent;
        for (const key of op.keys) {
          this.parents.set(key, parent);
          parent = key;
        }
      }
    });
  }

  /** Errors: a slot that belongs to no rank of the fleet (one of an earlier life) still holds something. */
  held(): Holdings {
    const holdings = new Map<string, Set<bigint>>();
    const places = new Map<number, string>();
    for (const { worker, rank, slots } of this.store.fleet()) {
      holdings.set(`${worker}/${rank}`, new Set());
      places.set(slots.device, `${worker}/${rank}`);
    }
    for (const chain of this.chains()) {
      const { lookup } = this.store.read(this.model, chain);
      for (let i = 0; i < lookup.count; i++) {
        const depth = lookup.confirmedDepth[i]!;
        if (depth === 0) continue;
        const held = holdings.get(places.get(lookup.slots[i]!) ?? "");
        if (held === undefined)
          throw new Error(`slot ${lookup.slots[i]} of no live rank holds ${depth} keys`);
        for (const key of chain.subarray(0, depth)) held.add(key);
      }
    }
    return holdings;
  }

  private *chains(): Generator<BigUint64Array> {
    const inner = new Set(this.parents.values());
    for (const leaf of this.parents.keys()) {
      if (inner.has(leaf)) continue;
      const chain: bigint[] = [];
      for (let key: bigint | null = leaf; key !== null; key = this.parents.get(key) ?? null) chain.push(key);
      yield BigUint64Array.from(chain.reverse());
    }
  }
}

/** Per rank, how many keys the view lacks and how many it holds beyond the table; empty if they are equal. */
export function differences(truth: Holdings, view: Holdings): string[] {
  const places = new Set([...truth.keys(), ...view.keys()]);
  return [...places].flatMap((place) => {
    const real = truth.get(place) ?? new Set();
    const said = view.get(place) ?? new Set();
    const missing = [...real].filter((key) => !said.has(key)).length;
    const extra = [...said].filter((key) => !real.has(key)).length;
    return missing + extra === 0 ? [] : [`${place}: ${missing} missing, ${extra} beyond`];
  });
}
