/** Compares one recorded route, row by row, with what Kedge makes of it. */

import type { Candidate, Scored } from "../../routing/index.ts";
import type { RouteStep, Scenario } from "./file.ts";
import { cachedTokens, isVersion09, type RouteOutcome } from "./scenario.ts";
import type { Tally } from "./tally.ts";

/** 0.9 is recorded as printed, to three decimals. */
const TOLERANCE_09 = 0.0006;
const RELATIVE_TOLERANCE_16 = 1e-6;

export function compareRoute(
  scenario: Scenario,
  step: RouteStep,
  nth: number,
  outcome: RouteOutcome,
  tally: Tally,
): void {
  const scored = new Map(outcome.ranking.map((one) => [one.candidate, one]));
  const at = `step ${nth} ${step.request}`;
  tally.check(`${at} candidates`, step.candidates.length, outcome.candidates.length);
  outcome.candidates.forEach((candidate, row) => {
    const recorded = step.candidates[row];
    if (recorded === undefined) return;
    const where = `${at} worker ${candidate.worker}:${candidate.rank}`;
    const compare = isVersion09(scenario) ? compareRow09 : compareRow16;
    compare({ tally, where, recorded, candidate, scored: scored.get(candidate) ?? null, outcome });
  });
  compareChoice(scenario, step, at, outcome, tally);
}

interface Row {
  readonly tally: Tally;
  readonly where: string;
  readonly recorded: readonly (number | string | null)[];
  readonly candidate: Candidate;
  /** Null: not eligible. */
  readonly scored: Scored | null;
  readonly outcome: RouteOutcome;
}

function compareRow09({ tally, where, recorded, candidate, scored, outcome }: Row): void {
  const load = candidate.load!;
  const uncached = Math.max(0, outcome.promptTokens - candidate.overlapBlocks * candidate.blockSize);
  const exact: [string, number][] = [
    ["worker", Number(candidate.worker)],
    ["rank", candidate.rank],
    ["cached blocks", candidate.overlapBlocks],
    ["active prefill tokens", load.activePrefillTokens],
    ["active decode blocks", load.activeDecodeBlocks],
    ["potential prefill tokens", load.activePrefillTokens + uncached],
    ["potential decode blocks", load.activeDecodeBlocks + load.newBlocks],
  ];
  exact.forEach(([name, actual], column) => {
    tally.check(`${where} ${name}`, recorded[column]!, actual);
  });
  const printed: [string, number | null][] = [
    ["prefill blocks", scored?.prefillBlocks ?? null],
    ["decode blocks", scored?.decodeBlocks ?? null],
    ["cost", scored?.cost ?? null],
  ];
  printed.forEach(([name, actual], nth) => {
    tally.near(`${where} ${name}`, Number(recorded[exact.length + nth]), actual, TOLERANCE_09);
  });
}

function compareRow16({ tally, where, recorded, candidate, scored, outcome }: Row): void {
  const load = candidate.load!;
  const { policy, promptTokens } = outcome;
  const uncached = policy.trackPrefillTokens
    ? Math.max(0, promptTokens - cachedTokens(candidate, policy))
    : 0;
  const exact: [string, number][] = [
    ["worker", Number(candidate.worker)],
    ["rank", candidate.rank],
    ["device blocks", candidate.overlapBlocks],
    ["host extension", candidate.hostExtensionBlocks],
    ["disk extension", candidate.diskExtensionBlocks],
    ["active prefill tokens", load.activePrefillTokens],
    ["active decode blocks", load.activeDecodeBlocks],
    ["active requests", load.activeRequests],
    ["potential prefill tokens", load.activePrefillTokens + uncached],
    ["potential decode blocks", load.activeDecodeBlocks + load.newBlocks],
  ];
  exact.forEach(([name, actual], column) => {
    tally.check(`${where} ${name}`, recorded[column]!, actual);
  });
  const cost = recorded[exact.length];
  if (cost === "ineligible") tally.check(`${where} eligible`, false, scored !== null);
  else if (typeof cost === "number") nearCost16(tally, `${where} cost`, cost, scored);
}

function nearCost16(tally: Tally, what: string, expected: number, scored: Scored | null): void {
  tally.near(what, expected, scored?.cost ?? null, RELATIVE_TOLERANCE_16 * Math.max(1, Math.abs(expected)));
}

/** The recorded choice must cost what it cost there and be among those that Kedge would choose from. */
function compareChoice(
  scenario: Scenario,
  step: RouteStep,
  at: string,
  outcome: RouteOutcome,
  tally: Tally,
): void {
  const { chosen } = step;
  const first = outcome.ranking[0];
  tally.check(`${at} routed`, Boolean(chosen), first !== undefined);
  if (!chosen || first === undefined) return;
  const same = outcome.ranking.find(
    ({ candidate }) => candidate.worker === String(chosen.worker) && candidate.rank === chosen.dp_rank,
  );
  tally.check(`${at} chosen is eligible`, true, same !== undefined);
  if (same === undefined) return;
  const isTied = same.cost === first.cost;
  if (isVersion09(scenario)) {
    tally.near(`${at} chosen cost`, chosen.cost, same.cost, TOLERANCE_09);
    tally.check(`${at} chosen overlap`, chosen.overlap_blocks!, same.candidate.overlapBlocks);
    tally.check(`${at} chosen tree size`, chosen.tree_size!, same.candidate.treeSize);
    tally.check(`${at} choice`, true, isTied && same.candidate.treeSize === first.candidate.treeSize);
  } else {
    nearCost16(tally, `${at} chosen cost`, chosen.cost, same);
    compareBooked16(chosen, same.candidate, at, outcome, tally);
    tally.check(`${at} choice`, true, isTied);
  }
}

function compareBooked16(
  chosen: NonNullable<RouteStep["chosen"]>,
  candidate: Candidate,
  at: string,
  { candidates, policy, promptTokens }: RouteOutcome,
  tally: Tally,
): void {
  const { worker, blockSize } = candidate;
  // 1.6.1 reports the overlap of the worker's best rank, whichever it chose, and the trailing partial block as one.
  const best = Math.max(...candidates.filter((one) => one.worker === worker).map((one) => one.overlapBlocks));
  const partial = promptTokens % blockSize === 0 ? 0 : 1;
  const load = candidate.load!;
  const uncached = Math.max(0, promptTokens - cachedTokens(candidate, policy));
  tally.check(`${at} chosen overlap tokens`, chosen.overlap_tokens!, best * blockSize);
  tally.check(`${at} chosen prefill tokens`, chosen.effective_prefill_tokens!, uncached);
  const blocks = load.activeDecodeBlocks + load.newBlocks + partial;
  tally.check(`${at} chosen decode blocks`, chosen.potential_decode_blocks!, blocks);
}
