/** Finds the mock model's folder, from the sources and from a built package alike. */

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { deriveModelCard } from "../../../src/prefix/card.ts";
import type { ModelCard } from "../../../src/prefix/types.ts";

/** Folder of the mock's model: tokenizer.json, tokenizer_config.json, config.json, generation_config.json. */
export const MODEL_DIR = fileURLToPath(new URL("./model", import.meta.url));

/** Path of a file in the model's folder. */
export function modelPath(name: string): string {
  return join(MODEL_DIR, name);
}

/** Token ids of the words that the mock speaks in. */
export function wordIds(): readonly number[] {
  return JSON.parse(readFileSync(modelPath("words.json"), "utf8")) as number[];
}

/** The model's card, derived from its files as any model's is. */
export function modelCard(model = "mock"): ModelCard {
  const read = (name: string): unknown => JSON.parse(readFileSync(modelPath(name), "utf8"));
  return deriveModelCard({
    model,
    tokenizerJson: read("tokenizer.json"),
    tokenizerConfig: read("tokenizer_config.json"),
    config: read("config.json"),
  });
}
