/** What a deployment gives to the gateway Worker: settings as text, and a few bindings. */

import { type KedgeConfig, loadConfig } from "../../src/config/index.ts";
import type { Fetcher } from "../../src/gateway/fetch-transport.ts";
import { requireSettings, textSettings } from "../settings.ts";

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
  return loadConfig({ ...DEFAULTS, ...textSettings(env) }, FIXED);
}

/** The key that signs plans. Errors: `service_unconfigured` with all that is missing. */
export function requiredKey(config: KedgeConfig): string {
  requireSettings(config, ["apiKeyDigests", "store.url", "store.token", "plan.signingKey"], "gateway");
  return config.plan.signingKey!;
}
