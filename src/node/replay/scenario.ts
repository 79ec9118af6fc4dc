/** Replays a routing session: events into the index, requests through the decision, load through the tracker. */

import type { Candidate, PolicyConfig, RandomSource, RequestFacts, Scored } from "../../routing/index.ts";
import { DEFAULT_POLICY, decide, plainRequest } from "../../routing/index.ts";
import { LoadTracker } from "../../routing/tracker.ts";
import { type BlockIndex, NO_DEPTHS, type Place, placeName } from "./block-index.ts";
import type { RouteStep, Scenario, ScenarioStep } from "./file.ts";
import { compareRoute } from "./scenario-compare.ts";
import type { Tally } from "./tally.ts";

const TIER_NAMES = { host_pinned: "host", disk: "disk" } as const;

/** What Kedge makes of one recorded route. */
export interface RouteOutcome {
  /** Every (worker, rank), in order. */
  readonly candidates: readonly Candidate[];
  readonly ranking: readonly Scored[];
  /** As configured, the request's overrides left out. */
  readonly policy: PolicyConfig;
  readonly promptTokens: number;
}

/** `chainKeys`: sequence hashes of a prompt's full blocks. A route is booked on the recorded worker: ties are random. */
export function replayScenario(
  scenario: Scenario,
  index: BlockIndex,
  chainKeys: (tokenIds: readonly number[]) => readonly bigint[],
  random: RandomSource,
  tally: Tally,
): void {
  const replay = new ScenarioReplay(scenario, index, chainKeys, random);
  scenario.steps.forEach((step, nth) => {
    if (step.op !== "route") replay.apply(step);
    else compareRoute(scenario, step, nth, replay.route(step), tally);
  });
}

class ScenarioReplay {
  readonly #scenario: Scenario;
  readonly #index: BlockIndex;
  readonly #chainKeys: (tokenIds: readonly number[]) => readonly bigint[];
  readonly #random: RandomSource;
  readonly #policy: PolicyConfig;
  readonly #tracker: LoadTracker;
  readonly #places: readonly (Place & { readonly taints: readonly string[] })[];

  constructor(
    scenario: Scenario,
    index: BlockIndex,
    chainKeys: (tokenIds: readonly number[]) => readonly bigint[],
    random: RandomSource,
  ) {
    this.#scenario = scenario;
    this.#index = index;
    this.#chainKeys = chainKeys;
    this.#random = random;
    this.#policy = policyOf(scenario);
    const { config } = scenario;
    this.#tracker = new LoadTracker({
      trackActiveBlocks: config.router_track_active_blocks !== false,
      assumeKvReuse: config.router_assume_kv_reuse !== false,
      trackPrefillTokens: config.router_track_prefill_tokens !== false,
    });
    this.#places = scenario.workers.flatMap(({ worker, dp_size, taints }) =>
      Array.from({ length: dp_size }, (_, rank) => ({ worker: String(worker), rank, taints })),
    );
    for (const { worker, rank } of this.#places) this.#tracker.addRank(worker, rank);
  }

  apply(step: Exclude<ScenarioStep, RouteStep>): void {
    if (step.op === "prefill_complete") this.#tracker.markPrefillCompleted(step.request);
    else if (step.op === "free") this.#tracker.free(step.request);
    else if (step.op === "output_block") this.#tracker.addOutputBlock(step.request, step.decay_fraction);
    else this.#applyEvent(step);
  }

  route(step: RouteStep): RouteOutcome {
    const promptTokens = step.tokens;
    const tokenIds = this.#scenario.prompts[step.prompt]!.slice(0, promptTokens);
    const hashes = this.#chainKeys(tokenIds);
    const candidates = this.#candidates(tokenIds, hashes, step);
    const { ranking } = decide(factsOf(step), candidates, this.#policy, this.#random);
    if (step.chosen) this.#book(step, step.chosen, candidates, hashes);
    return { candidates, ranking, policy: this.#policy, promptTokens };
  }

  #candidates(tokenIds: readonly number[], hashes: readonly bigint[], step: RouteStep): Candidate[] {
    // Dynamo makes no index at all for a configured weight of 0.
    const depths = this.#policy.overlapScoreWeight === 0 ? new Map() : this.#index.lookup(tokenIds);
    const reuse = step.override?.assume_kv_reuse;
    return this.#places.map((place) => {
      const { device, host, disk } = depths.get(placeName(place)) ?? NO_DEPTHS;
      return {
        worker: place.worker,
        rank: place.rank,
        blockSize: this.#scenario.block_size,
        overlapBlocks: device,
        hostExtensionBlocks: host,
        diskExtensionBlocks: disk,
        sharedBlocksBeyondDevice: 0,
        treeSize: device > 0 ? this.#index.blockCount(place) : 0,
        load: this.#tracker.load(
          place.worker,
          place.rank,
          hashes,
          typeof reuse === "boolean" ? reuse : undefined,
        ),
        totalBlocks: null,
        maxNumBatchedTokens: null,
        taints: place.taints,
        ageMs: null,
        excluded: null,
      };
    });
  }

  #book(
    step: RouteStep,
    at: { readonly worker: number; readonly dp_rank: number },
    candidates: readonly Candidate[],
    hashes: readonly bigint[],
  ): void {
    const worker = String(at.worker);
    const chosen = candidates.find((one) => one.worker === worker && one.rank === at.dp_rank)!;
    const { assume_kv_reuse: reuse, track_prefill_tokens: prefill } = step.override ?? {};
    this.#tracker.add({
      requestId: step.request,
      worker,
      rank: at.dp_rank,
      hashes,
      prefillTokens: Math.max(0, step.tokens - cachedTokens(chosen, this.#policy)),
      nowMs: 0,
      ...(typeof reuse === "boolean" && { assumeKvReuse: reuse }),
      ...(typeof prefill === "boolean" && { trackPrefillTokens: prefill }),
    });
  }

  #applyEvent(step: Extract<ScenarioStep, { op: "store" | "remove" | "clear" }>): void {
    const place = { worker: String(step.worker), rank: step.dp_rank };
    if (step.op === "clear") {
      this.#index.clear(place);
      return;
    }
    const tier = step.tier === undefined ? "device" : TIER_NAMES[step.tier];
    if (step.op === "remove") {
      this.#index.remove(place, tier, step.block_hashes);
      return;
    }
    const { block_size: size, prompts } = this.#scenario;
    const blocks = step.block_hashes.map((hash, nth) => {
      const start = (step.from_block + nth) * size;
      return { hash, tokenIds: prompts[step.prompt]!.slice(start, start + size) };
    });
    this.#index.store(place, tier, step.parent, blocks);
  }
}

