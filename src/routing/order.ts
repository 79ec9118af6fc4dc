/** Ranking: by cost, or by load; who stands behind whom whatever the cost. */

import { drawIndex, shuffle, softmaxProbabilities } from "./random.ts";
import type { Candidate, PolicyConfig, RandomSource, Scored, Standing } from "./types.ts";

/** Lower compares first. */
export type Comparison = (a: Scored, b: Scored) => number;

const STANDINGS: Readonly<Record<Standing, number>> = { ready: 0, newcomer: 1, "unknown-load": 2 };

export const byStanding: Comparison = (a, b) =>
  a.standing === b.standing ? 0 : STANDINGS[a.standing] - STANDINGS[b.standing];

/**
 * Failover order by cost. At temperature 0 ties go to `tieBreak`, then uniformly to chance; with a tie band the first
 * place is drawn uniformly among those within the band. Above 0 the first place is drawn by softmax. Either way only
 * the best standing competes for it, and the rest follows by cost.
 */
export function orderByCost(
  scored: Scored[],
  settings: PolicyConfig,
  random: RandomSource,
  tieBreak: Comparison | null,
): Scored[] {
  const ranking = shuffle(assignStandings(scored, settings, random), random);
  const drawn =
    settings.temperature === 0 && settings.tieBandBlocks > 0 ? firstInBand(ranking, settings) : null;
  ranking.sort((a, b) => byStanding(a, b) || a.cost - b.cost || (tieBreak === null ? 0 : tieBreak(a, b)));
  if (settings.temperature > 0) return toFront(ranking, drawBySoftmax(ranking, settings.temperature, random));
  return drawn === null ? ranking : toFront(ranking, ranking.indexOf(drawn));
}

/** Fewest running requests, then fewest blocks of work (prefill and decode), then uniformly at random. */
export const byLoad: Comparison = (a, b) =>
  byStanding(a, b) || requests(a.candidate) - requests(b.candidate) || work(a.candidate) - work(b.candidate);

const requests = (candidate: Candidate): number => candidate.load?.activeRequests ?? 0;

const work = ({ load, blockSize }: Candidate): number =>
  load === null ? 0 : load.activePrefillTokens / blockSize + load.activeDecodeBlocks;

/**
 * Unknown load is not idle (D6): such candidates stand last unless the settings say otherwise. A newcomer, cold and
 * empty, would draw everything at once: it competes with probability age / rampUpMs, else it stands behind the others.
 */
export function assignStandings(scored: Scored[], settings: PolicyConfig, random: RandomSource): Scored[] {
  for (let index = 0; index < scored.length; index++) {
    const one = scored[index]!;
    const standing = standingOf(one.candidate, settings, random);
    if (standing !== "ready") scored[index] = { ...one, standing };
  }
  return scored;
}

function standingOf(candidate: Candidate, settings: PolicyConfig, random: RandomSource): Standing {
  if (candidate.load === null && settings.unknownLoad === "behind") return "unknown-load";
  const { ageMs } = candidate;
  if (ageMs === null || ageMs >= settings.rampUpMs) return "ready";
  return random() < ageMs / settings.rampUpMs ? "ready" : "newcomer";
}

/** `shuffled` is in uniformly random order, so its first member within the band is a uniform draw. */
function firstInBand(shuffled: readonly Scored[], settings: PolicyConfig): Scored {
  let best = shuffled[0]!;
  for (const one of shuffled) if ((byStanding(one, best) || one.cost - best.cost) < 0) best = one;
  return shuffled.find(
    (one) => byStanding(one, best) === 0 && one.cost - best.cost < settings.tieBandBlocks,
  )!;
}

function drawBySoftmax(ranking: readonly Scored[], temperature: number, random: RandomSource): number {
  const best = ranking[0]!;
  const rest = ranking.findIndex((one) => byStanding(best, one) !== 0);
  const costs = (rest < 0 ? ranking : ranking.slice(0, rest)).map((one) => one.cost);
  return drawIndex(softmaxProbabilities(costs, temperature), random());
}

function toFront(ranking: Scored[], index: number): Scored[] {
  if (index > 0) ranking.unshift(...ranking.splice(index, 1));
  return ranking;
}
