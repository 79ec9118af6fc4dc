/** A gateway as a process of its own: the view in Redis, agents over the network (design §2). */

import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import type { KedgeConfig } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import { createGateway, parseSeedFleet } from "../gateway/index.ts";
import { createPlanSigner } from "../plan/sign.ts";
import { createHasher } from "../prefix/hasher.ts";
import { Registry } from "../telemetry/registry.ts";
import { createAgentTransport } from "./agent-transport.ts";
import { monotonicClock } from "./clock.ts";
import { cannotListen } from "./listen.ts";
import type { LoadedModel } from "./models.ts";
import { signingKeyText } from "./plan-keys.ts";
import type { MetricsPage } from "./process-pool.ts";
import { openStore } from "./redis-store.ts";
import { requireSettings } from "./required-settings.ts";
import { serveGateway } from "./server.ts";

export interface GatewayHostOptions {
  readonly config: KedgeConfig;
  /** Models whose prompts can be turned into tokens here; cards of scheme `bytes` need none. */
  readonly models?: readonly LoadedModel[];
  readonly log: (
    level: "debug" | "warn",
    message: string,
    fields?: Readonly<Record<string, unknown>>,
  ) => void;
  /** Print decisions as Dynamo does, at level `debug`. */
  readonly logDecisions?: boolean;
  /** Where metrics of several processes come together; absent: this is the only one. */
  readonly page?: MetricsPage;
}

export interface GatewayHost {
  readonly url: string;
  /** Lets running requests finish (config.limits.drainTimeoutMs). Safe to call twice. */
  close(): Promise<void>;
}

/** Names of a remote view are checked by the read that follows. */
const DIRECTORY_MAX_AGE_MS = 10_000;
/** The gateway itself keeps requests to their deadline; an answer that comes later, up to this, still tells of the fleet. */
const LATE_ANSWER_MS = 500;

/** Errors: `config_invalid` with every setting that a gateway of its own needs and has not. */
export function requireGatewaySettings(config: KedgeConfig): void {
  requireSettings(config, ["store.url", "store.token", "plan.signingKey"], "A gateway of its own");
}

/** Begins a new epoch of the view. Errors: `view_unavailable`. */
export async function resetView(config: KedgeConfig): Promise<void> {
  await openStore(config).reset();
}

/** Resolves when it listens; the view may come later. Errors: `config_invalid` for what is missing, unreadable or in use. */
export async function startGatewayHost(options: GatewayHostOptions): Promise<GatewayHost> {
  const { config, models = [], log, logDecisions = false, page } = options;
  requireGatewaySettings(config);
  const { seedFleet } = config.fallback;
  const signer = await createPlanSigner({ keys: await signingKeyText(config.plan.signingKey!) });
  const transport = createAgentTransport({ signer });
  const registry = new Registry();
  page?.setOwn(() => registry.encode());
  let serving = true;
  const loaded = (model: string) => models.find(({ card }) => card.model === model);
  const app = createGateway({
    config,
    store: openStore(config, LATE_ANSWER_MS),
    transport,
    hasher: await createHasher(),
    tokenizers: ({ model }) => loaded(model)?.tokenizer ?? null,
    vocabularies: ({ model }) => loaded(model)?.vocabulary ?? null,
    clock: monotonicClock,
    random: Math.random,
    sha256: (text) => createHash("sha256").update(text).digest(),
    log: {
      warn: (message, fields) => log("warn", message, fields),
      ...(logDecisions && { debug: (message: string) => log("debug", message) }),
    },
    registry,
    isServing: () => serving,
    directoryMaxAgeMs: DIRECTORY_MAX_AGE_MS,
    jwks: signer.jwks,
    ...(seedFleet !== null && { seedFleet: parseSeedFleet(await seedFleetText(seedFleet)) }),
    ...(page !== undefined && { metricsText: () => page.text() }),
  });
  const { host, port, limits } = config;
  const served = await serveGateway({ app, host, port, drainTimeoutMs: limits.drainTimeoutMs }).catch(
    (thrown) => {
      throw cannotListen(thrown, host, port);
    },
  );
  // Who knows the fleet from the start can do without the view from then on.
  await app.request("/ready");
  return {
    url: served.url,
    close: async () => {
      serving = false;
      await served.close();
      transport.close();
    },
  };
}

/** The setting holds the list itself or names a file with it. Errors: `config_invalid`. */
async function seedFleetText(setting: string): Promise<string> {
  if (/^\s*[[{]/.test(setting)) return setting;
  try {
    return await readFile(setting.trim(), "utf8");
  } catch (cause) {
    throw new KedgeError(
      "config_invalid",
      "KEDGE_SEED_FLEET is neither JSON nor a file that can be read; make one with: kedge fleet --json.",
      { cause, param: "seed-fleet" },
    );
  }
}
