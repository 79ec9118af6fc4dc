/** Prefix key → holders with their leases, in flat arrays (design D3). */

import { CellSlab, classCapacity, MAX_HOLDERS_PER_ENTRY } from "./slab.ts";
import type { SlotTable } from "./slots.ts";

/**
 * Keys are spread over segments, each an open-addressing table that grows by itself: no write waits for more than a
 * 256th of a rehash.
 */
const SEGMENT_BITS = 8;
const SEGMENTS = 1 << SEGMENT_BITS;
const SEGMENT_SHIFT = 32 - SEGMENT_BITS;
const MIN_CAPACITY = 16;

/** Words of an entry: the key, its block of cells (0: vacant), and what is known of the cells without reading them. */
const STRIDE = 6;
const LOW = 0;
const HIGH = 1;
const BLOCK = 2;
/** No holder's lease ends before this tick. */
const SOONEST = 3;
/** Generation of the slot table under which all holders were found to be alive. */
const GENERATION = 4;
/** Number of holders in the low 24 bits, size class of the block above. */
const META = 5;
const COUNT_MASK = 0xffffff;
const CLASS_SHIFT = 24;

export class HolderIndex {
  /** Keys in the tables, those included whose holders have all died since they were last written. */
  entries = 0;
  /** Holders of those keys, dead ones included. */
  holders = 0;
  /** Block, and the block's capacity, of the entry that the last `probe` found. */
  probedBlock = 0;
  probedCapacity = 0;
  readonly slots: SlotTable;
  private readonly seed: number;
  readonly slab = new CellSlab();
  private readonly segments: Int32Array[] = [];
  private readonly masks = new Int32Array(SEGMENTS).fill(MIN_CAPACITY - 1);
  private readonly used = new Int32Array(SEGMENTS);
  /** Segment of the last `locate`. */
  private segment: Int32Array;
  private segmentIndex = 0;
  /** Where the sweep goes on. */
  private sweptSegment = 0;
  private sweptAt = 0;

  /** `seed`: 32 random bits that keep clients from choosing keys that collide. */
  constructor(slots: SlotTable, seed: number) {
    this.slots = slots;
    this.seed = seed | 0;
    for (let i = 0; i < SEGMENTS; i++) this.segments.push(new Int32Array(MIN_CAPACITY * STRIDE));
    this.segment = this.segments[0];
  }

  /** Bytes of tables and cells, vacant ones included. */
  get bytes(): number {
    return this.slab.bytes + this.segments.reduce((sum, segment) => sum + segment.byteLength, 0);
  }

  /** Makes `slot` a holder until tick `expiry`, or extends its lease; a lease is never shortened. False: no room on this key. */
  put(low: number, high: number, slot: number, expiry: number, tokens: number, now: number): boolean {
    const at = this.locate(low, high);
    if (at < 0) {
      this.insert(low, high, slot, expiry, tokens, now);
      return true;
    }
    const segment = this.segment;
    this.refresh(segment, at, now);
    const cell = this.cellOf(segment, at, slot);
    if (cell < 0) return this.append(segment, at, slot, expiry, tokens);
    const page = this.slab.page(segment[at + BLOCK]);
    const capacity = capacityOf(segment[at + META]);
    page[cell + capacity] = tokens;
    if (expiry > page[cell + 2 * capacity]) page[cell + 2 * capacity] = expiry;
    return true;
  }

  /** Ends `slot`'s lease on a key. False: it held none. */
  remove(low: number, high: number, slot: number, now: number): boolean {
    const at = this.locate(low, high);
    if (at < 0) return false;
    const segment = this.segment;
    this.refresh(segment, at, now);
    const cell = this.cellOf(segment, at, slot);
    if (cell >= 0) {
      const block = segment[at + BLOCK];
      const last = this.slab.offset(block) + (segment[at + META] & COUNT_MASK) - 1;
      moveCell(this.slab.page(block), last, cell, capacityOf(segment[at + META]));
      segment[at + META] -= 1;
      this.holders -= 1;
    }
    if ((segment[at + META] & COUNT_MASK) === 0) this.vacate(at);
    return cell >= 0;
  }

  /** The tick at which `slot`'s lease on a key ends; 0 if it holds none. */
  expiryOf(low: number, high: number, slot: number, now: number): number {
    const at = this.locate(low, high);
    if (at < 0) return 0;
    this.refresh(this.segment, at, now);
    const cell = this.cellOf(this.segment, at, slot);
    if (cell < 0) return 0;
    return this.slab.page(this.segment[at + BLOCK])[cell + 2 * capacityOf(this.segment[at + META])];
  }

