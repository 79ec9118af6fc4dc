/** What a deployment gives to the indexer Worker: settings as text, and the binding of its Durable Object. */

import { type KedgeConfig, loadConfig } from "../../src/config/index.ts";
import { requireSettings, textSettings } from "../settings.ts";

export interface ObjectStub {
  fetch(input: Request | string, init?: RequestInit): Promise<Response>;
}

export interface ObjectNamespace {
  idFromName(name: string): unknown;
  get(id: unknown, options?: { readonly locationHint?: string }): ObjectStub;
}

/** Text variables and secrets are settings by their environment names (`KEDGE_*`, `DYN_*`, `UPSTASH_*`). */
export interface IndexerBindings {
  readonly [name: string]: unknown;
  readonly INDEXER: ObjectNamespace;
  /** Optional: where the object is to run, e.g. `weur`; near the region's Redis. */
  readonly INDEXER_LOCATION?: string;
}

/** Errors: `config_invalid` with each setting at fault, `service_unconfigured` with all that are missing. */
export function readConfig(env: IndexerBindings): KedgeConfig {
  const config = loadConfig(textSettings(env));
  requireSettings(config, ["store.url", "store.token", "nats.url"], "indexer");
  return config;
}
