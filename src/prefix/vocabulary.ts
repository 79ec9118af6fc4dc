/** A model's vocabulary as bytes: what each token id adds to the text (scheme `bytes`, agent's side). */

import {
  type AddedToken,
  type Component,
  isTokenId,
  malformed,
  readTokenizerFile,
  type Spelling,
  spellingOf,
  unsupported,
} from "./tokenizer-file.ts";

/**
 * Token id → bytes, in one buffer. The concatenation of a prompt's token bytes is its canonical text (see
 * canonical-text.ts) in UTF-8, the space that SentencePiece-style tokenizers put in front included: it is part of the text there.
 */
export class Vocabulary {
  /** All tokens' bytes, in order of id. */
  readonly bytes: Uint8Array;
  /** Token `id` is `bytes[offsets[id] … offsets[id + 1] − 1]`; ids that no token has are empty. */
  readonly offsets: Uint32Array;

  constructor(bytes: Uint8Array, offsets: Uint32Array) {
    this.bytes = bytes;
    this.offsets = offsets;
  }

  /** Whether `id` names a token. Ids that pad a model's embedding table do not. */
  has(id: number): boolean {
    // Out of range both are undefined and the comparison is false.
    return this.offsets[id]! < this.offsets[id + 1]!;
  }

  /** The bytes of a sequence of ids; null if one is not in the vocabulary. */
  decode(tokenIds: ArrayLike<number>): Uint8Array | null {
    let length = 0;
    for (let i = 0; i < tokenIds.length; i++) {
      const id = tokenIds[i]!;
      if (!this.has(id)) return null;
      length += this.offsets[id + 1]! - this.offsets[id]!;
    }
    const text = new Uint8Array(length);
    let at = 0;
    for (let i = 0; i < tokenIds.length; i++) {
      const id = tokenIds[i]!;
      const end = this.offsets[id + 1]!;
      for (let from = this.offsets[id]!; from < end; from++) text[at++] = this.bytes[from]!;
    }
    return text;
  }
}

/**
 * The vocabulary of a parsed tokenizer.json. Byte-level BPE is read exactly by GPT-2's byte alphabet; SentencePiece-style
 * BPE and Unigram with byte fallback by rule (▁ is a space, `<0xNN>` a byte); added tokens are their own text.
 * Errors: `unsupported_tokenizer` for any other kind, naming the scheme to use; `config_invalid` if malformed.
 */
export function vocabularyFromTokenizerJson(json: unknown): Vocabulary {
  const file = readTokenizerFile(json);
  const { style, leadingSpace } = spellingOf(file);
  const pieces = readPieces(file.model);
  checkAllBytes(pieces, style);
  const spell = style === "byte-level" ? byteLevelSpeller() : sentencePieceSpeller();
  return pack(pieces, addedTexts(file.addedTokens, leadingSpace), spell);
}

/** Writes a piece's bytes into `target` at `at` and returns the end. */
type Speller = (piece: string, target: Uint8Array, at: number) => number;

/** Piece by id; BPE's map or Unigram's list of [piece, score]. */
function readPieces(model: Component): (string | undefined)[] {
  const { vocab } = model;
  const pieces: (string | undefined)[] = [];
  if (Array.isArray(vocab)) {
    for (const entry of vocab) {
      const piece: unknown = Array.isArray(entry) ? entry[0] : null;
      if (typeof piece !== "string") throw malformed("a vocabulary entry has no text");
      pieces.push(piece);
    }
    return pieces;
  }
  if (typeof vocab !== "object" || vocab === null) throw malformed("the model has no vocabulary");
  for (const [piece, id] of Object.entries(vocab)) {
    if (!isTokenId(id)) throw malformed(`the vocabulary's id of ${JSON.stringify(piece)} is not a number`);
    pieces[id] = piece;
  }
  return pieces;
}

/** A text that the vocabulary cannot spell would yield an unknown token, whose bytes are lost. */
function checkAllBytes(pieces: readonly (string | undefined)[], style: "byte-level" | "sentencepiece"): void {
  const present = new Set(pieces);
  const alphabet = byteAlphabet();
  for (let byte = 0; byte < 256; byte++) {
    const hex = byte.toString(16).toUpperCase().padStart(2, "0");
    const piece = style === "byte-level" ? alphabet[byte]! : `<0x${hex}>`;
    if (!present.has(piece)) throw unsupported(`no token for byte 0x${hex}`);
  }
}

/** Text by id. A normalised token under the `Prepend` normaliser was itself given the space, and matches with it. */
function addedTexts(
  addedTokens: readonly AddedToken[],
  leadingSpace: Spelling["leadingSpace"],
): Map<number, string> {
  const withSpace = (token: AddedToken): boolean => token.normalized && leadingSpace === "always";
  return new Map(
    addedTokens.map((token) => [token.id, withSpace(token) ? ` ${token.content}` : token.content]),
  );
}

function pack(
  pieces: readonly (string | undefined)[],
  added: ReadonlyMap<number, string>,
  spell: Speller,
): Vocabulary {
  let size = pieces.length;
  for (const id of added.keys()) size = Math.max(size, id + 1);
  // Every UTF-16 unit takes at most three bytes.
  let most = 0;
  for (let id = 0; id < size; id++) most += 3 * (added.get(id) ?? pieces[id] ?? "").length;
  const bytes = new Uint8Array(most);
  const offsets = new Uint32Array(size + 1);
  const encoder = new TextEncoder();
  let at = 0;
  for (let id = 0; id < size; id++) {
    const content = added.get(id);
    const piece = pieces[id];
    if (content !== undefined) at += encoder.encodeInto(content, bytes.subarray(at)).written;
    else if (piece !== undefined) at = spell(piece, bytes, at);
    offsets[id + 1] = at;
  }
  return new Vocabulary(bytes.slice(0, at), offsets);
}

/**
 * GPT-2's alphabet, byte → character: printable Latin-1 stands for itself, the other 68 bytes take the characters from
 * U+0100 on, in order.
 */
function byteAlphabet(): string[] {
  const alphabet: string[] = [];
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet.push(String.fromCharCode(printable ? byte : next++));
  }
  return alphabet;
}

function byteLevelSpeller(): Speller {
  const byteOf = new Int16Array(65_536).fill(-1);
  for (const [byte, character] of byteAlphabet().entries()) byteOf[character.charCodeAt(0)] = byte;
  const encoder = new TextEncoder();
  return (piece, target, at) => {
    for (let i = 0; i < piece.length; i++) {
      const byte = byteOf[piece.charCodeAt(i)]!;
      // As the byte-level decoder does: a piece with any other character stands for its own text.
      if (byte < 0) return at + encoder.encodeInto(piece, target.subarray(at)).written;
      target[at + i] = byte;
    }
    return at + piece.length;
  };
}

function sentencePieceSpeller(): Speller {
  const encoder = new TextEncoder();
  return (piece, target, at) => {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(piece);
    if (byte !== null) {
      target[at] = Number.parseInt(byte[1]!, 16);
      return at + 1;
    }
    return at + encoder.encodeInto(piece.replaceAll("▁", " "), target.subarray(at)).written;
  };
}
