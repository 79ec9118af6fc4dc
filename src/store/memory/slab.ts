/** Blocks of holder cells in fixed pages: growing never copies, and a freed block serves the next of its size. */

/**
 * Words per holder: slot, tokens, expiry (ticks). A block of capacity c has its c slots first, then the tokens, then the
 * expiries, so that the slots of many holders lie in few cache lines.
 */
const CELL_WORDS = 3;

const PAGE_BITS = 16;
const PAGE_WORDS = 1 << PAGE_BITS;
const PAGE_MASK = PAGE_WORDS - 1;
const CLASSES = 13;

/** The largest block: more holders than this on one key are not kept. */
export const MAX_HOLDERS_PER_ENTRY = 2 << (CLASSES - 1);

/** Cells of a block of this size class: 2, 4, 8 … */
export function classCapacity(sizeClass: number): number {
  return 2 << sizeClass;
}

/** A block is named by its word address (page, offset), which is never 0. */
export class CellSlab {
  private readonly pages: Int32Array[] = [new Int32Array(PAGE_WORDS)];
  /** Heads of the free lists by size class; a free block's first word names the next. */
  private readonly free = new Int32Array(CLASSES);
  /** First unused word of the last page; word 0 of the first page is never given out. */
  private bump = 1;

  /** Bytes of all pages. */
  get bytes(): number {
    return this.pages.length * PAGE_WORDS * 4;
  }

  page(block: number): Int32Array {
    return this.pages[block >>> PAGE_BITS];
  }

  offset(block: number): number {
    return block & PAGE_MASK;
  }

  allocate(sizeClass: number): number {
    const head = this.free[sizeClass];
    if (head !== 0) {
      this.free[sizeClass] = this.page(head)[head & PAGE_MASK];
      return head;
    }
    const words = CELL_WORDS * classCapacity(sizeClass);
    if (this.bump + words > PAGE_WORDS) this.addPage();
    const block = ((this.pages.length - 1) << PAGE_BITS) | this.bump;
    this.bump += words;
    return block;
  }

  release(block: number, sizeClass: number): void {
    this.page(block)[block & PAGE_MASK] = this.free[sizeClass];
    this.free[sizeClass] = block;
  }

  /** What is left of the last page becomes small blocks. */
  private addPage(): void {
    const words = CELL_WORDS * classCapacity(0);
    for (; this.bump + words <= PAGE_WORDS; this.bump += words) {
      this.release(((this.pages.length - 1) << PAGE_BITS) | this.bump, 0);
    }
    this.pages.push(new Int32Array(PAGE_WORDS));
    this.bump = 0;
  }
}
