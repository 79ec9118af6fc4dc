/** Inputs and outputs of the pure decision (design D7). Costs are in KV blocks, lower wins. */

import type { RouterMode } from "../config/router-modes.ts";
import type { KedgeError } from "../errors/index.ts";

export { ROUTER_MODES, type RouterMode } from "../config/router-modes.ts";

export type PoolRole = "aggregated" | "prefill" | "decode";

/** Uniform numbers in [0, 1). */
export type RandomSource = () => number;

/** One (worker, rank) as a policy sees it. All counts are the load before this request. */
export interface Candidate {
  readonly worker: string;
  readonly rank: number;
  /** Tokens per KV block of this worker. */
  readonly blockSize: number;
  /** Cached leading blocks of the prompt, device tier. */
  readonly overlapBlocks: number;
  /** Blocks that extend the device prefix in host memory, then on disk. */
  readonly hostExtensionBlocks: number;
  readonly diskExtensionBlocks: number;
  /** Prompt blocks, past the device prefix, that a shared cache holds. */
  readonly sharedBlocksBeyondDevice: number;
  /** Blocks that the index holds for this worker (ties, Dynamo 0.9); 0 if unknown or without overlap. */
  readonly treeSize: number;
  /** Null: the worker's load is unknown, which is not idle (D6). */
  readonly load: CandidateLoad | null;
  /** KV blocks in all, null if unknown. */
  readonly totalBlocks: number | null;
  readonly maxNumBatchedTokens: number | null;
  readonly taints: readonly string[];
  /** Milliseconds since this life of the worker registered, null if unknown; newcomers ramp up. */
  readonly ageMs: number | null;
  /** Set: excluded before scoring, with this reason in the explanation. */
  readonly excluded: string | null;
}

export interface CandidateLoad {
  readonly activePrefillTokens: number;
  readonly activeDecodeBlocks: number;
  readonly activeRequests: number;
  /** Blocks that this request would add: its own that are not already active there. */
  readonly newBlocks: number;
}

/** Per-request settings; absent keys leave the configuration's value. `assume_kv_reuse` is the load tracker's. */
export interface Overrides {
  readonly overlapScoreWeight?: number;
  readonly temperature?: number;
  readonly overlapScoreCredit?: number;
  readonly prefillLoadScale?: number;
  readonly sharedCacheMultiplier?: number;
  readonly trackPrefillTokens?: boolean;
}

/** What a decision knows of the request. */
export interface RequestFacts {
  /** Prompt length in tokens (`isl`). */
  readonly promptTokens: number;
  /** The caller's count of requests before this one: `round-robin` is `turn` modulo the eligible. */
  readonly turn: number;
  /** Only this worker (and rank, unless null) may serve the request; it is never rerouted. */
  readonly pin: { readonly worker: string; readonly rank: number | null } | null;
  /** Only these workers may serve the request; null: any. */
  readonly allowedWorkers: ReadonlySet<string> | null;
  /** A worker must carry all of these. */
  readonly requiredTaints: readonly string[];
  /** `kv-1.x`: label → weight; carrying one makes a worker cheaper (weight > 0) or dearer (< 0). */
  readonly preferredTaints: Readonly<Record<string, number>>;
  readonly overrides: Overrides | null;
}

/** Busy thresholds as of `/busy_threshold`; null: that check is off. Comparisons are strictly greater. */
export interface BusyLimits {
  /** Fraction of the rank's KV blocks. */
  readonly activeDecodeBlocksThreshold: number | null;
  readonly activePrefillTokensThreshold: number | null;
  /** Fraction of the rank's `max_num_batched_tokens`. */
  readonly activePrefillTokensThresholdFrac: number | null;
}

export interface PolicyConfig {
  readonly mode: RouterMode;
  /** Pool that the candidates form. `prefill`: no decode term. `decode`: prefix and prefill count for nothing. */
  readonly role: PoolRole;
  /** `kv`: factor of the prefill blocks. */
  readonly overlapScoreWeight: number;
  /** 0: the cheapest; above: softmax over −cost / (range · temperature). */
  readonly temperature: number;
  /** `kv-1.x`: blocks credited per cached device block. */
  readonly overlapScoreCredit: number;
  /** `kv-1.x`: how fast a busy worker's device credit fades; 0: never. */
  readonly overlapScoreCreditDecay: number;
  /** `kv-1.x`: factor of the prefill blocks left after the credit. */
  readonly prefillLoadScale: number;
  /** `kv-1.x`: blocks charged per running request. */
  readonly decodeActiveRequestWeight: number;
  /** `kv-1.x`: blocks credited per host, disk and shared-cache block. */
  readonly hostCacheHitWeight: number;
  readonly diskCacheHitWeight: number;
  readonly sharedCacheMultiplier: number;
  /** `kv-1.x`: false charges no prefill at all. */
  readonly trackPrefillTokens: boolean;
  /** False: no decode term. */
  readonly trackActiveBlocks: boolean;
  /** `kv-1.x`, decode pool: true keeps the credit and sets it against the decode blocks. */
  readonly conditionalDisagg: boolean;
  /** `behind`: workers of unknown load rank after those of known load. `dynamo`: they compete as Dynamo scores them. */
  readonly unknownLoad: "behind" | "dynamo";
  /** Candidates whose cost exceeds the least by less than this are drawn at random; 0: exact ties only (D7). */
  readonly tieBandBlocks: number;
  /** A worker younger than this competes with probability age / rampUpMs, else ranks behind; 0: at once. */
  readonly rampUpMs: number;
  readonly busy: BusyLimits;
}

/** Why a candidate ranks where it does beside its cost: ready, young and not yet drawn, or of unknown load. */
export type Standing = "ready" | "newcomer" | "unknown-load";

/** Parts of a `kv-1.x` cost, in blocks where not said otherwise. */
export interface TieredParts {
  readonly rawPrefillBlocks: number;
  readonly creditBlocks: number;
  /** Factor of the device credit. */
  readonly decay: number;
  readonly activeRequestBlocks: number;
  /** exp(−tanh(Σ weights of preferred taints carried)). */
  readonly taintFactor: number;
}

/** One eligible candidate with its cost. In modes that do not rank by cost it is informational (`kv` form). */
export interface Scored {
  readonly candidate: Candidate;
  /** Cached blocks that the formula counts; `kv-1.x`: effective, weighted over tiers. */
  readonly overlapBlocks: number;
  /** Prefill term before its weight; `kv-1.x`: after the credit. */
  readonly prefillBlocks: number;
  readonly decodeBlocks: number;
  /** Factor of the prefill term. */
  readonly weight: number;
  readonly cost: number;
  readonly tiered: TieredParts | null;
  readonly standing: Standing;
}

export interface Excluded {
  readonly candidate: Candidate;
  readonly reason: string;
}

interface DecisionFacts {
  readonly facts: RequestFacts;
  /** The configuration with the pool's rules and the request's overrides applied. */
  readonly settings: PolicyConfig;
  readonly excluded: readonly Excluded[];
}

export interface Routed extends DecisionFacts {
  readonly rejection: null;
  /** ranking[0]. */
  readonly chosen: Scored;
  /** Failover order. */
  readonly ranking: readonly Scored[];
}

export interface Rejected extends DecisionFacts {
  /** `no_workers`, `workers_busy` (with Retry-After), `worker_not_found`, or `invalid_request` (direct without a pin). */
  readonly rejection: KedgeError;
  readonly chosen: null;
  readonly ranking: readonly [];
}

export type Decision = Routed | Rejected;
