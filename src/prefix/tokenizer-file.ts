/** Reads a Hugging Face `tokenizer.json` and judges whether its tokens spell text byte for byte, and by which rules. */

import { KedgeError } from "../errors/index.ts";
import type { ModelCard } from "./types.ts";

/** One part of a tokenizer: `{type, …}` as in the file. */
export interface Component {
  readonly type: string;
  readonly [field: string]: unknown;
}

export interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly lstrip: boolean;
  readonly rstrip: boolean;
  /** Looked for in the normalised text; otherwise in the raw text, before normalisation. */
  readonly normalized: boolean;
}

/** The file's parts; `Sequence` components are flattened. */
export interface TokenizerFile {
  readonly model: Component;
  readonly addedTokens: readonly AddedToken[];
  readonly normalizers: readonly Component[];
  readonly preTokenizers: readonly Component[];
  readonly decoders: readonly Component[];
}

/** How tokens spell bytes. `byte-level`: GPT-2's byte alphabet. `sentencepiece`: ▁ for space, `<0xNN>` for bytes. */
export interface Spelling {
  readonly style: "byte-level" | "sentencepiece";
  readonly normalizer: ModelCard["normalizer"];
  readonly leadingSpace: NonNullable<ModelCard["leadingSpace"]> | null;
}

const META_SPACE = "▁";

/** Pre-tokenizers that only cut: the pieces, put together, are the text. */
const CUTTING = new Set(["Split", "Digits", "Punctuation", "UnicodeScripts", "FixedLength"]);

const KNOWN_DECODERS = new Set(["ByteLevel", "ByteFallback", "Fuse", "Replace", "Metaspace", "Strip"]);

/** Errors: `config_invalid` if this is no tokenizer.json. `json` is the parsed file. */
export function readTokenizerFile(json: unknown): TokenizerFile {
  if (!isRecord(json) || !isComponent(json.model)) throw malformed("it has no `model`");
  const added = json.added_tokens ?? [];
  if (!Array.isArray(added)) throw malformed("`added_tokens` is not a list");
  return {
    model: json.model,
    addedTokens: added.map(readAddedToken),
    normalizers: flatten(json.normalizer, "normalizers"),
    preTokenizers: flatten(json.pre_tokenizer, "pretokenizers"),
    decoders: flatten(json.decoder, "decoders"),
  };
}

/**
 * The tokenizer's spelling rules.
 * Errors: `unsupported_tokenizer` where token ids do not determine the text's bytes (lossy normalisers, WordPiece, no byte
 * fallback) or a part is unknown; the fix is the scheme `tokens`.
 */
export function spellingOf(file: TokenizerFile): Spelling {
  checkModel(file.model);
  for (const { type } of file.decoders) {
    if (!KNOWN_DECODERS.has(type)) throw unsupported(`decoder ${type}`);
  }
  const normalized = readNormalizers(file.normalizers);
  const cut = readPreTokenizers(file.preTokenizers);
  const metaSpace = normalized.metaSpace || cut.metaSpace;
  if (cut.byteLevel === metaSpace) {
    throw unsupported(
      metaSpace ? "both byte-level and ▁ spelling" : "tokens that are neither byte-level nor ▁ spelled",
    );
  }
  if (metaSpace && file.model.byte_fallback !== true) throw unsupported("no byte fallback");
  if (cut.byteLevel && file.model.type !== "BPE") throw unsupported(`byte-level ${file.model.type}`);
  return {
    style: metaSpace ? "sentencepiece" : "byte-level",
    normalizer: normalized.nfc ? "NFC" : null,
    leadingSpace: normalized.prepends ? "always" : cut.leadingSpace,
  };
}

/** What of a model's card depends on how its tokenizer treats text. Errors: as {@link spellingOf}. */
export function textRules(
  file: TokenizerFile,
): Pick<ModelCard, "normalizer" | "strippingTokens" | "leadingSpace" | "addedTokens"> {
  const { normalizer, leadingSpace } = spellingOf(file);
  // NFC and `Prepend` work before normalised added tokens are looked for, the other rules after.
  const bounds = file.addedTokens.filter((token) => !token.normalized || isPreTokenizerRule(leadingSpace));
  const stretches = normalizer !== null || leadingSpace !== null;
  return {
    normalizer,
    strippingTokens: file.addedTokens
      .filter((token) => token.lstrip || token.rstrip)
      .map(({ content, lstrip, rstrip }) => ({ content, lstrip, rstrip })),
    leadingSpace,
    ...(stretches && { addedTokens: bounds.map((token) => token.content) }),
  };
}

