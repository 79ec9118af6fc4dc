/** Explanations of decisions: one JSON shape for the route endpoint, the CLI and decision records, and Dynamo's log lines. */

import { toFixedEven } from "./format.ts";
import { visibleTreeSize } from "./policies/kv.ts";
import type { Candidate, Decision, PoolRole, RouterMode, Scored, Standing } from "./types.ts";

/** Serialised as it is; costs and parts in blocks, exact (not rounded). */
export interface Explanation {
  readonly mode: RouterMode;
  readonly role: PoolRole;
  readonly temperature: number;
  readonly prompt_tokens: number;
  readonly chosen: { readonly worker: string; readonly rank: number } | null;
  /** Best first: the failover order. */
  readonly ranking: readonly CandidateExplanation[];
  readonly excluded: readonly {
    readonly worker: string;
    readonly rank: number;
    readonly overlap_blocks: number;
    readonly reason: string;
  }[];
  readonly rejection: { readonly code: string; readonly message: string } | null;
}

export interface CandidateExplanation {
  readonly worker: string;
  readonly rank: number;
  readonly standing: Standing;
  readonly overlap_blocks: number;
  readonly weight: number;
  readonly prefill_blocks: number;
  readonly decode_blocks: number;
  readonly cost: number;
  /** The load before this request; null: unknown. */
  readonly load: {
    readonly active_prefill_tokens: number;
    readonly active_decode_blocks: number;
    readonly active_requests: number;
    readonly new_blocks: number;
  } | null;
  /** `kv-1.x` only. */
  readonly raw_prefill_blocks?: number;
  readonly credit_blocks?: number;
  readonly credit_decay?: number;
  readonly active_request_blocks?: number;
  readonly taint_factor?: number;
}

export function explain(decision: Decision): Explanation {
  const { settings, chosen, rejection } = decision;
  return {
    mode: settings.mode,
    role: settings.role,
    temperature: settings.temperature,
    prompt_tokens: decision.facts.promptTokens,
    chosen: chosen && { worker: chosen.candidate.worker, rank: chosen.candidate.rank },
    ranking: decision.ranking.map(explainScored),
    excluded: decision.excluded.map(({ candidate, reason }) => ({
      worker: candidate.worker,
      rank: candidate.rank,
      overlap_blocks: candidate.overlapBlocks,
      reason,
    })),
    rejection: rejection && { code: rejection.code, message: rejection.message },
  };
}

function explainScored(scored: Scored): CandidateExplanation {
  const { candidate, tiered } = scored;
  return {
    worker: candidate.worker,
    rank: candidate.rank,
    standing: scored.standing,
    overlap_blocks: scored.overlapBlocks,
    weight: scored.weight,
    prefill_blocks: scored.prefillBlocks,
    decode_blocks: scored.decodeBlocks,
    cost: scored.cost,
    load: explainLoad(candidate),
    ...(tiered && {
      raw_prefill_blocks: tiered.rawPrefillBlocks,
      credit_blocks: tiered.creditBlocks,
      credit_decay: tiered.decay,
      active_request_blocks: tiered.activeRequestBlocks,
      taint_factor: tiered.taintFactor,
    }),
  };
}

function explainLoad({ load }: Candidate): CandidateExplanation["load"] {
  return (
    load && {
      active_prefill_tokens: load.activePrefillTokens,
      active_decode_blocks: load.activeDecodeBlocks,
      active_requests: load.activeRequests,
      new_blocks: load.newBlocks,
    }
  );
}

/** One "Formula for …" line per scored candidate in ranking order, then the "Selected worker: …" line. */
export function logLines(decision: Decision): string[] {
  const lines = decision.ranking.map(formulaLine);
  if (decision.chosen !== null) lines.push(selectedLine(decision.chosen));
  return lines;
}

/** E.g. `Formula for worker_id=a dp_rank=0 with 1 cached blocks: 3.875 = 1.5 * 1.250 + 2.000`. */
export function formulaLine(scored: Scored): string {
  const { tiered } = scored;
  const terms = [
    `${toFixedEven(scored.weight, 1)} * ${toFixedEven(scored.prefillBlocks, 3)}`,
    toFixedEven(scored.decodeBlocks, 3),
  ];
  if (tiered !== null && tiered.activeRequestBlocks !== 0) {
    terms.push(toFixedEven(tiered.activeRequestBlocks, 3));
  }
  const sum = terms.join(" + ");
  const factor = tiered !== null && tiered.taintFactor !== 1 ? toFixedEven(tiered.taintFactor, 3) : null;
  const formula = factor === null ? sum : `(${sum}) * ${factor}`;
  return `Formula for ${named(scored)} with ${cached(scored)} cached blocks: ${toFixedEven(scored.cost, 3)} = ${formula}`;
}

/** E.g. `Selected worker: worker_id=a dp_rank=0, logit: 3.875, cached blocks: 1, tree size: 4, total blocks: 1024`. */
export function selectedLine(scored: Scored): string {
  const { candidate } = scored;
  const total = candidate.totalBlocks === null ? "" : `, total blocks: ${candidate.totalBlocks}`;
  return (
    `Selected worker: ${named(scored)}, logit: ${toFixedEven(scored.cost, 3)}, cached blocks: ${cached(scored)}, ` +
    `tree size: ${visibleTreeSize(candidate)}${total}`
  );
}

const named = ({ candidate }: Scored): string => `worker_id=${candidate.worker} dp_rank=${candidate.rank}`;

const cached = ({ overlapBlocks }: Scored): string =>
  Number.isInteger(overlapBlocks) ? `${overlapBlocks}` : toFixedEven(overlapBlocks, 2);
