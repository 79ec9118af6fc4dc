/** Settings that a command cannot do without. */

import { type KedgeConfig, missingSettings } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";

/** `who`: e.g. `An indexer`. Errors: `config_invalid` with every one that is missing, and what it is. */
export function requireSettings(config: KedgeConfig, paths: readonly string[], who: string): void {
  const missing = missingSettings(config, paths);
  if (missing.length === 0) return;
  const lines = missing.map(({ env, flag, help }) => `  ${env[0]} (--${flag}): ${help}`);
  throw new KedgeError(
    "config_invalid",
    `${who} needs:\n${lines.join("\n")}\nFor everything in one process: kedge up.`,
  );
}
