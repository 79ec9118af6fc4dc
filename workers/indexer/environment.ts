/** What a deployment gives to the indexer Worker: settings as text, and the binding of its Durable Object. */

import { type KedgeConfig, loadConfig } from "../../src/config/index.ts";
import { KedgeError } from "../../src/errors/index.ts";

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
  const texts = Object.entries(env).filter(
    (entry): entry is [string, string] => typeof entry[1] === "string",
  );
  const config = loadConfig(Object.fromEntries(texts));
  const missing: string[] = [];
  if (config.store.url === null)
    missing.push("KEDGE_REDIS_URL (Upstash REST endpoint, or that of kedge redis-rest)");
  if (config.store.token === null) missing.push("KEDGE_REDIS_TOKEN (its token)");
  if (config.nats.url === null) missing.push("KEDGE_NATS_URL (wss:// address of NATS)");
  if (missing.length === 0) return config;
  throw new KedgeError("service_unconfigured", `This indexer lacks settings: ${missing.join(", ")}.`);
}
