/** Every setting of Kedge in one zod schema: types, ranges, defaults (design D13). */

import { z } from "zod";
import { ROUTER_MODES } from "./router-modes.ts";

const fraction = z.number().min(0).max(1);
const nonNegative = z.number().nonnegative();
/** Timers of JavaScript hold no more than 31 bits; a longer delay would fire at once. */
const milliseconds = z.number().int().positive().max(2_147_483_647);

/** As `sha256sum` prints it, file name and all. */
const digest = z
  .string()
  .transform((text) => text.replace(/\s+\*?-$/, ""))
  .pipe(
    z.string().regex(/^[0-9a-f]{64}$/, {
      error: 'not a SHA-256 digest of 64 hex digits; make one of a key by: printf %s "$KEY" | sha256sum',
    }),
  );

const router = z
  .object({
    mode: z.enum(ROUTER_MODES).default("kv"),
    /** Blocks of cost per uncached prompt block (Dynamo 0.9); in `kv-1.x` the prefill load scale. */
    overlapScoreWeight: nonNegative.default(1),
    /** 0: the minimum; above: softmax over normalised costs. */
    temperature: nonNegative.default(0),
    /** Overrides the engines' own block size check; null: what the engines say. */
    kvCacheBlockSize: z.number().int().positive().nullable().default(null),
    /** False: no engine events are used, overlap comes from predictions alone. */
    kvEvents: z.boolean().default(true),
    /** Life of a prediction while it is the only knowledge. */
    ttlSeconds: z.number().positive().default(120),
    /** Life of a prediction while events flow: it only bridges decision → event. */
    predictedTtlSeconds: z.number().positive().default(5),
    /** Bound on predicted entries in the memory store. */
    maxTreeSize: z.number().int().positive().default(1_048_576),
    /** Count what other gateways have just sent; false: only what this one sent. */
    replicaSync: z.boolean().default(true),
    /** Begin a new epoch of the view at the start. */
    resetStates: z.boolean().default(false),
    activeDecodeBlocksThreshold: fraction.nullable().default(null),
    activePrefillTokensThreshold: z.number().int().nonnegative().nullable().default(null),
    activePrefillTokensThresholdFrac: nonNegative.nullable().default(null),
    overlapScoreCredit: nonNegative.default(1),
    overlapScoreCreditDecay: nonNegative.default(0),
    prefillLoadScale: nonNegative.nullable().default(null),
    decodeActiveRequestWeight: nonNegative.default(0),
    hostCacheHitWeight: nonNegative.default(0.75),
    diskCacheHitWeight: nonNegative.default(0.25),
    sharedCacheMultiplier: nonNegative.default(0),
  })
  .strict();

const limits = z
  .object({
    /** Largest accepted request body. */
    bodyBytes: z
      .number()
      .int()
      .positive()
      .default(16 * 1024 * 1024),
    /** Bodies of all requests under way together. */
    inflightBodyBytes: z
      .number()
      .int()
      .positive()
      .default(512 * 1024 * 1024),
    /** Total time of one request, retries included; null: none. */
    requestTimeoutMs: milliseconds.nullable().default(600_000),
    /** Time until an attempt's first data; then the next candidate is tried. */
    firstByteTimeoutMs: milliseconds.default(120_000),
    /** Silence inside a committed stream after which it is ended by an in-band error. */
    stallTimeoutMs: milliseconds.default(60_000),
    /** Workers tried per request before the first data, the first included. */
    maxAttempts: z.number().int().min(1).max(16).default(3),
    /** Comments that keep a silent stream alive before its first data. */
    heartbeatMs: milliseconds.default(15_000),
    /** Time that running requests get at shutdown. */
    drainTimeoutMs: milliseconds.default(30_000),
  })
  .strict();

const feed = z
  .object({
    /** A feed that is further behind than this is judged by predictions (D8). */
    lagEventsThreshold: z.number().int().positive().default(1_000),
    lagMsThreshold: milliseconds.default(2_000),
    /** Lease of confirmed holders; agents re-assert well before. */
    horizonMs: milliseconds.default(3_600_000),
  })
  .strict();

const name = z.string().regex(/^[A-Za-z0-9._-]{1,64}$/, {
  error: "may hold letters, digits, '.', '_' and '-' only, 64 at most",
});

