/** The depths at which predicted holders are written: one fixed, log-linear set, the same for every prompt (design D3). */

/**
 * The set is every depth to 64, then 32 depths per octave to 1,024, then 16 per octave to 8,192: 240 in all, so that writing all of
 * them and one read stay under 256 commands of Redis. Rounding a depth down to it loses nothing to 64, less than 1/32 of it to 1,024 and
 * less than 1/16 to 8,192. Deeper depths count as
 * 8,192: a prediction never reaches further, so that no shallow boundary is ever left out to make room and presence along
 * a chain stays monotone. Since the set does not depend on a prompt's length, the boundaries of a prompt are a prefix of
 * those of every prompt that continues it.
 */
export const MAX_BOUNDARIES = 240;

/** The deepest boundary. */
export const DEEPEST_BOUNDARY = 8192;

/** How many boundaries lie at or below `depth` (a count of keys, ≥ 0). */
export function boundaryCount(depth: number): number {
  if (depth <= 64) return Math.max(0, depth);
  if (depth >= DEEPEST_BOUNDARY) return MAX_BOUNDARIES;
  const octave = 31 - Math.clz32(depth);
  const above = depth - (1 << octave);
  return octave < 10
    ? 64 + 32 * (octave - 6) + (above >> (octave - 5))
    : 192 + 16 * (octave - 10) + (above >> (octave - 4));
}

/** Index of the deepest boundary that is at most `depth`; −1 if there is none. */
export function boundaryIndexAtMost(depth: number): number {
  return boundaryCount(depth) - 1;
}

/** Depth of boundary `index`, 0 … 239. */
export function boundaryAt(index: number): number {
  if (index < 64) return index + 1;
  const fine = index - 63;
  if (fine < 128) return stepDepth(6 + (fine >> 5), fine & 31, 5);
  const coarse = index - 191;
  return stepDepth(10 + (coarse >> 4), coarse & 15, 4);
}

/** Depth of the `step`-th of 2^bits equal steps of the octave that begins at 2^octave. */
function stepDepth(octave: number, step: number, bits: number): number {
  return (1 << octave) + (step << (octave - bits));
}
