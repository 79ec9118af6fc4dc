/** Where runs of keys with the same holders were last seen to end: only says where to look first, never what is held. */

/** Words of a line: the tag, then the ends. One cache line. */
const LINE = 16;
const TAG_LOW = 0;
const TAG_HIGH = 1;
const FIRST = 2;

const MIN_LINES = 64;
/** One line for so many keys in the index. */
const KEYS_PER_LINE = 32;

/**
 * A direct-mapped table from the first key of a run to the ends of that run and of those that follow (positions plus
 * one, 0: no more). Chains that go different ways share what they have in common.
 */
export class RunMemo {
  private lines = new Int32Array(MIN_LINES * LINE);
  private mask = MIN_LINES - 1;

  get bytes(): number {
    return this.lines.byteLength;
  }

  /** Grows with the index; what was noted is forgotten then. */
  fit(keys: number): void {
    if (keys <= (this.mask + 1) * KEYS_PER_LINE) return;
    const lines = 1 << (32 - Math.clz32(Math.ceil(keys / KEYS_PER_LINE) - 1));
    this.lines = new Int32Array(lines * LINE);
    this.mask = lines - 1;
  }

  /** Copies the ends noted for a run's first key to `ends`; how many. */
  recall(low: number, high: number, ends: Int32Array): number {
    const line = (low & this.mask) * LINE;
    const lines = this.lines;
    if (lines[line + TAG_LOW] !== low || lines[line + TAG_HIGH] !== high) return 0;
    let count = 0;
    for (let at = line + FIRST; at < line + LINE && lines[at] !== 0; at++) ends[count++] = lines[at] - 1;
    return count;
  }

  /**
   * Notes `ends[from … to)`, as many as fit; of what was noted before, the beginning that still holds is kept, if there
   * is one. Returns how many are noted, at least one.
   */
  note(low: number, high: number, ends: Int32Array, from: number, to: number): number {
    const line = (low & this.mask) * LINE;
    const lines = this.lines;
    let at = line + FIRST;
    let next = from;
    if (lines[line + TAG_LOW] === low && lines[line + TAG_HIGH] === high) {
      while (at < line + LINE && next < to && lines[at] === ends[next] + 1) {
        at += 1;
        next += 1;
      }
      if (next > from) {
        if (at < line + LINE && next < to) lines[at] = 0;
        return next - from;
      }
    }
    lines[line + TAG_LOW] = low;
    lines[line + TAG_HIGH] = high;
    while (at < line + LINE && next < to) lines[at++] = ends[next++] + 1;
    if (at < line + LINE) lines[at] = 0;
    return next - from;
  }
}

/** Most ends that one line holds. */
export const MEMO_ENDS = LINE - FIRST;
