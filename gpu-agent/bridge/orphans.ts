/** Blocks whose parent is not known yet, by age and by the parent they wait for. */

import type { EngineHash } from "../engines/events.ts";
import type { Block, OrphanFacts } from "./block.ts";

export class Orphans {
  /** In order of age. */
  readonly #all = new Set<Block>();
  readonly #byParent = new Map<EngineHash, Set<Block>>();

  get size(): number {
    return this.#all.size;
  }

  add(block: Block, facts: OrphanFacts): void {
    block.status = "orphan";
    block.orphan = facts;
    this.#all.add(block);
    const waiting = this.#byParent.get(facts.parentHash);
    if (waiting === undefined) this.#byParent.set(facts.parentHash, new Set([block]));
    else waiting.add(block);
  }

  /** Those that wait for this parent. */
  of(parent: EngineHash): readonly Block[] {
    return [...(this.#byParent.get(parent) ?? [])];
  }

  /** Takes the block out, if it is an orphan. */
  drop(block: Block): void {
    if (block.orphan === null) return;
    const waiting = this.#byParent.get(block.orphan.parentHash);
    waiting?.delete(block);
    if (waiting?.size === 0) this.#byParent.delete(block.orphan.parentHash);
    this.#all.delete(block);
    block.orphan = null;
  }

  /** Takes out all that came before `oldestMs`, and the oldest beyond `most`. */
  dropOld(oldestMs: number, most: number): readonly Block[] {
    const dropped: Block[] = [];
    for (const block of this.#all) {
      if (this.#all.size <= most && block.orphan!.sinceMs >= oldestMs) break;
      this.drop(block);
      dropped.push(block);
    }
    return dropped;
  }
}
