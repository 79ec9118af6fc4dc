/** The JSON lines of `kedge decide`: their schema, their defaults, and what they become in the decision's own types. */

import { z } from "zod";
import {
  type Candidate,
  DEFAULT_POLICY,
  type PolicyConfig,
  plainRequest,
  type RequestFacts,
  ROUTER_MODES,
} from "../../routing/index.ts";

const DEFAULT_BLOCK_SIZE = 16;

const count = z.number().nonnegative();
const name = z.union([z.string().min(1), z.int()]).transform(String);
const rank = z.int().nonnegative();

const overrides = z.strictObject({
  overlap_score_weight: count.optional(),
  router_temperature: count.optional(),
  overlap_score_credit: count.optional(),
  prefill_load_scale: count.optional(),
  shared_cache_multiplier: count.optional(),
  track_prefill_tokens: z.boolean().optional(),
});

const request = z
  .strictObject({
    prompt_tokens: count.optional(),
    prompt_blocks: count.optional(),
    turn: z.int().nonnegative().default(0),
    pin: z
      .strictObject({ worker: name, rank: rank.nullable().default(null) })
      .nullable()
      .default(null),
    allowed_workers: z.array(name).nullable().default(null),
    required_taints: z.array(z.string()).default([]),
    preferred_taints: z.record(z.string(), z.number()).default({}),
    overrides: overrides.nullable().default(null),
  })
  .refine((given) => given.prompt_tokens === undefined || given.prompt_blocks === undefined, {
    error: "give either prompt_tokens or prompt_blocks",
  });

const worker = z
  .strictObject({
    worker: name,
    rank: rank.default(0),
    block_size: z.int().positive().optional(),
    overlap_blocks: count.default(0),
    host_extension_blocks: count.default(0),
    disk_extension_blocks: count.default(0),
    shared_blocks_beyond_device: count.default(0),
    tree_size: count.default(0),
    load_known: z.boolean().default(true),
    active_prefill_tokens: count.optional(),
    active_prefill_blocks: count.optional(),
    prefill_blocks: count.optional(),
    active_decode_blocks: count.optional(),
    active_requests: count.default(0),
    new_blocks: count.optional(),
    decode_blocks: count.optional(),
    total_blocks: count.nullable().default(null),
    max_num_batched_tokens: count.nullable().default(null),
    taints: z.array(z.string()).default([]),
    age_ms: count.nullable().default(null),
    excluded: z.string().nullable().default(null),
  })
  .refine(
    (given) =>
      [given.active_prefill_tokens, given.active_prefill_blocks, given.prefill_blocks].filter(
        (way) => way !== undefined,
      ).length <= 1,
    { error: "give one of active_prefill_tokens, active_prefill_blocks and prefill_blocks" },
  )
  .refine(
    (given) =>
      given.decode_blocks === undefined ||
      (given.active_decode_blocks === undefined && given.new_blocks === undefined),
    { error: "decode_blocks is active_decode_blocks + new_blocks: give it alone" },
  );

const config = z.strictObject({
  block_size: z.int().positive().default(DEFAULT_BLOCK_SIZE),
  router_mode: z.enum(ROUTER_MODES).default(DEFAULT_POLICY.mode),
  role: z.enum(["aggregated", "prefill", "decode"]).default(DEFAULT_POLICY.role),
  overlap_score_weight: count.default(DEFAULT_POLICY.overlapScoreWeight),
  router_temperature: count.default(DEFAULT_POLICY.temperature),
  overlap_score_credit: count.default(DEFAULT_POLICY.overlapScoreCredit),
  overlap_score_credit_decay: count.default(DEFAULT_POLICY.overlapScoreCreditDecay),
  prefill_load_scale: count.default(DEFAULT_POLICY.prefillLoadScale),
  decode_active_request_weight: count.default(DEFAULT_POLICY.decodeActiveRequestWeight),
  host_cache_hit_weight: count.default(DEFAULT_POLICY.hostCacheHitWeight),
  disk_cache_hit_weight: count.default(DEFAULT_POLICY.diskCacheHitWeight),
  shared_cache_multiplier: count.default(DEFAULT_POLICY.sharedCacheMultiplier),
  track_prefill_tokens: z.boolean().default(DEFAULT_POLICY.trackPrefillTokens),
  track_active_blocks: z.boolean().default(DEFAULT_POLICY.trackActiveBlocks),
  conditional_disagg: z.boolean().default(DEFAULT_POLICY.conditionalDisagg),
  unknown_load: z.enum(["behind", "dynamo"]).default(DEFAULT_POLICY.unknownLoad),
  tie_band_blocks: count.default(DEFAULT_POLICY.tieBandBlocks),
  ramp_up_ms: count.default(DEFAULT_POLICY.rampUpMs),
  active_decode_blocks_threshold: count.nullable().default(null),
  active_prefill_tokens_threshold: count.nullable().default(null),
  active_prefill_tokens_threshold_frac: count.nullable().default(null),
});

const line = z
  .strictObject({
    request: z.preprocess(aliased({ isl: "prompt_tokens" }), request),
    workers: z.array(
      z.preprocess(
        aliased({ worker_id: "worker", dp_rank: "rank", cached_blocks: "overlap_blocks" }),
        worker,
      ),
    ),
    config: z
      .preprocess(
        aliased({ mode: "router_mode", weight: "overlap_score_weight", temperature: "router_temperature" }),
        config,
      )
      .prefault({}),
  })
  .refine(
    ({ request, workers }) =>
      request.prompt_tokens !== undefined ||
      request.prompt_blocks !== undefined ||
      workers.every((one) => one.prefill_blocks !== undefined),
    { error: "give prompt_tokens or prompt_blocks, or every worker's prefill_blocks", path: ["request"] },
  )
  .superRefine(({ request, workers, config }, context) => {
    for (const [index, one] of workers.entries()) {
      const blockSize = one.block_size ?? config.block_size;
      const promptTokens = promptTokensOf(request, config.block_size);
      if (one.prefill_blocks === undefined || activePrefillTokens(one, promptTokens, blockSize) >= 0)
        continue;
      context.addIssue({
        code: "custom",
        path: ["workers", index, "prefill_blocks"],
        message: "is less than the uncached part of this prompt, which it includes",
      });
    }
  });

