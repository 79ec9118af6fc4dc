/** A view in a real Redis behind its REST proxy, written by the test as an indexer would, and gateways of both kinds over it. */

import { defineConfig } from "../../src/config/index.ts";
import type { Registration } from "../../src/fleet/types.ts";
import { createGateway } from "../../src/gateway/index.ts";
import { parseJson } from "../../src/json/index.ts";
import { createAgentTransport } from "../../src/node/agent-transport.ts";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { serveGateway } from "../../src/node/server.ts";
import { createPlanSigner } from "../../src/plan/sign.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { createPromptKeyer } from "../../src/prefix/prompt-keyer.ts";
import { ChatRenderer } from "../../src/prefix/render/index.ts";
import { RedisStore, redisStoreOptions } from "../../src/store/redis/index.ts";
import type { StoreOp } from "../../src/store/types.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { CARD, MODEL, realClock } from "../e2e/gateway-fleet.ts";
import { type RunningServer, startRedis } from "../support/servers.ts";
import { bundleWorker, type RunningWorker, runWorker, type WorkerBundle } from "../support/worker-bundle.ts";
import { AUTHORIZED, closeAfterTest, SETTINGS } from "./worker-stack.ts";

const TOKEN = "edge-rest-token";
/** Long, for the machine that runs the tests does other things too. */
const DEADLINE_MS = 2_000;

let bundle: Promise<WorkerBundle> | null = null;
const gatewayBundle = () => {
  bundle ??= bundleWorker("workers/gateway/index.ts");
  return bundle;
};

export interface Load {
  readonly activeBlocks: number;
  readonly prefillTokens: number;
}

export interface RedisView {
  readonly redis: RunningServer;
  readonly rest: RestServer;
  readonly store: RedisStore;
  register(registration: Registration): Promise<void>;
  /** A load report; all ranks that reported before are heard again. */
  report(registration: Registration, load: Load, admitted?: readonly string[]): Promise<void>;
  /** The worker holds the first `keys` keys of this chat. */
  hold(registration: Registration, messages: readonly object[], keys: number): Promise<void>;
  /** Settings of a gateway Worker over this view. */
  readonly settings: Readonly<Record<string, string>>;
  startWorker(
    settings?: Readonly<Record<string, string>>,
    entries?: Readonly<Record<string, string>>,
  ): Promise<RunningWorker>;
  /** A Node gateway over the same view; its URL. */
  startNodeGateway(): Promise<string>;
}

export async function startRedisView(): Promise<RedisView> {
  const redis = await startRedis();
  closeAfterTest(() => redis.stop());
  const rest = await startRedisRest({
    redis: { host: "127.0.0.1", port: redis.port },
    token: TOKEN,
    port: 0,
  });
  closeAfterTest(() => rest.close());
  const config = defineConfig({
    explain: true,
    store: { url: rest.url, token: TOKEN, deadlineMs: DEADLINE_MS },
  });
  const open = () => new RedisStore({ ...redisStoreOptions(config), clock: realClock, random: Math.random });
  const store = open();
  const hasher = await createHasher();
  const sequences = new Map<string, number>();
  const next = (name: string) => {
    const sequence = (sequences.get(name) ?? 0) + 1;
    sequences.set(name, sequence);
    return sequence;
  };
  const settings = {
    ...SETTINGS,
    KEDGE_REDIS_URL: rest.url,
    KEDGE_REDIS_TOKEN: TOKEN,
    KEDGE_STORE_DEADLINE_MS: String(DEADLINE_MS),
    KEDGE_EXPLAIN: "true",
  };
  return {
    redis,
    rest,
    store,
    settings,
    register: async (registration) => {
      await store.register(registration);
    },
    report: async (registration, load, admitted = []) => {
      const { worker } = registration;
      const published = sequences.get(`kv ${worker}`) ?? 0;
      const report = { ...registration, ...load, running: 0, waiting: 0, admitted };
      await store.report([{ ...report, sequence: next(`load ${worker}`), publishedSequence: published }]);
    },
    hold: async (registration, messages, depth) => {
      const body = parseJson(JSON.stringify({ model: MODEL, messages }));
      const prompt = new ChatRenderer(CARD, { now: () => 0 }).renderChat(body);
      const chain = createPromptKeyer({ hasher, card: CARD }).keysOf(prompt, {
        model: MODEL,
        adapter: null,
        salt: null,
      })!;
      const keys = chain.keys.slice(0, depth);
      const op: StoreOp = {
        op: "store",
        tier: "device",
        root: keys[0]!,
        parent: null,
        keys,
        tokens: Uint32Array.from(keys, (_, i) => (i + 1) * 32),
      };
      await store.apply([{ ...registration, sequence: next(`kv ${registration.worker}`), ops: [op] }]);
    },
    startWorker: async (more = {}, entries = {}) => {
      const worker = await runWorker(await gatewayBundle(), { ...settings, ...more }, entries);
      closeAfterTest(() => worker.close());
      return worker;
    },
    startNodeGateway: async () => {
      const signer = await createPlanSigner({ keys: SETTINGS.KEDGE_PLAN_KEY });
      const transport = createAgentTransport({ signer });
      closeAfterTest(async () => transport.close());
      const app = createGateway({
        config: defineConfig({ ...config, apiKeyDigests: [SETTINGS.KEDGE_API_KEYS], explain: true }),
        store: open(),
        transport,
        hasher: await createHasher(),
        clock: realClock,
        random: Math.random,
        log: { warn: () => {} },
        registry: new Registry(),
      });
      const served = await serveGateway({ app, host: "127.0.0.1", port: 0, drainTimeoutMs: 0 });
      closeAfterTest(() => served.close());
      return served.url;
    },
  };
}

export function post(url: string, path: string, body: object, init: RequestInit = {}): Promise<Response> {
  return fetch(url + path, {
    method: "POST",
    headers: { "content-type": "application/json", ...AUTHORIZED },
    body: JSON.stringify(body),
    ...init,
  });
}
