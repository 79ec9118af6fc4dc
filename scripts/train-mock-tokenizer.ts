/** Trains the mock engine's byte-level BPE on our own word list and writes its model folder. Deterministic: `--check` compares only. */

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const CORPUS = new URL("mock-tokenizer-corpus.txt", import.meta.url);
const MODEL = new URL("../gpu-agent/engines/mock/model/", import.meta.url);
const MERGES = 11_000;
const LINE_WEIGHT = 60;
/** Added tokens, in id order behind the learnt vocabulary. */
const SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/** The pre-tokeniser's pattern that `ByteLevel` with `use_regex` stands for. */
const PIECES = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

interface Word {
  symbols: string[];
  readonly count: number;
}

/** Byte → printable stand-in, as byte-level BPE vocabularies write bytes. */
function byteAlphabet(): string[] {
  const printable = (byte: number): boolean =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
}

/** Piece → weight: the word list with the forms that text has of each, and the sample lines. */
function pieceCounts(corpus: string): Map<string, number> {
  const counts = new Map<string, number>();
  const add = (text: string, weight: number): void => {
    for (const [piece] of text.matchAll(PIECES)) counts.set(piece, (counts.get(piece) ?? 0) + weight);
  };
  const [words = "", lines = ""] = corpus.split("\n~\n");
  let weight = 0;
  for (const line of words.split("\n")) {
    if (line.startsWith("@ ")) weight = Number(line.slice(2));
    if (/^[#@]/.test(line)) continue;
    for (const word of line.split(" ")) for (const [form, share] of forms(word)) add(form, weight * share);
  }
  for (const line of lines.split("\n")) add(`${line}\n`, LINE_WEIGHT);
  return counts;
}

/** How often a word's forms occur beside it. */
function forms(word: string): [string, number][] {
  const capital = word[0]?.toUpperCase() + word.slice(1);
  const stem = word.endsWith("e") ? word.slice(0, -1) : word;
  return [
    [` ${word}`, 1],
    [` ${capital}`, 0.15],
    [capital, 0.15],
    [word, 0.12],
    ...(word.length > 3 && /^[a-z]+$/.test(word)
      ? ([
          [` ${word}s`, word.endsWith("s") ? 0 : 0.2],
          [` ${stem}ed`, 0.12],
          [` ${stem}ing`, 0.12],
        ] as [string, number][])
      : []),
  ];
}

/** Classic BPE: join the most frequent pair, again and again; ties go to the smaller pair. */
function learnMerges(words: readonly Word[], limit: number): [string, string][] {
  const counts = new Map<string, number>();
  const places = new Map<string, Set<Word>>();
  const note = (word: Word, sign: 1 | -1): void => {
    for (let i = 1; i < word.symbols.length; i++) {
      const pair = `${word.symbols[i - 1]} ${word.symbols[i]}`;
      counts.set(pair, (counts.get(pair) ?? 0) + sign * word.count);
      if (sign === 1) (places.get(pair) ?? places.set(pair, new Set()).get(pair)!).add(word);
    }
  };
  for (const word of words) note(word, 1);
  const merges: [string, string][] = [];
  while (merges.length < limit) {
    let best: string | null = null;
    let bestCount = 1;
    for (const [pair, count] of counts) {
      if (count > bestCount || (count === bestCount && best !== null && pair < best)) {
        best = pair;
        bestCount = count;
      }
    }
    if (best === null) break;
    const [left, right] = best.split(" ") as [string, string];
    merges.push([left, right]);
    for (const word of places.get(best)!) {
      note(word, -1);
      word.symbols = joined(word.symbols, left, right);
      note(word, 1);
    }
    counts.delete(best);
    places.delete(best);
  }
  return merges;
}

function joined(symbols: readonly string[], left: string, right: string): string[] {
  const out: string[] = [];
  for (let i = 0; i < symbols.length; i++) {
    if (symbols[i] === left && symbols[i + 1] === right) {
      out.push(left + right);
      i++;
    } else out.push(symbols[i]!);
  }
  return out;
}

/** Ids of the corpus's plain words that are one token with their leading space: what the mock speaks in. */
export function wordIds(corpus: string, tokenizer: string): number[] {
  const { vocab } = (JSON.parse(tokenizer) as { model: { vocab: Record<string, number> } }).model;
  const [words = ""] = corpus.split("\n~\n");
  const plain = new Set(words.split(/\s+/).filter((word) => /^[a-z]{2,}$/.test(word)));
  const ids = [...plain].flatMap((word) => vocab[`\u0120${word}`] ?? []);
  return ids.toSorted((a, b) => a - b);
}

/** The tokenizer.json text for a corpus. */
export function trainTokenizer(corpus: string): string {
  const alphabet = byteAlphabet();
  const encode = (piece: string): string[] =>
    [...new TextEncoder().encode(piece)].map((byte) => alphabet[byte]!);
  const words = [...pieceCounts(corpus)].map(([piece, weight]) => ({
    symbols: encode(piece),
    count: Math.round(weight * 100),
  }));
  const merges = learnMerges(words, MERGES);
  const tokens = [...alphabet.toSorted(), ...merges.map(([left, right]) => left + right)];
  const vocab = Object.fromEntries([...new Set(tokens)].map((token, id) => [token, id]));
  const base = Object.keys(vocab).length;
  return JSON.stringify({
    version: "1.0",
    truncation: null,
    padding: null,
    added_tokens: SPECIAL.map((content, i) => ({
      id: base + i,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: null,
    pre_tokenizer: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: true },
    post_processor: null,
    decoder: { type: "ByteLevel", add_prefix_space: false, trim_offsets: false, use_regex: true },
    model: {
      type: "BPE",
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges: merges.map((pair) => pair.join(" ")),
    },
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const corpus = readFileSync(CORPUS, "utf8");
  const text = trainTokenizer(corpus);
  const files = { "tokenizer.json": text, "words.json": `${JSON.stringify(wordIds(corpus, text))}\n` };
  for (const [name, content] of Object.entries(files)) {
    const target = new URL(name, MODEL);
    if (!process.argv.includes("--check")) writeFileSync(target, content);
    else if (readFileSync(target, "utf8") !== content)
      throw new Error(`${name} is not what the corpus gives; train again`);
    console.log(`${name}: ${Buffer.byteLength(content)} bytes`);
  }
}
