/** From a read request to ranked workers: model, prompt keys, one read of the view, the pure decision (design D1, D7). */

import type { KedgeConfig } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import type { FeedSettings } from "../fleet/rules.ts";
import type { FleetRow } from "../fleet/types.ts";
import {
  DEFAULT_POLICY,
  type Decision,
  decide,
  type PolicyConfig,
  type RouterMode,
  type Scored,
} from "../routing/index.ts";
import type { ViewRead } from "../store/types.ts";
import type { Breakers } from "./breaker.ts";
import {
  askableKeys,
  candidatesOf,
  feedSettings,
  type Prompt,
  RAMP_UP_MS,
  type Rung,
  rungOf,
} from "./candidates.ts";
import type { GatewayDeps } from "./deps.ts";
import type { Directory, ServedModel } from "./models.ts";
import type { RequestOverrides } from "./overrides.ts";
import type { PromptReader } from "./prompt.ts";
import type { ClientRequest } from "./request.ts";

/** Costs that differ by less than a block say nothing: the view cannot see which running requests share blocks (D7). */
const TIE_BAND_BLOCKS = 1;

export interface Route {
  readonly served: ServedModel;
  readonly prompt: Prompt;
  /** Why the prompt has no keys; null if it has. */
  readonly unkeyed: string | null;
  readonly promptTokens: number;
  readonly decision: Decision;
  /** Milliseconds for rendering and hashing, then for reading and deciding. */
  readonly keyingMs: number;
  readonly decisionMs: number;
  rowOf(scored: Scored): FleetRow;
  overlapTokens(scored: Scored): number;
  rung(scored: Scored): Rung;
}

export interface RouterParts {
  readonly deps: GatewayDeps;
  readonly directory: Directory;
  readonly prompts: PromptReader;
  readonly breakers: Breakers;
}

export class Router {
  private readonly parts: RouterParts;
  private readonly config: KedgeConfig;
  private readonly policy: PolicyConfig;
  readonly feed: FeedSettings;
  /** Requests routed so far by canonical model, for round robin. */
  private readonly turns = new Map<string, number>();

  constructor(parts: RouterParts) {
    this.parts = parts;
    this.config = parts.deps.config;
    this.policy = policyOf(this.config);
    this.feed = feedSettings(this.config);
  }

  /**
   * `dryRun`: leaves no trace, not even in round robin's count.
   * Errors: `model_not_found`, `template_error`, `invalid_request`; a decision's own rejection is in `decision`.
   */
  async route(request: ClientRequest, overrides: RequestOverrides, dryRun: boolean): Promise<Route> {
    const { deps, directory, prompts } = this.parts;
    const startMs = deps.clock.now();
    const found = directory.find(request.model);
    const served = found instanceof Promise ? await found : found;
    const { prompt, unkeyed } = prompts.read(request, served);
    const keyedMs = deps.clock.now();
    const read = deps.store.read(served.model, askableKeys(prompt.chain));
    // A memory store answers at once; awaiting it would cost a turn of the loop per request.
    const view = read instanceof Promise ? await read : read;
    return this.choose({
      requested: request.model,
      served,
      prompt,
      unkeyed,
      overrides,
      dryRun,
      view,
      startMs,
      keyedMs,
    });
  }

  private choose(input: {
    readonly requested: string;
    readonly served: ServedModel;
    readonly prompt: Prompt;
    readonly unkeyed: string | null;
    readonly overrides: RequestOverrides;
    readonly dryRun: boolean;
    readonly view: ViewRead;
    readonly startMs: number;
    readonly keyedMs: number;
  }): Route {
    const { served, prompt, overrides, view } = input;
    const { clock, random } = this.parts.deps;
    const nowMs = clock.now();
    const rows = view.fleet.filter((row) => serves(row, input.requested));
    const onlyPrefill = rows.every((row) => row.role === "prefill");
    const { candidates, promptTokens } = candidatesOf(view, rows, prompt, this.config, this.feed, (row) =>
      row.role === "prefill" && !onlyPrefill
        ? "prefill pool"
        : this.parts.breakers.refusal(row.worker, row.incarnation, nowMs),
    );
    const facts = {
      promptTokens,
      turn: this.turn(served.model, input.dryRun),
      pin: overrides.pin,
      allowedWorkers: null,
      requiredTaints: [],
      preferredTaints: {},
      overrides: overrides.policy,
    };
    const decision = decide(facts, candidates, this.policyFor(view, overrides.mode), random);
    const rowOf = ({ candidate }: Scored): FleetRow => {
      const row = rows.find((one) => one.worker === candidate.worker && one.rank === candidate.rank);
      if (row === undefined) throw new KedgeError("internal_error", "A candidate without a fleet row.");
      return row;
    };
    return {
      served,
      prompt,
      unkeyed: input.unkeyed,
      promptTokens,
      decision,
      keyingMs: input.keyedMs - input.startMs,
      decisionMs: clock.now() - input.keyedMs,
      rowOf,
      overlapTokens: ({ candidate }) => candidate.overlapBlocks * candidate.blockSize,
      rung: (scored) => rungOf(rowOf(scored), prompt.salted, this.config, this.feed),
    };
  }

  /** Thresholds set at run time win over the configured ones. */
  private policyFor({ thresholds }: ViewRead, mode: RouterMode | null): PolicyConfig {
    const { busy } = this.policy;
    return {
      ...this.policy,
      mode: mode ?? this.policy.mode,
      busy: {
        activeDecodeBlocksThreshold:
          thresholds.activeDecodeBlocksThreshold ?? busy.activeDecodeBlocksThreshold,
        activePrefillTokensThreshold:
          thresholds.activePrefillTokensThreshold ?? busy.activePrefillTokensThreshold,
        activePrefillTokensThresholdFrac:
          thresholds.activePrefillTokensThresholdFrac ?? busy.activePrefillTokensThresholdFrac,
      },
    };
  }

  private turn(model: string, dryRun: boolean): number {
    const turn = this.turns.get(model) ?? 0;
    if (!dryRun) this.turns.set(model, turn + 1);
    return turn;
  }
}

function serves(row: FleetRow, name: string): boolean {
  return row.servedNames.includes(name) || row.adapters.includes(name);
}

function policyOf({ router }: KedgeConfig): PolicyConfig {
  const { activeDecodeBlocksThreshold, activePrefillTokensThreshold, activePrefillTokensThresholdFrac } =
    router;
  return {
    ...DEFAULT_POLICY,
    mode: router.mode,
    overlapScoreWeight: router.overlapScoreWeight,
    temperature: router.temperature,
    overlapScoreCredit: router.overlapScoreCredit,
    overlapScoreCreditDecay: router.overlapScoreCreditDecay,
    prefillLoadScale: router.prefillLoadScale ?? router.overlapScoreWeight,
    decodeActiveRequestWeight: router.decodeActiveRequestWeight,
    hostCacheHitWeight: router.hostCacheHitWeight,
    diskCacheHitWeight: router.diskCacheHitWeight,
    sharedCacheMultiplier: router.sharedCacheMultiplier,
    tieBandBlocks: TIE_BAND_BLOCKS,
    rampUpMs: RAMP_UP_MS,
    busy: { activeDecodeBlocksThreshold, activePrefillTokensThreshold, activePrefillTokensThresholdFrac },
  };
}