  /** Number of live holders of a key; if any, leaves where they are in `probedBlock` and `probedCapacity`. */
  probe(low: number, high: number, now: number): number {
    const hash = this.hash(low, high);
    const segment = this.segments[hash >>> SEGMENT_SHIFT];
    let at = (hash & this.masks[hash >>> SEGMENT_SHIFT]) * STRIDE;
    for (;;) {
      const block = segment[at + BLOCK];
      if (block === 0) return 0;
      if (segment[at + LOW] === low && segment[at + HIGH] === high) {
        this.refresh(segment, at, now);
        this.probedBlock = block;
        this.probedCapacity = capacityOf(segment[at + META]);
        return segment[at + META] & COUNT_MASK;
      }
      at += STRIDE;
      if (at === segment.length) at = 0;
    }
  }

  /** Brings a key's place in the table into the processor's cache; the value means nothing. */
  touch(low: number, high: number): number {
    const hash = this.hash(low, high);
    return this.segments[hash >>> SEGMENT_SHIFT][(hash & this.masks[hash >>> SEGMENT_SHIFT]) * STRIDE];
  }

  /** Looks at the next `places` of the tables and deletes the entries there whose holders have all died. */
  sweep(places: number, now: number): void {
    for (let i = 0; i < places; i++) {
      if (this.sweptAt === this.segments[this.sweptSegment].length) {
        this.sweptAt = 0;
        this.sweptSegment = (this.sweptSegment + 1) % SEGMENTS;
      }
      const segment = this.segments[this.sweptSegment];
      const at = this.sweptAt;
      this.sweptAt += STRIDE;
      if (segment[at + BLOCK] === 0) continue;
      this.refresh(segment, at, now);
      if ((segment[at + META] & COUNT_MASK) > 0) continue;
      this.segment = segment;
      this.segmentIndex = this.sweptSegment;
      this.vacate(at);
      // Another entry may have moved into this place.
      this.sweptAt = at;
    }
  }

  private hash(low: number, high: number): number {
    let hash = Math.imul(low ^ this.seed, 0x9e3779b1);
    hash = Math.imul(hash ^ (hash >>> 15) ^ high, 0x85ebca6b);
    return hash ^ (hash >>> 13);
  }

  /** Where a key's entry is, or the complement of the vacancy where it would go; leaves its segment in `segment`. */
  private locate(low: number, high: number): number {
    const hash = this.hash(low, high);
    const index = hash >>> SEGMENT_SHIFT;
    const segment = this.segments[index];
    this.segment = segment;
    this.segmentIndex = index;
    let at = (hash & this.masks[index]) * STRIDE;
    while (segment[at + BLOCK] !== 0) {
      if (segment[at + LOW] === low && segment[at + HIGH] === high) return at;
      at += STRIDE;
      if (at === segment.length) at = 0;
    }
    return ~at;
  }

  /** Address, within its page, of a slot in its block; −1 if it is not there. */
  private cellOf(segment: Int32Array, at: number, slot: number): number {
    const block = segment[at + BLOCK];
    const page = this.slab.page(block);
    const start = this.slab.offset(block);
    const end = start + (segment[at + META] & COUNT_MASK);
    for (let cell = start; cell < end; cell++) if (page[cell] === slot) return cell;
    return -1;
  }

  /** Drops dead holders, if there can be any; may leave an entry with none. */
  private refresh(segment: Int32Array, at: number, now: number): void {
    if (segment[at + SOONEST] > now && segment[at + GENERATION] === this.slots.generation) return;
    this.dropDead(segment, at, now);
  }

  private dropDead(segment: Int32Array, at: number, now: number): void {
    const { inert, generation } = this.slots;
    const block = segment[at + BLOCK];
    const page = this.slab.page(block);
    const capacity = capacityOf(segment[at + META]);
    const start = this.slab.offset(block);
    const end = start + (segment[at + META] & COUNT_MASK);
    let kept = start;
    let soonest = 0x7fffffff;
    for (let cell = start; cell < end; cell++) {
      const expiry = page[cell + 2 * capacity];
      if (expiry <= now || inert[page[cell]] !== 0) continue;
      if (cell !== kept) moveCell(page, cell, kept, capacity);
      if (expiry < soonest) soonest = expiry;
      kept += 1;
    }
    segment[at + META] -= end - kept;
    this.holders -= end - kept;
    segment[at + SOONEST] = soonest;
    segment[at + GENERATION] = generation;
  }

  private insert(low: number, high: number, slot: number, expiry: number, tokens: number, now: number): void {
    const index = this.segmentIndex;
    if ((this.used[index] + 1) * 4 > (this.masks[index] + 1) * 3) this.rebuild(index, now);
    const at = ~this.locate(low, high);
    const segment = this.segment;
    segment[at + LOW] = low;
    segment[at + HIGH] = high;
    segment[at + BLOCK] = this.slab.allocate(0);
    segment[at + GENERATION] = this.slots.generation;
    segment[at + META] = 0;
    this.used[index] += 1;
    this.entries += 1;
    this.append(segment, at, slot, expiry, tokens);
  }

