/** The gateway as a Worker: one app per isolate, made by its first request; what is wrong with its settings is answered, not thrown. */

import { waitUntil } from "cloudflare:workers";
import type { KedgeConfig } from "../../src/config/index.ts";
import { KedgeError, toKedgeError } from "../../src/errors/index.ts";
import type { Registration } from "../../src/fleet/types.ts";
import { errorHeaders, errorJson } from "../../src/gateway/answers.ts";
import { WebClient } from "../../src/gateway/client.ts";
import { createFetchTransport } from "../../src/gateway/fetch-transport.ts";
import { type Clock, createGateway, type Log } from "../../src/gateway/index.ts";
import { parseSeedFleet } from "../../src/gateway/seed-fleet.ts";
import { createPlanSigner } from "../../src/plan/sign.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import type { ViewStore } from "../../src/store/types.ts";
import { type Counter, Registry } from "../../src/telemetry/registry.ts";
import { type ExecutionContext, type GatewayBindings, readConfig, requiredKey } from "./environment.ts";
import { keepAlive } from "./keep-alive.ts";

/** Entry of the key-value binding that holds the seed fleet. */
const SEED_FLEET_KEY = "seed-fleet";
/** One request in so many is looked into for its usage, which the cheap pipe does not see: bytes per token, how true overlaps are. */
const LOOK_EVERY = 16;
/** Served names of a remote view are checked by the read that follows. */
const DIRECTORY_MAX_AGE_MS = 10_000;

export interface Worker {
  fetch(request: Request, env: GatewayBindings, context: ExecutionContext): Promise<Response>;
}

interface Isolate {
  readonly app: ReturnType<typeof createGateway>;
  readonly pipes: Counter;
}

/** Timers belong to the request that sets them and end with it. */
const clock: Clock = {
  now: () => performance.now(),
  wall: () => Date.now(),
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as number),
};

const log: Log = {
  warn: (message, fields) => console.warn(JSON.stringify({ level: "warn", message, ...fields })),
};

/** `openStore` makes the isolate's view from checked settings. */
export function createWorker(openStore: (config: KedgeConfig, clock: Clock) => ViewStore): Worker {
  let isolate: Promise<Isolate> | null = null;
  return {
    async fetch(request, env, context) {
      if (isolate === null) {
        isolate = open(env, openStore);
        // Others wait for it too, so it must outlive the request that began it.
        context.waitUntil(isolate.catch(() => {}));
      }
      try {
        const { app, pipes } = await here(isolate);
        const client = new WebClient(request, {
          waitUntil: (work) => context.waitUntil(work),
          onPipe: () => pipes.inc(),
        });
        return await app.fetch(request, { client });
      } catch (thrown) {
        const error = toKedgeError(thrown);
        if (error.code === "internal_error") log.warn("The gateway failed.", { error: String(error.cause) });
        return new Response(errorJson(error), { status: error.kind.status, headers: errorHeaders(error) });
      }
    },
  };
}

/** What goes on after a promise of another request goes on in this one's context. */
function here<T>(promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    promise.then(resolve, reject);
  });
}

async function open(
  env: GatewayBindings,
  openStore: (config: KedgeConfig, clock: Clock) => ViewStore,
): Promise<Isolate> {
  const config = readConfig(env);
  const signingKey = requiredKey(config);
  const [hasher, signer, seedFleet] = await Promise.all([
    createHasher(),
    createPlanSigner({ keys: signingKey }),
    readSeedFleet(config, env),
  ]);
  const registry = new Registry();
  const agents = env.KEDGE_AGENTS;
  let requests = 0;
  const app = createGateway({
    config,
    store: keepAlive(openStore(config, clock), waitUntil),
    transport: createFetchTransport({
      signer,
      looksInside: () => ++requests % LOOK_EVERY === 0,
      ...(agents !== undefined && { fetcherFor: () => agents }),
    }),
    hasher,
    clock,
    random: Math.random,
    log,
    registry,
    requireKeys: true,
    directoryMaxAgeMs: DIRECTORY_MAX_AGE_MS,
    jwks: signer.jwks,
    ...(seedFleet !== null && { seedFleet }),
  });
  const pipes = registry.counter({
    name: "kedge_piped_streams_total",
    help: "Streams whose rest went to the client without a look inside.",
    labels: [],
  });
  return { app, pipes: pipes.labels() };
}

/** The setting must be right; the entry, written by whatever keeps it, is done without if it is not. */
async function readSeedFleet(
  config: KedgeConfig,
  { KEDGE_KV }: GatewayBindings,
): Promise<readonly Registration[] | null> {
  const { seedFleet } = config.fallback;
  if (seedFleet !== null) return parseSeedFleet(seedFleet);
  try {
    const text = (await KEDGE_KV?.get(SEED_FLEET_KEY)) ?? null;
    return text === null ? null : parseSeedFleet(text);
  } catch (error) {
    const message = error instanceof KedgeError ? error.message : String(error);
    log.warn(`The seed fleet of the key-value entry ${SEED_FLEET_KEY} cannot be used.`, { error: message });
    return null;
  }
}
