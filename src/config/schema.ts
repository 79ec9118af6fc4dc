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
  })
  .strict();

export type KedgeConfig = z.infer<typeof kedgeConfigSchema>;
export type KedgeConfigInput = z.input<typeof kedgeConfigSchema>;
