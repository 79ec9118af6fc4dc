/** What is known of workers: registration, load, feed; the fleet row that a decision reads (design §3, D4, D6). */

import type { WorkerRole } from "../plan/index.ts";
import type { ModelCard } from "../prefix/types.ts";

export const TIERS = ["device", "host", "disk"] as const;
export type Tier = (typeof TIERS)[number];

/** One rank's one life. */
export interface IncarnationKey {
  readonly worker: string;
  readonly rank: number;
  readonly incarnation: string;
}

/** An agent as gateways reach it. */
export interface AgentAddress {
  /** Audience of the plans that it accepts (D12), unique in the fleet. */
  readonly id: string;
  /** Base URL of its door, e.g. `https://node-1.example`. */
  readonly url: string;
}

/** What an agent announces of one rank when a life of it begins, and again with every heartbeat's refresh. */
export interface Registration extends IncarnationKey {
  /** The agent that takes plans for this rank; null: the one in the gateway's own process. */
  readonly agent: AgentAddress | null;
  /** Canonical model id, as in the card. */
  readonly model: string;
  /** Names that clients may ask for: served names first, then adapters. */
  readonly servedNames: readonly string[];
  /** Served adapters by name (base = model). */
  readonly adapters: readonly string[];
  readonly card: ModelCard;
  readonly role: WorkerRole;
  readonly region: string;
  readonly cluster: string;
  readonly node: string;
  /** Engine kind and version, e.g. `vllm 0.32.0`. */
  readonly engine: string;
  /** Number of data-parallel ranks of the worker. */
  readonly dpSize: number;
  /** Tokens per KV block of the engine. */
  readonly blockSize: number;
  /** KV blocks of this rank, null if the engine does not say. */
  readonly totalBlocks: number | null;
  readonly maxNumBatchedTokens: number | null;
  readonly maxNumSeqs: number | null;
  readonly maxModelLen: number | null;
  /** False: the engine publishes no KV events; it is judged by predictions only. */
  readonly kvEvents: boolean;
  /** False: events omit the salt, so salted requests there are predicted only (D2). */
  readonly saltInEvents: boolean;
  /** Routing labels, `name → weight`-less set; `kv-1.x` taints. */
  readonly taints: readonly string[];
}

/** What an agent says of one rank's load. Unknown values are null, never 0. */
export interface LoadReport extends IncarnationKey {
  /** +1 per report of this incarnation. */
  readonly sequence: number;
  /** KV blocks held by requests now in the engine. */
  readonly activeBlocks: number | null;
  /** Prompt tokens accepted and not yet computed. */
  readonly prefillTokens: number | null;
  readonly running: number | null;
  readonly waiting: number | null;
  /** Requests admitted since the last report: exactly their reservations are deleted by the fold (D6). */
  readonly admitted: readonly string[];
  /** Highest KV batch sequence that the agent has published for this rank; 0: none yet. */
  readonly publishedSequence: number;
}

/** How far the view is behind one rank's published events. */
export interface FeedState {
  /** Published batches that are not applied yet. */
  readonly lagEvents: number;
  /**
   * The larger of: milliseconds since the view last heard of this rank (batch, report or registration), and
   * milliseconds since a batch that is still missing was reported as published.
   */
  readonly lagMs: number;
}

/** One (worker, rank), as a decision reads it: registration + slots + last load report + open reservations + feed. */
export interface FleetRow extends Registration {
  readonly slots: Readonly<Record<Tier, number>>;
  readonly load: {
    readonly activeBlocks: number | null;
    readonly prefillTokens: number | null;
    readonly running: number | null;
    readonly waiting: number | null;
  };
  /** Sum of reservations that no load report has covered yet. */
  readonly reserved: { readonly requests: number; readonly blocks: number; readonly prefillTokens: number };
  readonly feed: FeedState;
  /** Milliseconds since this incarnation registered (store's clock); newcomers ramp up. */
  readonly ageMs: number;
}

/** Run-time busy thresholds of a model; null: not set. */
export interface BusyThresholds {
  readonly activeDecodeBlocksThreshold: number | null;
  readonly activePrefillTokensThreshold: number | null;
  readonly activePrefillTokensThresholdFrac: number | null;
}
