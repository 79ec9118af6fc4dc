/** Finds the mock model's folder, from the sources and from a built package alike. */

import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { ModelCard } from "../../../src/prefix/types.ts";

/** The package's root: the nearest folder upwards that has a package.json. */
function packageRoot(): string {
  let directory = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(directory, "package.json")) && dirname(directory) !== directory) {
    directory = dirname(directory);
  }
  return directory;
}

/** Folder of the mock's model: tokenizer.json, tokenizer_config.json, config.json, generation_config.json. */
export const MODEL_DIR = join(packageRoot(), "gpu-agent", "engines", "mock", "model");

/** Path of a file in the model's folder. */
export function modelPath(name: string): string {
  return join(MODEL_DIR, name);
}

/** Token ids of the words that the mock speaks in. */
export function wordIds(): readonly number[] {
  return JSON.parse(readFileSync(modelPath("words.json"), "utf8")) as number[];
}

interface TokenizerConfig {
  readonly chat_template: string;
  readonly eos_token: string;
  readonly pad_token: string;
}

/** What a renderer needs to know of the mock's model. */
export function modelCard(): ModelCard {
  const config = JSON.parse(readFileSync(modelPath("tokenizer_config.json"), "utf8")) as TokenizerConfig;
  return {
    version: 1,
    model: "mock",
    scheme: "bytes",
    unitSize: 128,
    chatTemplate: config.chat_template,
    namedTemplates: {},
    contentFormat: "string",
    bosToken: null,
    eosToken: config.eos_token,
    specialTokens: { pad_token: config.pad_token },
    addedPrefix: null,
    normalizer: null,
    strippingTokens: [],
    timeZone: "UTC",
    bytesPerToken: 4,
    maxModelLen: null,
  };
}
