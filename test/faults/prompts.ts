/** Prompts of a few families with common beginnings, the same for the same number, and cut so that an answer ends no chunk of its own. */

const WORDS =
  "the quick brown fox jumps over a lazy dog while seven old wizards quietly box bright green vases beside large open windows".split(
    " ",
  );
const CHUNK_BYTES = 128;
/** What a prompt has beyond its last whole chunk: with it a short answer does not fill the next one. */
const REST_BYTES = 16;
const FAMILY_CHUNKS = 3;

/** `own`: whole chunks beyond what the family has in common. */
export function promptOf(family: number, member: number, own = 2 + (member % 3)): string {
  return textOf(family, FAMILY_CHUNKS * CHUNK_BYTES) + textOf(1_000 + member, own * CHUNK_BYTES + REST_BYTES);
}

function textOf(seed: number, bytes: number): string {
  let state = (seed + 1) * 2_654_435_761;
  let text = `${seed}:`;
  while (text.length < bytes) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    text += ` ${WORDS[state % WORDS.length]}`;
  }
  return text.slice(0, bytes);
}
