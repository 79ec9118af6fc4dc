/** Finds the mock model's folder, from the sources and from a built package alike. */

import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

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
