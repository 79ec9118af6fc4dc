/** From a read request to ranked workers: model, prompt keys, one read of the view, the pure decision (design D1, D7). */

import type { KedgeConfig } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import type { FeedSettings } from "../fleet/rules.ts";
import type { FleetRow } from "../fleet/types.ts";
import {
  type Candidate,
  consistentHash,
  DEFAULT_POLICY,
  type Decision,
  decide,
  type Policy,
  type PolicyConfig,
  type RouterMode,
  type Scored,
  twoChoices,
} from "../routing/index.ts";
import type { MaybePromise, ViewRead } from "../store/types.ts";
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
import type { UnderWay } from "./under-way.ts";
import { type ViewBudget, type ViewGuard, viewUnavailable } from "./view-guard.ts";

/** Costs that differ by less than a block say nothing: the view cannot see which running requests share blocks (D7). */
const TIE_BAND_BLOCKS = 1;
/** What of a prompt makes it stay with its like when nobody knows who holds it: a system prompt's length, not a chat's. */
const HEAD_KEYS = 8;
/** Modes that route by what workers hold; the others have no use for a prompt's head. */
const CACHE_MODES: ReadonlySet<RouterMode> = new Set(["kv", "kv-1.x", "direct"]);

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
  readonly guard: ViewGuard;
  readonly directory: Directory;
  readonly prompts: PromptReader;
  readonly breakers: Breakers;
  readonly underWay: UnderWay;
}

/** What one request brings to its decision. */
interface Question {
  readonly request: ClientRequest;
  readonly overrides: RequestOverrides;
  readonly dryRun: boolean;
  readonly budget: ViewBudget;
  readonly startMs: number;
}

/** A rung below the view's. */
interface Fallback {
  readonly rung: Rung;
  readonly policy: Policy;
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
   * Without the view the last known fleet is routed over. `dryRun`: leaves no trace, not even in round robin's count.
   * Errors: `model_not_found`, `template_error`, `invalid_request`, `view_unavailable` if no fleet is known either; a decision's own
   * rejection is in `decision`.
   */
  async route(request: ClientRequest, overrides: RequestOverrides, dryRun: boolean): Promise<Route> {
    const { deps, directory, guard } = this.parts;
    const question = { request, overrides, dryRun, budget: guard.budget(), startMs: deps.clock.now() };
    const found = directory.find(request.model, question.budget);
    const served = found instanceof Promise ? await found : found;
    const routed = this.routeServed(served, question);
    const route = routed instanceof Promise ? await routed : routed;
    const { ranking, excluded } = route.decision;
    if (ranking.length + excluded.length > 0 || !directory.isOld) return route;
    // Nobody serves the name as what it stood for when it was last read; it may stand for something else by now.
    return this.routeServed(await directory.ask(request.model, question.budget), question);
  }

  private routeServed(served: ServedModel, question: Question): MaybePromise<Route> {
    const { deps, prompts, guard } = this.parts;
    const read = prompts.read(question.request, served);
    const keyedMs = deps.clock.now();
    const view = guard.read(served.model, askableKeys(read.prompt.chain), question.budget);
    const choose = (one: ViewRead | null) => this.choose({ question, served, ...read, view: one, keyedMs });
    // A memory store answers at once; awaiting it would cost a turn of the loop per request.
    return view instanceof Promise ? view.then(choose) : choose(view);
  }

  private choose(input: {
    readonly question: Question;
    readonly served: ServedModel;
    readonly prompt: Prompt;
    readonly unkeyed: string | null;
    /** Null: out of reach. */
    readonly view: ViewRead | null;
    readonly keyedMs: number;
  }): Route {
    const { served, prompt, question } = input;
    // Closures of the route outlive this call: what they share with it must not hold the request's parsed form.
    const { overrides } = question;
    const { model: requested } = question.request;
    const { clock, random } = this.parts.deps;
    const nowMs = clock.now();
    const view = input.view ?? this.parts.guard.known.lastRead(served.model);
    const rows = view.fleet.filter((row) => serves(row, requested));
    if (input.view === null && rows.length === 0) throw viewUnavailable();
    const policy = this.policyFor(view, overrides.mode);
    const fallback = input.view === null ? this.fallback(policy.mode, prompt) : null;
    const onlyPrefill = rows.every((row) => row.role === "prefill");
    const { candidates, promptTokens } = candidatesOf(view, rows, prompt, this.config, this.feed, (row) =>
      row.role === "prefill" && !onlyPrefill
        ? "prefill pool"
        : this.parts.breakers.refusal(row.worker, row.incarnation, nowMs),
    );
    const facts = {
      promptTokens,
      turn: this.turn(served.model, question.dryRun),
      pin: overrides.pin,
      allowedWorkers: null,
      requiredTaints: [],
      preferredTaints: {},
      overrides: overrides.policy,
    };
    const decision = decide(facts, candidates, policy, random, fallback?.policy);
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
      keyingMs: input.keyedMs - question.startMs,
      decisionMs: clock.now() - input.keyedMs,
      rowOf,
      overlapTokens: ({ candidate }) => candidate.overlapBlocks * candidate.blockSize,
      rung: (scored) => fallback?.rung ?? rungOf(rowOf(scored), prompt.salted, this.config, this.feed),
    };
  }

  private fallback(mode: RouterMode, { chain }: Prompt): Fallback {
    const { deps, underWay } = this.parts;
    const requests = (candidate: Candidate) => underWay.of(candidate);
    const head = chain?.keys[Math.min(chain.keys.length, HEAD_KEYS) - 1];
    if (head === undefined || !CACHE_MODES.has(mode)) {
      return { rung: "two-choices", policy: twoChoices(requests) };
    }
    const { loadFactor } = this.config.fallback;
    const policy = consistentHash({ hasher: deps.hasher, head, underWay: requests, loadFactor });
    return { rung: "consistent-hash", policy };
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