  /** Adds a cell to an entry whose dead holders were dropped. False: the entry is full. */
  private append(segment: Int32Array, at: number, slot: number, expiry: number, tokens: number): boolean {
    const count = segment[at + META] & COUNT_MASK;
    if (count === MAX_HOLDERS_PER_ENTRY) return false;
    if (count === capacityOf(segment[at + META])) this.widen(segment, at);
    const block = segment[at + BLOCK];
    const page = this.slab.page(block);
    const capacity = capacityOf(segment[at + META]);
    const cell = this.slab.offset(block) + count;
    page[cell] = slot;
    page[cell + capacity] = tokens;
    page[cell + 2 * capacity] = expiry;
    segment[at + META] += 1;
    if (count === 0 || expiry < segment[at + SOONEST]) segment[at + SOONEST] = expiry;
    this.holders += 1;
    return true;
  }

  private widen(segment: Int32Array, at: number): void {
    const meta = segment[at + META];
    const sizeClass = classOf(meta);
    const capacity = capacityOf(meta);
    const from = segment[at + BLOCK];
    const to = this.slab.allocate(sizeClass + 1);
    const source = this.slab.page(from);
    const target = this.slab.page(to);
    const start = this.slab.offset(from);
    const goal = this.slab.offset(to);
    for (let part = 0; part < 3; part++) {
      for (let i = 0; i < capacity; i++)
        target[goal + 2 * part * capacity + i] = source[start + part * capacity + i];
    }
    this.slab.release(from, sizeClass);
    segment[at + BLOCK] = to;
    segment[at + META] = meta + (1 << CLASS_SHIFT);
  }

  /** Deletes the entry at `at` of the segment of the last `locate`; those that it had pushed aside move back. */
  private vacate(at: number): void {
    const segment = this.segment;
    const mask = this.masks[this.segmentIndex];
    this.slab.release(segment[at + BLOCK], classOf(segment[at + META]));
    this.used[this.segmentIndex] -= 1;
    this.entries -= 1;
    let gap = at / STRIDE;
    for (let next = (gap + 1) & mask; segment[next * STRIDE + BLOCK] !== 0; next = (next + 1) & mask) {
      const home = this.hash(segment[next * STRIDE + LOW], segment[next * STRIDE + HIGH]) & mask;
      if (((next - home) & mask) < ((next - gap) & mask)) continue;
      for (let word = 0; word < STRIDE; word++) segment[gap * STRIDE + word] = segment[next * STRIDE + word];
      gap = next;
    }
    segment[gap * STRIDE + BLOCK] = 0;
  }

  /** Sweeps dead entries out of a full segment and gives it the capacity that the living need. */
  private rebuild(index: number, now: number): void {
    const old = this.segments[index];
    let live = 0;
    for (let at = 0; at < old.length; at += STRIDE) {
      if (old[at + BLOCK] === 0) continue;
      this.refresh(old, at, now);
      if ((old[at + META] & COUNT_MASK) > 0) {
        live += 1;
        continue;
      }
      this.slab.release(old[at + BLOCK], classOf(old[at + META]));
      old[at + BLOCK] = 0;
    }
    this.entries -= this.used[index] - live;
    this.used[index] = live;
    let capacity = this.masks[index] + 1;
    if (live * 2 > capacity) capacity *= 2;
    while (live * 8 < capacity && capacity > MIN_CAPACITY) capacity /= 2;
    this.masks[index] = capacity - 1;
    this.segments[index] = this.rehashed(old, capacity);
    if (index === this.sweptSegment) this.sweptAt = 0;
  }

  private rehashed(old: Int32Array, capacity: number): Int32Array {
    const table = new Int32Array(capacity * STRIDE);
    for (let at = 0; at < old.length; at += STRIDE) {
      if (old[at + BLOCK] === 0) continue;
      let to = this.hash(old[at + LOW], old[at + HIGH]) & (capacity - 1);
      while (table[to * STRIDE + BLOCK] !== 0) to = (to + 1) & (capacity - 1);
      for (let word = 0; word < STRIDE; word++) table[to * STRIDE + word] = old[at + word];
    }
    return table;
  }
}

function classOf(meta: number): number {
  return meta >>> CLASS_SHIFT;
}

function capacityOf(meta: number): number {
  return classCapacity(classOf(meta));
}

function moveCell(page: Int32Array, from: number, to: number, capacity: number): void {
  page[to] = page[from];
  page[to + capacity] = page[from + capacity];
  page[to + 2 * capacity] = page[from + 2 * capacity];
}
