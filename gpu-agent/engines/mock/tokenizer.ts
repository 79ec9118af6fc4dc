/** The mock's tokenizer: byte-level BPE from a tokenizer.json, with a word cache because encoding is on every request's path. */

import { readFileSync } from "node:fs";
import { KedgeError } from "../../../src/errors/index.ts";

interface TokenizerFile {
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[];
  readonly model: { readonly vocab: Readonly<Record<string, number>>; readonly merges: readonly string[] };
}

/** What `ByteLevel` with `use_regex` splits by. */
const PIECES = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
const WORD_CACHE_SIZE = 100_000;
/** Pairs are keyed as left·2^20 + right. */
const PAIR_SHIFT = 2 ** 20;

/** Byte → printable stand-in of byte-level vocabularies. */
function byteAlphabet(): string[] {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCharCode(printable ? byte : next++);
  });
}

export interface Tokenizer {
  /** Number of ids, added tokens included. */
  readonly size: number;
  readonly added: ReadonlyMap<string, number>;
  encode(text: string): number[];
  /** Ids outside the vocabulary decode to nothing; bytes that are no UTF-8 to U+FFFD. */
  decode(ids: ArrayLike<number>): string;
  /** A token's bytes; empty for an id outside the vocabulary. */
  bytes(id: number): Uint8Array;
  /** The vocabulary's own spelling (`Ġword`). */
  piece(id: number): string;
  isAdded(id: number): boolean;
}

class ByteLevelBpe implements Tokenizer {
  readonly size: number;
  readonly added = new Map<string, number>();
  readonly #pieces: string[] = [];
  readonly #bytes: Uint8Array[] = [];
  readonly #byteIds: number[];
  /** Pair of ids → rank · 2^20 + joined id, so that one look-up gives both. */
  readonly #merges = new Map<number, number>();
  readonly #addedPattern: RegExp | null;
  readonly #firstAddedId: number;
  #words = new Map<string, readonly number[]>();

  constructor(file: TokenizerFile) {
    const alphabet = byteAlphabet();
    const byteOf = new Map(alphabet.map((char, byte) => [char, byte]));
    const vocab = new Map(Object.entries(file.model.vocab));
    for (const [piece, id] of vocab) {
      this.#pieces[id] = piece;
      this.#bytes[id] = Uint8Array.from(piece, (char) => byteOf.get(char) ?? 0x3f);
    }
    this.#byteIds = alphabet.map((char) => vocab.get(char) ?? 0);
    file.model.merges.forEach((line, rank) => {
      const [left = "", right = ""] = line.split(" ");
      const pair = vocab.get(left)! * PAIR_SHIFT + vocab.get(right)!;
      if (!this.#merges.has(pair)) this.#merges.set(pair, rank * PAIR_SHIFT + vocab.get(left + right)!);
    });
    this.#firstAddedId = Math.min(...file.added_tokens.map((token) => token.id), vocab.size);
    for (const { id, content } of file.added_tokens) {
      this.added.set(content, id);
      this.#pieces[id] = content;
      this.#bytes[id] = new TextEncoder().encode(content);
    }
    this.size = this.#pieces.length;
    const escaped = [...this.added.keys()].map((content) => content.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.#addedPattern = escaped.length > 0 ? new RegExp(`(${escaped.join("|")})`) : null;
  }

  encode(text: string): number[] {
    const ids: number[] = [];
    const parts = this.#addedPattern === null ? [text] : text.split(this.#addedPattern);
    for (let i = 0; i < parts.length; i++) {
      if (i % 2 === 1) ids.push(this.added.get(parts[i]!)!);
      else if (parts[i] !== "") this.#encodeText(parts[i]!, ids);
    }
    return ids;
  }

  #encodeText(text: string, ids: number[]): void {
    const pieces = text.match(PIECES);
    if (pieces === null) return;
    for (const piece of pieces) {
      let known = this.#words.get(piece);
      if (known === undefined) {
        known = this.#merge(Buffer.from(piece));
        if (this.#words.size >= WORD_CACHE_SIZE) this.#words = new Map();
        this.#words.set(piece, known);
      }
      for (let i = 0; i < known.length; i++) ids.push(known[i]!);
    }
  }

  /** Joins the pair of lowest rank until none is left. A piece is a word, so the quadratic loop is short. */
  #merge(bytes: Uint8Array): number[] {
    const ids = Array.from(bytes, (byte) => this.#byteIds[byte]!);
    for (;;) {
      let best = Number.POSITIVE_INFINITY;
      let at = -1;
      for (let i = 1; i < ids.length; i++) {
        const found = this.#merges.get(ids[i - 1]! * PAIR_SHIFT + ids[i]!);
        if (found !== undefined && found < best) {
          best = found;
          at = i;
        }
      }
      if (at < 0) return ids;
      ids.splice(at - 1, 2, best % PAIR_SHIFT);
    }
  }

  decode(ids: ArrayLike<number>): string {
    const parts: Uint8Array[] = [];
    for (let i = 0; i < ids.length; i++) parts.push(this.bytes(ids[i]!));
    return Buffer.concat(parts).toString("utf8");
  }

  bytes(id: number): Uint8Array {
    return this.#bytes[id] ?? EMPTY;
  }

  piece(id: number): string {
    return this.#pieces[id] ?? "";
  }

  isAdded(id: number): boolean {
    return id >= this.#firstAddedId && id < this.size;
  }
}

const EMPTY = new Uint8Array(0);

/** Reads a byte-level BPE tokenizer.json. Errors: `unsupported_tokenizer`. */
export function loadTokenizer(path: string): Tokenizer {
  const file = JSON.parse(readFileSync(path, "utf8")) as TokenizerFile & {
    readonly model: { readonly type: string };
    readonly pre_tokenizer: { readonly type: string; readonly use_regex?: boolean } | null;
    readonly normalizer: unknown;
  };
  const { type, use_regex: useRegex } = file.pre_tokenizer ?? { type: "none" };
  if (file.model.type !== "BPE" || type !== "ByteLevel" || useRegex === false || file.normalizer !== null) {
    throw new KedgeError(
      "unsupported_tokenizer",
      "The mock engine reads byte-level BPE tokenizers with the ByteLevel pre-tokenizer and no normalizer only.",
    );
  }
  return new ByteLevelBpe(file);
}
