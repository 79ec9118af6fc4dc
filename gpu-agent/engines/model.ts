/** A model's files on disk → its card, and the keyer that turns the engine's token ids into prefix keys. */

import { readFile, stat } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { KedgeError } from "../../src/errors/index.ts";
import { createBytesKeyer } from "../../src/prefix/bytes-scheme.ts";
import { deriveModelCard } from "../../src/prefix/card.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import type { ChainKeyer } from "../../src/prefix/keyer.ts";
import { createTokensKeyer } from "../../src/prefix/token-scheme.ts";
import type { ModelCard, PrefixSchemeName } from "../../src/prefix/types.ts";
import { type Vocabulary, vocabularyFromTokenizerJson } from "../../src/prefix/vocabulary.ts";

/** What an agent needs to know of a model. */
export interface AgentModel {
  readonly card: ModelCard;
  readonly keyer: ChainKeyer;
}

/** A model's parsed files; undefined or null where a file is not there. */
export interface ModelFiles {
  readonly folder: string;
  readonly tokenizerJson: unknown;
  readonly tokenizerConfig: unknown;
  readonly config: unknown;
  readonly chatTemplateFile: string | null;
}

export interface ModelCardOptions {
  /** Canonical id; default: the folder's name. */
  readonly model?: string;
  readonly scheme?: PrefixSchemeName;
  /** Bytes per chunk or tokens per key block. */
  readonly unitSize?: number;
  /** IANA name. */
  readonly timeZone?: string;
}

export interface ModelFilesOptions extends ModelCardOptions {
  /** Folder in Hugging Face's layout, or its tokenizer.json. */
  readonly path: string;
}

/** A model with all that its files give; `vocabulary` under scheme `bytes` only. */
export interface FileModel extends AgentModel {
  readonly files: ModelFiles;
  readonly vocabulary: Vocabulary | null;
}

/** Errors: `config_invalid` naming the file, `unsupported_tokenizer`. */
export async function loadAgentModel({ path, ...options }: ModelFilesOptions): Promise<FileModel> {
  const files = await readModelFiles(path);
  const card = cardOf(files, options);
  const hasher = await createHasher();
  if (card.scheme === "tokens") {
    return { card, files, keyer: createTokensKeyer(hasher, card.unitSize), vocabulary: null };
  }
  const vocabulary = vocabularyFromTokenizerJson(files.tokenizerJson);
  return { card, files, keyer: createBytesKeyer(hasher, vocabulary, card.unitSize), vocabulary };
}

/** Errors: `config_invalid`, `unsupported_tokenizer`. */
export function cardOf(files: ModelFiles, options: ModelCardOptions = {}): ModelCard {
  const { folder, ...parsed } = files;
  return deriveModelCard({ ...options, ...parsed, model: options.model ?? basename(folder) });
}

/** Reads a model folder, or a tokenizer.json with the files beside it. Errors: `config_invalid` naming the file at fault. */
export async function readModelFiles(path: string): Promise<ModelFiles> {
  const isFolder = await isDirectory(path);
  const folder = resolve(isFolder ? path : dirname(path));
  const tokenizerFile = isFolder ? join(path, "tokenizer.json") : path;
  const tokenizerJson = await readJson(tokenizerFile);
  if (tokenizerJson === undefined) {
    throw invalid(
      `There is no ${tokenizerFile}. Give a model folder in Hugging Face's layout, or its tokenizer.json.`,
    );
  }
  return {
    folder,
    tokenizerJson,
    tokenizerConfig: await readJson(join(folder, "tokenizer_config.json")),
    config: await readJson(join(folder, "config.json")),
    chatTemplateFile: await readChatTemplate(folder),
  };
}

/** `chat_template.jinja`, or the older `chat_template.json` of multimodal models; null if there is neither. */
async function readChatTemplate(folder: string): Promise<string | null> {
  const text = await readText(join(folder, "chat_template.jinja"));
  if (text !== null) return text;
  const json = await readJson(join(folder, "chat_template.json"));
  const hasTemplate = typeof json === "object" && json !== null && "chat_template" in json;
  return hasTemplate && typeof json.chat_template === "string" ? json.chat_template : null;
}

async function isDirectory(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch (cause) {
    throw invalid(`There is no file or folder ${path}.`, cause);
  }
}

/** Null if the file is not there. */
async function readText(path: string): Promise<string | null> {
  try {
    return await readFile(path, "utf8");
  } catch (cause) {
    if (cause instanceof Error && "code" in cause && cause.code === "ENOENT") return null;
    throw invalid(`${path} cannot be read.`, cause);
  }
}

/** Undefined if the file is not there. */
async function readJson(path: string): Promise<unknown> {
  const text = await readText(path);
  if (text === null) return undefined;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw invalid(`${path} is not valid JSON.`, cause);
  }
}

function invalid(message: string, cause?: unknown): KedgeError {
  return new KedgeError("config_invalid", message, { param: "model", cause });
}