/** Prompt tokens that need no prefill there: tiers below the device by their weights, as `kv-1.x` counts them. */
export function cachedTokens(candidate: Candidate, settings: PolicyConfig): number {
  const { overlapBlocks, hostExtensionBlocks, diskExtensionBlocks, blockSize } = candidate;
  const blocks =
    overlapBlocks +
    settings.hostCacheHitWeight * hostExtensionBlocks +
    settings.diskCacheHitWeight * diskExtensionBlocks;
  return Math.round(blocks * blockSize);
}

/** Version 0.9 names a weight, 1.6 a credit. */
export const isVersion09 = (scenario: Scenario): boolean => "overlap_score_weight" in scenario.config;

function policyOf(scenario: Scenario): PolicyConfig {
  const { config } = scenario;
  const number = (key: string, otherwise: number): number => {
    const value = config[key];
    return typeof value === "number" ? value : otherwise;
  };
  const base = DEFAULT_POLICY;
  return {
    ...base,
    mode: isVersion09(scenario) ? "kv" : "kv-1.x",
    unknownLoad: "dynamo",
    overlapScoreWeight: number("overlap_score_weight", base.overlapScoreWeight),
    temperature: number("router_temperature", base.temperature),
    overlapScoreCredit: number("overlap_score_credit", base.overlapScoreCredit),
    overlapScoreCreditDecay: number("overlap_score_credit_decay", base.overlapScoreCreditDecay),
    prefillLoadScale: number("prefill_load_scale", base.prefillLoadScale),
    decodeActiveRequestWeight: number("decode_active_request_weight", base.decodeActiveRequestWeight),
    hostCacheHitWeight: number("host_cache_hit_weight", base.hostCacheHitWeight),
    diskCacheHitWeight: number("disk_cache_hit_weight", base.diskCacheHitWeight),
    trackPrefillTokens: config.router_track_prefill_tokens !== false,
  };
}

function factsOf(step: RouteStep): RequestFacts {
  const { override } = step;
  const weight = override?.overlap_score_weight;
  const temperature = override?.router_temperature;
  const prefill = override?.track_prefill_tokens;
  return {
    ...plainRequest(step.tokens),
    requiredTaints: step.constraints?.required_taints ?? [],
    preferredTaints: step.constraints?.preferred_taints ?? {},
    overrides: override
      ? {
          ...(typeof weight === "number" && { overlapScoreWeight: weight }),
          ...(typeof temperature === "number" && { temperature }),
          ...(typeof prefill === "boolean" && { trackPrefillTokens: prefill }),
        }
      : null,
  };
}