type Line = z.infer<typeof line>;

/** One question, ready for `decide`. */
export interface Question {
  readonly facts: RequestFacts;
  readonly candidates: readonly Candidate[];
  readonly config: PolicyConfig;
}

export type ParsedLine = { readonly question: Question } | { readonly problem: string };

/** Never throws: what is wrong with a line is said in `problem`, with the path of the field at fault. */
export function parseLine(text: string): ParsedLine {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    return { problem: `not JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
  const parsed = line.safeParse(json);
  if (!parsed.success) return { problem: parsed.error.issues.map(describeIssue).join("; ") };
  return { question: toQuestion(parsed.data) };
}

function describeIssue(issue: z.core.$ZodIssue): string {
  const path = issue.path.map(String).join(".");
  return path === "" ? issue.message : `${path}: ${issue.message}`;
}

/** Dynamo's and the parity files' names for the same things. */
function aliased(names: Readonly<Record<string, string>>): (value: unknown) => unknown {
  return (value) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([key, held]) => [names[key] ?? key, held]));
  };
}

function promptTokensOf(given: Line["request"], blockSize: number): number {
  return given.prompt_tokens ?? (given.prompt_blocks ?? 0) * blockSize;
}

/** `prefill_blocks` is the whole term of `kv`: what is active and what of this prompt is not cached. */
function activePrefillTokens(
  given: Line["workers"][number],
  promptTokens: number,
  blockSize: number,
): number {
  if (given.prefill_blocks !== undefined) {
    return given.prefill_blocks * blockSize - Math.max(0, promptTokens - given.overlap_blocks * blockSize);
  }
  return given.active_prefill_tokens ?? (given.active_prefill_blocks ?? 0) * blockSize;
}

function toQuestion({ request, workers, config }: Line): Question {
  const promptTokens = promptTokensOf(request, config.block_size);
  return {
    facts: {
      ...plainRequest(promptTokens, request.turn),
      pin: request.pin,
      allowedWorkers: request.allowed_workers && new Set(request.allowed_workers),
      requiredTaints: request.required_taints,
      preferredTaints: request.preferred_taints,
      overrides: request.overrides && {
        overlapScoreWeight: request.overrides.overlap_score_weight,
        temperature: request.overrides.router_temperature,
        overlapScoreCredit: request.overrides.overlap_score_credit,
        prefillLoadScale: request.overrides.prefill_load_scale,
        sharedCacheMultiplier: request.overrides.shared_cache_multiplier,
        trackPrefillTokens: request.overrides.track_prefill_tokens,
      },
    },
    candidates: workers.map((given) => toCandidate(given, promptTokens, config.block_size)),
    config: toPolicy(config),
  };
}

function toCandidate(
  given: Line["workers"][number],
  promptTokens: number,
  defaultBlockSize: number,
): Candidate {
  const blockSize = given.block_size ?? defaultBlockSize;
  const load = {
    activePrefillTokens: activePrefillTokens(given, promptTokens, blockSize),
    activeDecodeBlocks: given.decode_blocks ?? given.active_decode_blocks ?? 0,
    activeRequests: given.active_requests,
    newBlocks:
      given.decode_blocks === undefined ? (given.new_blocks ?? Math.floor(promptTokens / blockSize)) : 0,
  };
  return {
    worker: given.worker,
    rank: given.rank,
    blockSize,
    overlapBlocks: given.overlap_blocks,
    hostExtensionBlocks: given.host_extension_blocks,
    diskExtensionBlocks: given.disk_extension_blocks,
    sharedBlocksBeyondDevice: given.shared_blocks_beyond_device,
    treeSize: given.tree_size,
    load: given.load_known ? load : null,
    totalBlocks: given.total_blocks,
    maxNumBatchedTokens: given.max_num_batched_tokens,
    taints: given.taints,
    ageMs: given.age_ms,
    excluded: given.excluded,
  };
}

function toPolicy(config: Line["config"]): PolicyConfig {
  return {
    mode: config.router_mode,
    role: config.role,
    overlapScoreWeight: config.overlap_score_weight,
    temperature: config.router_temperature,
    overlapScoreCredit: config.overlap_score_credit,
    overlapScoreCreditDecay: config.overlap_score_credit_decay,
    prefillLoadScale: config.prefill_load_scale,
    decodeActiveRequestWeight: config.decode_active_request_weight,
    hostCacheHitWeight: config.host_cache_hit_weight,
    diskCacheHitWeight: config.disk_cache_hit_weight,
    sharedCacheMultiplier: config.shared_cache_multiplier,
    trackPrefillTokens: config.track_prefill_tokens,
    trackActiveBlocks: config.track_active_blocks,
    conditionalDisagg: config.conditional_disagg,
    unknownLoad: config.unknown_load,
    tieBandBlocks: config.tie_band_blocks,
    rampUpMs: config.ramp_up_ms,
    busy: {
      activeDecodeBlocksThreshold: config.active_decode_blocks_threshold,
      activePrefillTokensThreshold: config.active_prefill_tokens_threshold,
      activePrefillTokensThresholdFrac: config.active_prefill_tokens_threshold_frac,
    },
  };
}