function isPreTokenizerRule(leadingSpace: Spelling["leadingSpace"]): boolean {
  return leadingSpace === "unless-space" || leadingSpace === "first-unless-space";
}

function checkModel(model: Component): void {
  if (model.type !== "BPE" && model.type !== "Unigram") throw unsupported(`model ${model.type}`);
  for (const affix of ["continuing_subword_prefix", "end_of_word_suffix"]) {
    if (model[affix]) throw unsupported(affix);
  }
}

function readNormalizers(parts: readonly Component[]): {
  nfc: boolean;
  metaSpace: boolean;
  prepends: boolean;
} {
  const found = { nfc: false, metaSpace: false, prepends: false };
  for (const part of parts) {
    if (part.type === "NFC") found.nfc = true;
    else if (part.type === "Prepend" && part.prepend === META_SPACE) found.prepends = true;
    else if (isSpaceReplacement(part)) found.metaSpace = true;
    else throw unsupported(`normalizer ${part.type}`);
  }
  if (found.prepends && !found.metaSpace) throw unsupported("normalizer Prepend without ▁ for space");
  return found;
}

function isSpaceReplacement(part: Component): boolean {
  return (
    part.type === "Replace" &&
    part.content === META_SPACE &&
    isRecord(part.pattern) &&
    part.pattern.String === " "
  );
}

function readPreTokenizers(parts: readonly Component[]): {
  byteLevel: boolean;
  metaSpace: boolean;
  leadingSpace: Spelling["leadingSpace"];
} {
  let byteLevel = false;
  let metaSpace = false;
  let leadingSpace: Spelling["leadingSpace"] = null;
  for (const [index, part] of parts.entries()) {
    if (part.type === "ByteLevel") {
      byteLevel = true;
      if (part.add_prefix_space !== false) leadingSpace = "unless-space";
    } else if (part.type === "Metaspace") {
      if (part.replacement !== META_SPACE) throw unsupported("Metaspace with another replacement than ▁");
      metaSpace = true;
      leadingSpace = metaspaceRule(part);
    } else if (!CUTTING.has(part.type) || part.behavior === "Removed") {
      throw unsupported(`pre-tokenizer ${part.type}`);
    }
    // After a cut the space would come before every piece, which no rule of the card can say.
    if (leadingSpace !== null && index > 0) throw unsupported("a prefix space added to pieces of text");
  }
  return { byteLevel, metaSpace, leadingSpace };
}

function metaspaceRule(part: Component): Spelling["leadingSpace"] {
  const scheme = part.prepend_scheme ?? (part.add_prefix_space === false ? "never" : "always");
  if (scheme === "never") return null;
  return scheme === "first" ? "first-unless-space" : "unless-space";
}

function readAddedToken(entry: unknown): AddedToken {
  if (!isRecord(entry) || typeof entry.content !== "string" || !isTokenId(entry.id)) {
    throw malformed("an added token has no id or content");
  }
  if (entry.single_word === true) throw unsupported("an added token that only matches whole words");
  return {
    id: entry.id,
    content: entry.content,
    lstrip: entry.lstrip === true,
    rstrip: entry.rstrip === true,
    normalized: entry.normalized === true,
  };
}

function flatten(node: unknown, listField: string): Component[] {
  if (node === null || node === undefined) return [];
  if (!isComponent(node)) throw malformed(`a part of its ${listField} has no type`);
  if (node.type !== "Sequence") return [node];
  const list = node[listField];
  if (!Array.isArray(list)) throw malformed(`a Sequence has no \`${listField}\``);
  return list.flatMap((child) => flatten(child, listField));
}

/** Whether a value is a usable token id. */
export function isTokenId(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 && value < 2 ** 31;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isComponent(value: unknown): value is Component {
  return isRecord(value) && typeof value.type === "string";
}

/** A tokenizer that cannot serve the scheme `bytes`. */
export function unsupported(what: string): KedgeError {
  return new KedgeError(
    "unsupported_tokenizer",
    `The scheme "bytes" cannot serve this tokenizer (${what}): its token ids do not determine the prompt's bytes. ` +
      `Use the scheme "tokens" for this model.`,
    { param: "scheme" },
  );
}

/** A file that is no tokenizer.json. */
export function malformed(why: string): KedgeError {
  return new KedgeError("config_invalid", `This is not a Hugging Face tokenizer.json: ${why}.`);
}
