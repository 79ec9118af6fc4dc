/** A deployment's settings: text variables and secrets, by their environment names (`KEDGE_*`, `DYN_*`, `UPSTASH_*`). */

import { type KedgeConfig, missingSettings } from "../src/config/index.ts";
import { KedgeError } from "../src/errors/index.ts";

/** Bindings that are no text are left out. */
export function textSettings(env: Readonly<Record<string, unknown>>): Record<string, string> {
  const texts = Object.entries(env).filter(
    (entry): entry is [string, string] => typeof entry[1] === "string",
  );
  return Object.fromEntries(texts);
}

/** `who`: e.g. `gateway`. Errors: `service_unconfigured` with every one that is missing, and what it is. */
export function requireSettings(config: KedgeConfig, paths: readonly string[], who: string): void {
  const missing = missingSettings(config, paths).map(({ env, help }) => `${env[0]} (${help})`);
  if (missing.length === 0) return;
  throw new KedgeError("service_unconfigured", `This ${who} lacks settings: ${missing.join(", ")}.`);
}
