/** Where runs of keys with the same holders were last seen to end: only says where to look first, never what is held. */

/** Words of a line: the tag, then the ends. One cache line. */
const LINE = 16;
const TAG_LOW = 0;
const TAG_HIGH = 1;
const FIRST = 2;

/** Most ends that one line holds. */
export const MEMO_ENDS = LINE - FIRST;

const MIN_LINES = 64;
/** One line for so many keys in the index. */
const KEYS_PER_LINE = 32;

/**
 * From the first key of a run to the ends of that run and of those that follow (positions plus one, 0: no more). Chains
 * that go different ways share what they have in common. Each key has two lines to choose from, side by side.
 */
export class RunMemo {
  private lines = new Int32Array(MIN_LINES * LINE);
  private mask = MIN_LINES - 1;
  /** Which of two taken lines makes room next. */
  private turn = 0;

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
    const line = this.lineOf(low, high);
    if (line < 0) return 0;
    const lines = this.lines;
    let count = 0;
    for (let at = line + FIRST; at < line + LINE && lines[at] !== 0; at++) ends[count++] = lines[at] - 1;
    return count;
  }

  /**
   * Notes `ends[from … to)`, as many as fit; of what was noted before, the beginning that still holds is kept, if there
   * is one. Returns how many are noted, at least one.
   */
  note(low: number, high: number, ends: Int32Array, from: number, to: number): number {
    const lines = this.lines;
    let line = this.lineOf(low, high);
    if (line >= 0) {
      let same = 0;
      while (same < MEMO_ENDS && from + same < to && lines[line + FIRST + same] === ends[from + same] + 1)
        same += 1;
      if (same > 0) {
        if (same < MEMO_ENDS && from + same < to) lines[line + FIRST + same] = 0;
        return same;
      }
    } else {
      this.turn ^= 1;
      line = ((low & this.mask) ^ this.turn) * LINE;
      lines[line + TAG_LOW] = low;
      lines[line + TAG_HIGH] = high;
    }
    const noted = Math.min(MEMO_ENDS, to - from);
    for (let i = 0; i < noted; i++) lines[line + FIRST + i] = ends[from + i] + 1;
    if (noted < MEMO_ENDS) lines[line + FIRST + noted] = 0;
    return noted;
  }

  /** Where a key's line begins; −1 if it has none. */
  private lineOf(low: number, high: number): number {
    const lines = this.lines;
    const line = (low & this.mask) * LINE;
    if (lines[line + TAG_LOW] === low && lines[line + TAG_HIGH] === high) return line;
    const other = line ^ LINE;
    return lines[other + TAG_LOW] === low && lines[other + TAG_HIGH] === high ? other : -1;
  }
}
