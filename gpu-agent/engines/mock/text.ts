/** The mock's words: drawn by a hash of the prompt and the seed, in tokens that survive being read back as text. */

import type { TokenSource } from "./sequence.ts";
import type { Tokenizer } from "./tokenizer.ts";

/** 32-bit mixing of two words (Murmur3's finaliser over their sum of products). */
function mix(a: number, b: number): number {
  let h = Math.imul(a ^ 0x9e3779b9, 0x85ebca6b) ^ Math.imul(b + 0x7f4a7c15, 0xc2b2ae35);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

function hashTokens(tokens: readonly number[]): number {
  let h = tokens.length | 0;
  for (let i = 0; i < tokens.length; i++) h = (Math.imul(h ^ tokens[i]!, 0x01000193) + 0x6b43) | 0;
  return h;
}

function hashText(text: string): number {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return h >>> 0;
}

export interface OutputRequest {
  readonly prompt: readonly number[];
  readonly seed: number;
  /** Which of `n` samples; the first ones differ. */
  readonly index: number;
  readonly adapter: string | null;
  readonly minTokens: number;
  readonly ignoreEos: boolean;
  /** Said first, token by token. */
  readonly forced: readonly number[];
  /** The end token follows what is forced. */
  readonly endsAfterForced: boolean;
  /** Draw from these ids only. */
  readonly allowed: readonly number[] | null;
}

const SENTENCE_WORDS = 11;

export class TextModel {
  readonly endToken: number;
  readonly #words: readonly number[];
  readonly #fullStop: number;
  readonly #meanTokens: number;

  /**
   * `words`: ids to speak in; whole words with their leading space, which in a row encode to themselves again.
   * `meanTokens`: how long an answer is on average if nothing else ends it.
   */
  constructor(tokenizer: Tokenizer, words: readonly number[], meanTokens: number) {
    this.endToken = tokenizer.added.get("<|im_end|>") ?? tokenizer.size - 1;
    this.#words = words;
    this.#fullStop = tokenizer.encode(".")[0] ?? 0;
    this.#meanTokens = meanTokens;
  }

  /** The tokens of one answer: the same prompt, seed, index and adapter give the same tokens, on every engine. */
  source(request: OutputRequest): TokenSource {
    const { forced, allowed, minTokens } = request;
    let start = mix(hashTokens(request.prompt), request.seed);
    if (request.index > 0) start = mix(start, request.index);
    if (request.adapter !== null) start = mix(start, hashText(request.adapter));
    const natural = Math.ceil(this.#meanTokens / 2) + (mix(start, 0xe0f) % (this.#meanTokens + 1));
    const next = (k: number): number => {
      if (k < forced.length) return forced[k]!;
      if (request.endsAfterForced && k === forced.length && k >= minTokens) return this.endToken;
      if (allowed !== null && allowed.length > 0) return allowed[mix(start, k) % allowed.length]!;
      if (!request.ignoreEos && k >= natural && k >= minTokens) return this.endToken;
      return this.#word(start, k);
    };
    return { next, endToken: request.ignoreEos ? null : this.endToken };
  }

  #word(start: number, k: number): number {
    const stop = (at: number): boolean => at > 0 && mix(start, ~at) % SENTENCE_WORDS === 0;
    if (stop(k) && !stop(k - 1)) return this.#fullStop;
    return this.#words[mix(start, k) % this.#words.length]!;
  }
}