const store = z
  .object({
    /** Upstash REST endpoint, or that of `kedge redis-rest`; null: the view is in this process. */
    url: z
      .url({
        protocol: /^https?$/,
        error:
          "must be http:// or https://: Upstash's REST endpoint, or that of kedge redis-rest in front of your Redis",
      })
      .nullable()
      .default(null),
    token: z.string().nullable().default(null),
    /** Names the view within the database: keys of different views never meet. */
    view: z
      .string()
      .regex(/^[A-Za-z0-9_-]{1,24}$/)
      .default("kedge"),
    /** Parts that the index is split into, by the first key of a chain; every process of a view needs the same number. */
    shards: z.number().int().min(1).max(64).default(1),
    /** What runs the scripts: Upstash locks differently. `auto`: by the URL's host. */
    backend: z.enum(["auto", "redis", "upstash"]).default("auto"),
    /** A lookup that takes longer counts as failed, retry included. */
    deadlineMs: milliseconds.default(50),
    /** How old the copy of a large fleet (more than 64 ranks of a model) may be. */
    fleetMaxAgeMs: z.number().int().nonnegative().default(250),
  })
  .strict();

const nats = z
  .object({
    /** `ws://` or `wss://` addresses, comma-separated; null: no NATS. */
    url: z.string().nullable().default(null),
    /** Contents or path of a credentials file. */
    creds: z.string().nullable().default(null),
    /** Seed of an nkey. */
    nkey: z.string().nullable().default(null),
    token: z.string().nullable().default(null),
    user: z.string().nullable().default(null),
    password: z.string().nullable().default(null),
    /** First token of all subjects. */
    prefix: z
      .string()
      .regex(/^[A-Za-z0-9_-]{1,32}$/)
      .default("kedge"),
    /** JetStream stream of KV batches. */
    stream: z
      .string()
      .regex(/^[A-Za-z0-9_-]{1,32}$/)
      .default("KEDGE_KV"),
  })
  .strict();

const place = z
  .object({
    region: name.default("local"),
    cluster: name.default("local"),
    /** Null: the machine's host name. */
    node: name.nullable().default(null),
  })
  .strict();

const plan = z
  .object({
    /** Gateways: private Ed25519 key as JWK (JSON) or PKCS #8 (PEM), or path of a file that holds one. */
    signingKey: z.string().nullable().default(null),
    /** Agents: JWKS of the gateways' public keys: JSON, path of a file, or URL; several separated by white space. */
    jwks: z.string().nullable().default(null),
    /** Base URL at which gateways reach this agent; null: http on its own host and port. */
    agentUrl: z
      .url({ protocol: /^https?$/, error: "must be http:// or https://, as gateways reach this agent" })
      .nullable()
      .default(null),
    /** Audience of plans for this agent; null: region/cluster/node. */
    agentId: z.string().min(1).max(256).nullable().default(null),
  })
  .strict();

const fallback = z
  .object({
    /** Fleet of a gateway that has seen none while the view is out of reach: JSON of `kedge fleet --json`, or path of a file that holds it. */
    seedFleet: z.string().nullable().default(null),
    /** Bound of a worker's share in the consistent hash: this many times the mean of requests under way. */
    loadFactor: z.number().min(1).max(10).default(1.25),
  })
  .strict();

export const kedgeConfigSchema = z
  .object({
    host: z.string().min(1).default("127.0.0.1"),
    port: z.number().int().min(0).max(65_535).default(8787),
    /** SHA-256 digests (64 hex digits) of the accepted API keys. */
    apiKeyDigests: z.array(digest).default([]),
    /** Explanations for callers: /v1/route, routing headers, per-request overrides. */
    explain: z.boolean().default(false),
    router: router.prefault({}),
    limits: limits.prefault({}),
    feed: feed.prefault({}),
    store: store.prefault({}),
    nats: nats.prefault({}),
    place: place.prefault({}),
    plan: plan.prefault({}),
    fallback: fallback.prefault({}),
  })
  .strict();

export type KedgeConfig = z.infer<typeof kedgeConfigSchema>;
export type KedgeConfigInput = z.input<typeof kedgeConfigSchema>;
