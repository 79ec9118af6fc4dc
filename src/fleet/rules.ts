/** What follows from a fleet row: alive or not, feed lagging or not, load, names (design D6, D8). Pure. */

import type { FleetRow } from "./types.ts";

export interface LivenessSettings {
  /** A rank unheard for longer than this is dead, if the bus itself is known to work. */
  readonly deadAfterMs: number;
  /** The bus is known to work while the indexer's own heartbeat is at most this old. */
  readonly heartbeatFreshMs: number;
}

export const DEFAULT_LIVENESS: LivenessSettings = { deadAfterMs: 5_000, heartbeatFreshMs: 2_500 };

/**
 * A life that a later registration had ended may come back once its successor has been silent for so long: the later one was a message that
 * came late, of a life that was over before.
 */
export const SUCCESSOR_SILENT_MS = 30_000;

export interface FeedSettings {
  /** A feed with more published and unapplied batches than this lags. */
  readonly lagEvents: number;
  /** A feed behind or silent for longer than this lags. */
  readonly lagMs: number;
  /** Life of a prediction where events do not come, and how long a lagging feed's confirmed entries are trusted. */
  readonly predictionTtlMs: number;
  /** Life of a prediction where events come: it only bridges decision → event. */
  readonly bridgeTtlMs: number;
}

export const DEFAULT_FEED: FeedSettings = {
  lagEvents: 1_000,
  lagMs: 2_000,
  predictionTtlMs: 120_000,
  bridgeTtlMs: 5_000,
};

/**
 * False only if the rank is silent while the bus works: when the indexer's own heartbeat is stale too, rows stay
 * routable as last known and only failed forwards eject (D6).
 */
export function isAlive(silentMs: number, heartbeatAgeMs: number, settings: LivenessSettings): boolean {
  return silentMs <= settings.deadAfterMs || heartbeatAgeMs > settings.heartbeatFreshMs;
}

/** True: the rank is judged by predictions and by what was confirmed before (D8). Engines without events always are. */
export function feedLagging(row: Pick<FleetRow, "feed" | "kvEvents">, settings: FeedSettings): boolean {
  return !row.kvEvents || row.feed.lagEvents > settings.lagEvents || row.feed.lagMs > settings.lagMs;
}

/**
 * Leading keys that a rank is taken to hold. Predictions always count, they die by TTL; what was confirmed counts until
 * the feed has been silent or behind for longer than a prediction would have lived (D8).
 */
export function heldDepth(
  row: Pick<FleetRow, "feed">,
  confirmedDepth: number,
  predictedDepth: number,
  settings: FeedSettings,
): number {
  const confirmed = row.feed.lagMs > settings.predictionTtlMs ? 0 : confirmedDepth;
  return Math.max(confirmed, predictedDepth);
}

/** How long a new prediction lives: the full TTL unless events will soon tell the truth. */
export function predictionTtlMs(row: Pick<FleetRow, "feed" | "kvEvents">, settings: FeedSettings): number {
  return feedLagging(row, settings) ? settings.predictionTtlMs : settings.bridgeTtlMs;
}

/**
 * True while the rank has prompts before it that it has not computed: their blocks are yet to be announced, and predictions stand in for them.
 * Afterwards a healthy feed has told what became of every one, evictions too, and what was predicted adds nothing.
 */
export function awaitsEvents({ load, reserved }: Pick<FleetRow, "load" | "reserved">): boolean {
  return reserved.requests > 0 || load.prefillTokens !== 0;
}

export interface EffectiveLoad {
  readonly activePrefillTokens: number;
  readonly activeDecodeBlocks: number;
  readonly activeRequests: number;
}

/** Last report plus the reservations that it does not cover; null if the rank's load is unknown, which is not idle (D6). */
export function effectiveLoad(row: Pick<FleetRow, "load" | "reserved">): EffectiveLoad | null {
  const { activeBlocks, prefillTokens, running, waiting } = row.load;
  if (activeBlocks === null || prefillTokens === null) return null;
  return {
    activePrefillTokens: prefillTokens + row.reserved.prefillTokens,
    activeDecodeBlocks: activeBlocks + row.reserved.blocks,
    activeRequests: (running ?? 0) + (waiting ?? 0) + row.reserved.requests,
  };
}

export interface ResolvedModel {
  /** Canonical model id. */
  readonly model: string;
  /** Adapter that the name stands for, null: the base model. */
  readonly adapter: string | null;
}

/** What a client's model name stands for in this fleet; null if nobody serves it. A base model's name wins over an adapter's. */
export function resolveModel(
  rows: readonly Pick<FleetRow, "model" | "servedNames" | "adapters">[],
  servedName: string,
): ResolvedModel | null {
  let adapterOf: string | null = null;
  for (const row of rows) {
    if (row.adapters.includes(servedName)) adapterOf ??= row.model;
    else if (row.servedNames.includes(servedName)) return { model: row.model, adapter: null };
  }
  return adapterOf === null ? null : { model: adapterOf, adapter: servedName };
}
