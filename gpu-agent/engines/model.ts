/** A model's files on disk → its card and the keyer that turns the engine's token ids into prefix keys. */

import { readFile, stat } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { KedgeError } from "../../src/errors/index.ts";
import { createBytesKeyer } from "../../src/prefix/bytes-scheme.ts";
import { deriveModelCard } from "../../src/prefix/card.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import type { ChainKeyer } from "../../src/prefix/keyer.ts";
import { createTokensKeyer } from "../../src/prefix/token-scheme.ts";
import type { ModelCard, PrefixSchemeName } from "../../src/prefix/types.ts";
import { vocabularyFromTokenizerJson } from "../../src/prefix/vocabulary.ts";

export interface AgentModel {
  readonly card: ModelCard;
  readonly keyer: ChainKeyer;
}

export interface ModelFilesOptions {
  /** Folder with tokenizer.json, or that file itself; tokenizer_config.json, config.json and chat_template.jinja beside it are read if there. */
  readonly path: string;
  /** Canonical id; default: the folder's name. */
  readonly model?: string;
  readonly scheme?: PrefixSchemeName;
  readonly unitSize?: number;
  readonly timeZone?: string;
}

/** Errors: `config_invalid` naming the file, `unsupported_tokenizer`. */
export async function loadAgentModel({ path, ...options }: ModelFilesOptions): Promise<AgentModel> {
  const isFolder = await stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );
  const folder = resolve(isFolder ? path : dirname(path));
  const tokenizerJson = await readJson(isFolder ? join(folder, "tokenizer.json") : path);
  if (tokenizerJson === null) {
    throw new KedgeError("config_invalid", `There is no tokenizer.json at ${path}.`, { param: "model" });
  }
  const card = deriveModelCard({
    ...options,
    model: options.model ?? basename(folder),
    tokenizerJson,
    tokenizerConfig: (await readJson(join(folder, "tokenizer_config.json"))) ?? undefined,
    config: (await readJson(join(folder, "config.json"))) ?? undefined,
    chatTemplateFile: await readText(join(folder, "chat_template.jinja")),
  });
  return { card, keyer: await createKeyer(card, tokenizerJson) };
}

/** The keyer of a card. `tokenizerJson` is needed by scheme `bytes` only. Errors: `unsupported_tokenizer`, `config_invalid`. */
export async function createKeyer(card: ModelCard, tokenizerJson: unknown): Promise<ChainKeyer> {
  const hasher = await createHasher();
  if (card.scheme === "tokens") return createTokensKeyer(hasher, card.unitSize);
  return createBytesKeyer(hasher, vocabularyFromTokenizerJson(tokenizerJson), card.unitSize);
}

async function readText(path: string): Promise<string | null> {
  try {
    return await readFile(path, "utf8");
  } catch (thrown) {
    if (thrown instanceof Error && "code" in thrown && thrown.code === "ENOENT") return null;
    throw new KedgeError("config_invalid", `${path} cannot be read.`, { cause: thrown, param: "model" });
  }
}

async function readJson(path: string): Promise<unknown> {
  const text = await readText(path);
  if (text === null) return null;
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new KedgeError("config_invalid", `${path} is not valid JSON.`, { cause, param: "model" });
  }
}
