/** English-like filler of a wanted length in tokens, for prompts whose content does not matter but whose sharing does. */

import type { Random } from "./random.ts";

const WORDS = (
  "the of and to in is for that with as on by this be are from at or an it not we can all has more one its may will " +
  "when which use each other time between through order given value system model data result number first part state " +
  "long small large work line form place point group change move follow under while after before because every where " +
  "answer question report market river window garden letter signal pattern version section record balance measure " +
  "weather history supply travel surface compare request service machine network storage memory process channel " +
  "customer contract delivery schedule estimate operation direction condition agreement production temperature " +
  "green seven table paper light sound water stone metal glass north south early later above below outer inner"
).split(" ");

/** Assumed until calibrated: a small byte-level BPE takes about four bytes per token. */
export const DEFAULT_TOKENS_PER_WORD = 1.5;

/**
 * `tokens / tokensPerWord` words in sentences of 6 to 14. Deterministic for a generator's state.
 * The length in tokens is as good as `tokensPerWord` (see calibration in fleet.ts).
 */
export function filler(tokens: number, tokensPerWord: number, random: Random): string {
  const count = Math.max(1, Math.round(tokens / tokensPerWord));
  const words: string[] = [];
  let left = 0;
  for (let i = 0; i < count; i++) {
    const word = WORDS[Math.floor(random() * WORDS.length)]!;
    const opens = left === 0;
    if (opens) left = 6 + Math.floor(random() * 9);
    left--;
    const closes = left === 0 || i === count - 1;
    words.push((opens ? word.charAt(0).toUpperCase() + word.slice(1) : word) + (closes ? "." : ""));
  }
  return words.join(" ");
}
