/** `kedge card`: derives a model's card from its files and prints it. */

import { readFile, stat } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { Command, InvalidArgumentError, Option } from "commander";
import { KedgeError } from "../../errors/index.ts";
import { DEFAULT_UNIT_SIZE, deriveModelCard } from "../../prefix/card.ts";
import type { ModelCard, PrefixSchemeName } from "../../prefix/types.ts";

export interface CardOptions {
  /** Canonical model id; default: the directory's name. */
  readonly model?: string;
  readonly scheme?: PrefixSchemeName;
  /** Bytes per chunk or tokens per key block. */
  readonly unit?: number;
  /** IANA name. */
  readonly timeZone?: string;
}

/**
 * Reads a model directory, or a tokenizer.json with the files beside it, and derives the card.
 * Errors: `KedgeError` `config_invalid` naming the file at fault, `unsupported_tokenizer`.
 */
export async function readModelCard(path: string, options: CardOptions = {}): Promise<ModelCard> {
  const directory = (await isDirectory(path)) ? resolve(path) : dirname(resolve(path));
  const tokenizerFile = (await isDirectory(path)) ? join(path, "tokenizer.json") : path;
  const tokenizerJson = await readJson(tokenizerFile);
  if (tokenizerJson === undefined) {
    throw new KedgeError(
      "config_invalid",
      `There is no ${tokenizerFile}. Give a model directory in Hugging Face's layout, or its tokenizer.json.`,
    );
  }
  return deriveModelCard({
    model: options.model ?? basename(directory),
    tokenizerJson,
    tokenizerConfig: await readJson(join(directory, "tokenizer_config.json")),
    config: await readJson(join(directory, "config.json")),
    chatTemplateFile: await readChatTemplate(directory),
    ...(options.scheme !== undefined && { scheme: options.scheme }),
    ...(options.unit !== undefined && { unitSize: options.unit }),
    ...(options.timeZone !== undefined && { timeZone: options.timeZone }),
  });
}

/** `chat_template.jinja`, or the older `chat_template.json` of multimodal models; null if there is neither. */
async function readChatTemplate(directory: string): Promise<string | null> {
  const text = await readText(join(directory, "chat_template.jinja"));
  if (text !== null) return text;
  const json = await readJson(join(directory, "chat_template.json"));
  const hasTemplate = typeof json === "object" && json !== null && "chat_template" in json;
  return hasTemplate && typeof json.chat_template === "string" ? json.chat_template : null;
}

async function isDirectory(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch {
    throw new KedgeError("config_invalid", `There is no file or directory ${path}.`);
  }
}

/** Null if the file is not there. */
async function readText(path: string): Promise<string | null> {
  try {
    return await readFile(path, "utf8");
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return null;
    throw new KedgeError("config_invalid", `${path} cannot be read.`, { cause: error });
  }
}

/** Undefined if the file is not there. */
async function readJson(path: string): Promise<unknown> {
  const text = await readText(path);
  if (text === null) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new KedgeError("config_invalid", `${path} is not valid JSON.`, { cause: error });
  }
}

function parseUnit(text: string): number {
  if (!/^[1-9]\d{0,5}$/.test(text)) throw new InvalidArgumentError("It must be a whole number from 1.");
  return Number(text);
}

export function cardCommand(): Command {
  return new Command("card")
    .description(
      "Derive a model's card (template, BOS rule, text rules) from its files and print it as JSON.",
    )
    .argument("<path>", "model directory, or a tokenizer.json with tokenizer_config.json beside it")
    .option(
      "--model <id>",
      "canonical model id, equal on gateways and agents (default: the directory's name)",
    )
    .addOption(
      new Option("--scheme <scheme>", "what prefix keys are made of")
        .choices(["bytes", "tokens"])
        .default("bytes"),
    )
    .option(
      "--unit <n>",
      `bytes per chunk or tokens per key block (default: ${DEFAULT_UNIT_SIZE.bytes} bytes, ${DEFAULT_UNIT_SIZE.tokens} tokens)`,
      parseUnit,
    )
    .option("--time-zone <zone>", "IANA zone in which templates print dates", "UTC")
    .option("--json", "print on one line")
    .action(async (path: string, options: CardOptions & { readonly json?: boolean }) => {
      const card = await readModelCard(path, options);
      process.stdout.write(`${JSON.stringify(card, null, options.json ? undefined : 2)}\n`);
    });
}
