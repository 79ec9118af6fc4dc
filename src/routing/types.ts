/** Inputs and outputs of the pure decision (design D7). Costs are in KV blocks, lower wins. */

export type RouterMode =
  | "kv"
  | "kv-1.x"
  | "round-robin"
  | "random"
  | "power-of-two"
  | "least-loaded"
  | "direct";

export type PoolRole = "aggregated" | "prefill" | "decode";

/** One (worker, rank) as a policy sees it. All counts are the load before this request. */
export interface Candidate {
  readonly worker: string;
  readonly rank: number;
  /** Tokens per KV block of this worker. */
  readonly blockSize: number;
  /** Cached leading blocks of the prompt, device tier. May be fractional under tiers' weights only in `kv-1.x`. */
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
