/** What a deployment gives to the gateway Worker: settings as text, and a few bindings. */

import { type KedgeConfig, loadConfig } from "../../src/config/index.ts";
import { KedgeError } from "../../src/errors/index.ts";
import type { Fetcher } from "../../src/gateway/fetch-transport.ts";

export interface KeyValueStore {
  get(key: string): Promise<string | null>;
}

/** Text variables and secrets are settings by their environment names (`KEDGE_*`, `DYN_*`, `UPSTASH_*`). */
export interface GatewayBindings {
  readonly [name: string]: unknown;
  /** Optional: holds the seed fleet. */
  readonly KEDGE_KV?: KeyValueStore;
  /** Optional: what reaches agents instead of the public network, e.g. a VPC network or a client certificate. */
  readonly KEDGE_AGENTS?: Fetcher;
}

export interface ExecutionContext {
  waitUntil(work: Promise<unknown>): void;
}

/** An isolate has 128 MB for all of its requests; bodies and their parsed forms get a share of that. */
const DEFAULTS = {
  KEDGE_BODY_LIMIT_BYTES: String(8 * 1024 * 1024),
  KEDGE_INFLIGHT_BODY_BYTES: String(32 * 1024 * 1024),
};

/** A Worker listens on no address of its own: it is never on loopback, so that keys are needed and explanations are off by default. */
const FIXED = { host: "0.0.0.0" };

/** Errors: `config_invalid` with each setting at fault. */
export function readConfig(env: GatewayBindings): KedgeConfig {
  const texts = Object.entries(env).filter(
    (entry): entry is [string, string] => typeof entry[1] === "string",
  );
  return loadConfig({ ...DEFAULTS, ...Object.fromEntries(texts) }, FIXED);
}

export interface Necessary {
  readonly storeUrl: string;
  readonly storeToken: string;
  readonly signingKey: string;
}

/** Errors: `service_unconfigured` with all that is missing. */
export function requireSettings({ store, plan, apiKeyDigests }: KedgeConfig): Necessary {
  const missing: string[] = [];
  if (apiKeyDigests.length === 0) missing.push("KEDGE_API_KEYS (SHA-256 digests of the accepted API keys)");
  if (store.url === null)
    missing.push("KEDGE_REDIS_URL (Upstash REST endpoint, or that of kedge redis-rest)");
  if (store.token === null) missing.push("KEDGE_REDIS_TOKEN (its token)");
  if (plan.signingKey === null) missing.push("KEDGE_PLAN_KEY (made by kedge plan-key)");
  if (missing.length > 0) {
    throw new KedgeError("service_unconfigured", `This gateway lacks settings: ${missing.join(", ")}.`);
  }
  return { storeUrl: store.url!, storeToken: store.token!, signingKey: plan.signingKey! };
}
