/** View → candidates: what each rank holds of the prompt, by tier, and what it has to do already (design D2, D6, D8). */

import type { KedgeConfig } from "../config/index.ts";
import {
  awaitsEvents,
  effectiveLoad,
  type FeedSettings,
  feedLagging,
  heldDepth,
  predictionTtlMs,
} from "../fleet/rules.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { PrefixChain } from "../prefix/types.ts";
import type { Candidate } from "../routing/index.ts";
import type { LookupResult, ViewRead } from "../store/types.ts";

/**
 * `exact`: the worker's events are in the view; `predicted`: its cache is guessed from earlier decisions. Without a view, over the last known
 * fleet: `consistent-hash` of the prompt's head; `two-choices` for prompts without keys and modes that do not look at caches (D8).
 */
export type Rung = "exact" | "predicted" | "consistent-hash" | "two-choices";

/** What a request's prompt is like before anybody was asked who holds it. */
export interface Prompt {
  readonly chain: PrefixChain | null;
  /** Null: known in bytes only. */
  readonly exactTokens: number | null;
  /** UTF-8 bytes of what is known of it as text. */
  readonly bytes: number;
  readonly bytesPerToken: number;
  readonly salted: boolean;
}

export interface Holdings {
  readonly candidates: readonly Candidate[];
  readonly promptTokens: number;
}

/** Newcomers ramp up over this long, if there is anybody to leave the work to. */
export const RAMP_UP_MS = 10_000;

const NO_KEYS = new BigUint64Array(0);

/**
 * Keys to be looked up. An engine always computes a prompt's last token, so it never resumes where the prompt ends: a key that ends there
 * is not asked for. (One less than its usable tokens would not do: a sliding window that is held there may have let go of what it takes to
 * resume a block before.)
 */
export function askableKeys(chain: PrefixChain | null): BigUint64Array {
  if (chain === null) return NO_KEYS;
  const { keys, unitSize, unitCount, complete } = chain;
  const endsThere = complete && keys.length * unitSize === unitCount;
  return endsThere ? keys.subarray(0, -1) : keys;
}

export function feedSettings(config: KedgeConfig): FeedSettings {
  return {
    lagEvents: config.feed.lagEventsThreshold,
    lagMs: config.feed.lagMsThreshold,
    predictionTtlMs: config.router.ttlSeconds * 1_000,
    bridgeTtlMs: config.router.predictedTtlSeconds * 1_000,
  };
}

/** Events of this rank tell what it holds of such a prompt. */
function hearsEvents(row: FleetRow, salted: boolean, config: KedgeConfig): boolean {
  return config.router.kvEvents && row.kvEvents && (!salted || row.saltInEvents);
}

export function rungOf(row: FleetRow, salted: boolean, config: KedgeConfig, feed: FeedSettings): Rung {
  return hearsEvents(row, salted, config) && !feedLagging(row, feed) ? "exact" : "predicted";
}

/** Life of a prediction for this rank: full where events do not come. */
export function predictionLifeMs(
  row: FleetRow,
  salted: boolean,
  config: KedgeConfig,
  feed: FeedSettings,
): number {
  return hearsEvents(row, salted, config) ? predictionTtlMs(row, feed) : feed.predictionTtlMs;
}

/** One candidate per row, in the rows' order. `exclude` gives the reason why a row may not serve, or null. */
export function candidatesOf(
  view: ViewRead,
  rows: readonly FleetRow[],
  prompt: Prompt,
  config: KedgeConfig,
  feed: FeedSettings,
  exclude: (row: FleetRow) => string | null,
): Holdings {
  const reader = new OverlapReader(view.lookup, prompt, config, feed);
  const overlaps = rows.map((row) => {
    const device = reader.blocks(row, row.slots.device);
    const host = Math.max(device, reader.blocks(row, row.slots.host));
    return { device, host, disk: Math.max(host, reader.blocks(row, row.slots.disk)) };
  });
  const promptTokens = prompt.exactTokens ?? estimateTokens(view.lookup, prompt, rows, overlaps);
  const grown = rows.some((row) => row.ageMs >= RAMP_UP_MS);
  const candidates = rows.map((row, i): Candidate => {
    const { device, host, disk } = overlaps[i]!;
    const load = effectiveLoad(row);
    return {
      worker: row.worker,
      rank: row.rank,
      blockSize: row.blockSize,
      overlapBlocks: device,
      hostExtensionBlocks: host - device,
      diskExtensionBlocks: disk - host,
      sharedBlocksBeyondDevice: 0,
      treeSize: 0,
      load: load && { ...load, newBlocks: Math.ceil(promptTokens / row.blockSize) },
      totalBlocks: row.totalBlocks,
      maxNumBatchedTokens: row.maxNumBatchedTokens,
      taints: row.taints,
      // A fleet that has just started as a whole has nobody to ramp up beside.
      ageMs: grown ? row.ageMs : null,
      excluded: exclude(row),
    };
  });
  return { candidates, promptTokens };
}

