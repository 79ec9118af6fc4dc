/** Index = block tables: what the view in Redis answers of every prompt that was ever sent, against what the engines say to hold. */

import type { BlockTableRow } from "../../gpu-agent/engines/mock/index.ts";
import { bytesChain } from "../../src/prefix/bytes-scheme.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import type { ViewStore } from "../../src/store/types.ts";
import { differences, type Holdings, TableKeys } from "../e2e/view-truth.ts";
import { MODEL, type Prompt } from "./load.ts";

/** Look-ups under way at a time. */
const WIDTH = 8;

interface EngineOfWorker {
  readonly worker: string;
  readonly url: string;
}

export class Truth {
  private readonly hasher: Hasher;
  private readonly keys: TableKeys;
  private readonly store: ViewStore;

  private constructor(hasher: Hasher, keys: TableKeys, store: ViewStore) {
    this.hasher = hasher;
    this.keys = keys;
    this.store = store;
  }

  static async of(store: ViewStore): Promise<Truth> {
    return new Truth(await createHasher(), await TableKeys.load("bytes"), store);
  }

  /** `prompts`: all that were sent, so that nothing which the view may still hold of them stays unseen. Empty: they are equal. */
  async differences(engines: readonly EngineOfWorker[], prompts: Iterable<Prompt>): Promise<string[]> {
    const tables = new Map<string, Set<bigint>>();
    const chains = new Map<bigint, BigUint64Array>();
    for (const { worker, url } of engines) {
      const table = await tableOf(url);
      tables.set(`${worker}/0`, this.keys.heldBy(table));
      for (const chain of this.keys.chainsOf(table)) keep(chains, chain);
    }
    for (const prompt of new Set(prompts)) if (typeof prompt === "string") keep(chains, this.chainOf(prompt));
    if ([...tables.values()].every(({ size }) => size === 0))
      return ["engines that hold nothing prove nothing"];
    const view = await this.viewOf([...chains.values()]);
    if (typeof view === "string") return [view];
    return differences(tables, view);
  }

  private chainOf(prompt: string): BigUint64Array {
    return bytesChain(this.hasher, { model: MODEL, adapter: null, salt: null }, prompt).keys;
  }

  /** A text: what is wrong with the fleet or with an answer in itself. */
  private async viewOf(chains: readonly BigUint64Array[]): Promise<Holdings | string> {
    const rows = await this.store.fleet(0);
    const places = new Map(rows.map(({ slots, worker, rank }) => [slots.device, `${worker}/${rank}`]));
    const held = new Map([...places.values()].map((place) => [place, new Set<bigint>()]));
    if (held.size !== rows.length) return `doubled: ${[...places.values()].join(", ")}`;
    for (let at = 0; at < chains.length; at += WIDTH) {
      const portion = chains.slice(at, at + WIDTH);
      const reads = await Promise.all(portion.map((chain) => this.store.read(MODEL, chain)));
      for (const [i, { lookup }] of reads.entries()) {
        const slots = lookup.slots.subarray(0, lookup.count);
        if (new Set(slots).size !== lookup.count) return `a holder twice: ${slots.join(" ")}`;
        for (const [j, slot] of slots.entries()) {
          const depth = lookup.confirmedDepth[j]!;
          if (depth === 0) continue;
          const place = held.get(places.get(slot) ?? "");
          if (place === undefined) return `slot ${slot} of no live rank holds ${depth} keys`;
          for (const key of portion[i]!.subarray(0, depth)) place.add(key);
        }
      }
    }
    return held;
  }
}

/** By their last keys: the same beginning of another chain is contained in it. */
function keep(chains: Map<bigint, BigUint64Array>, chain: BigUint64Array): void {
  const last = chain.at(-1);
  if (last !== undefined) chains.set(last, chain);
}

/** The mock's own account of its cache. */
async function tableOf(url: string): Promise<BlockTableRow[]> {
  const response = await fetch(`${url}/mock/blocks?rank=0`);
  const rows = (await response.json()) as (Omit<BlockTableRow, "hash" | "parent"> & {
    hash: string;
    parent: string | null;
  })[];
  return rows.map((row) => ({
    ...row,
    hash: BigInt(`0x${row.hash}`),
    parent: row.parent === null ? null : BigInt(`0x${row.parent}`),
  }));
}