/** The deepest confirmed holder counted the tokens of its part; only the rest is guessed from its bytes. */
function estimateTokens(
  lookup: LookupResult,
  prompt: Prompt,
  rows: readonly FleetRow[],
  overlaps: readonly { readonly disk: number }[],
): number {
  const { chain, bytes, bytesPerToken } = prompt;
  let knownTokens = 0;
  let knownBytes = 0;
  if (chain !== null && chain.scheme === "bytes") {
    for (let i = 0; i < lookup.count; i++) {
      const held = lookup.confirmedDepth[i]! * chain.unitSize;
      if (held <= knownBytes) continue;
      knownBytes = held;
      knownTokens = lookup.confirmedTokens[i]!;
    }
  }
  const guess = knownTokens + Math.round(Math.max(0, bytes - knownBytes) / bytesPerToken);
  const longest = overlaps.reduce((most, { disk }, i) => Math.max(most, disk * rows[i]!.blockSize), 0);
  return Math.max(guess, longest + 1);
}

class OverlapReader {
  private readonly lookup: LookupResult;
  private readonly prompt: Prompt;
  private readonly config: KedgeConfig;
  private readonly feed: FeedSettings;
  private readonly bySlot = new Map<number, number>();

  constructor(lookup: LookupResult, prompt: Prompt, config: KedgeConfig, feed: FeedSettings) {
    this.lookup = lookup;
    this.prompt = prompt;
    this.config = config;
    this.feed = feed;
    for (let i = 0; i < lookup.count; i++) this.bySlot.set(lookup.slots[i]!, i);
  }

  /** Whole blocks that the slot lets the engine reuse. */
  blocks(row: FleetRow, slot: number): number {
    const index = this.bySlot.get(slot);
    const { chain, salted } = this.prompt;
    if (index === undefined || chain === null) return 0;
    const { lookup, feed } = this;
    const confirmed = hearsEvents(row, salted, this.config) ? lookup.confirmedDepth[index]! : 0;
    const trusted = heldDepth(row, confirmed, 0, feed);
    const guessing = rungOf(row, salted, this.config, feed) === "predicted" || awaitsEvents(row);
    const predicted = guessing ? lookup.predictedDepth[index]! : 0;
    const known = trusted === 0 ? 0 : this.usable(lookup.confirmedTokens[index]!, row.blockSize);
    // Where events reach as deep as the prediction, they know better.
    if (predicted <= trusted) return known / row.blockSize;
    const guessed = this.usable(this.tokensAt(chain, predicted), row.blockSize);
    return Math.max(known, guessed) / row.blockSize;
  }

  /** Tokens up to a depth that nobody has counted: the deepest count at or before it, and an estimate of the rest. */
  private tokensAt(chain: PrefixChain, depth: number): number {
    if (chain.scheme === "tokens") return depth * chain.unitSize;
    const { lookup, prompt } = this;
    let countedDepth = 0;
    let counted = 0;
    for (let i = 0; i < lookup.count; i++) {
      const at = lookup.confirmedDepth[i]!;
      if (at <= countedDepth || at > depth) continue;
      countedDepth = at;
      counted = lookup.confirmedTokens[i]!;
    }
    return counted + ((depth - countedDepth) * chain.unitSize) / prompt.bytesPerToken;
  }

  /** Tokens that an engine skips at this depth: whole blocks of those that the holder says are usable (D5). */
  private usable(heldTokens: number, blockSize: number): number {
    // An estimate may reach past the prompt's end where its length is known.
    const most = (this.prompt.exactTokens ?? Number.POSITIVE_INFINITY) - 1;
    return Math.floor(Math.max(0, Math.min(heldTokens, most)) / blockSize) * blockSize;
  }
}
