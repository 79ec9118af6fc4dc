/** The load curve: where throughput stops following the load, and what a mode gains over the first one. */

import type { RunFigures } from "./stats.ts";
import { median, sum } from "./stats.ts";

/** One run's place in the comparison. */
export interface RunKey {
  readonly mode: string;
  /** Conversations at a time, or simulated requests per second. */
  readonly load: number;
  readonly seed: number;
}

export interface Run extends RunKey {
  readonly figures: RunFigures;
}

/** One mode at one load: medians over seeds. */
export interface CurvePoint {
  readonly mode: string;
  readonly load: number;
  readonly seeds: number;
  readonly ttftMeanMs: number | null;
  readonly ttftP50Ms: number | null;
  readonly ttftP90Ms: number | null;
  readonly ttftP99Ms: number | null;
  readonly itlMeanMs: number | null;
  readonly itlP50Ms: number | null;
  readonly itlP99Ms: number | null;
  readonly outputTokensPerSecond: number;
  readonly requestsPerSecond: number;
  readonly withinSlo: number;
  readonly hitPredicted: number | null;
  readonly hitReported: number | null;
  readonly hitBias: number | null;
  readonly errors: number;
  /** Busiest worker's requests over the mean of all that served. */
  readonly imbalance: number | null;
}

/** Against the first mode at the same load and seed; the spread over seeds is kept. */
export interface Gain {
  readonly mode: string;
  readonly load: number;
  readonly ttftMean: Ratio | null;
  readonly outputTokensPerSecond: Ratio | null;
  readonly requestsPerSecond: Ratio | null;
}

/** Mode divided by baseline, less 1: −0.4 is 40 % less. */
export interface Ratio {
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

export interface Knee {
  readonly mode: string;
  /** Last load up to which throughput followed the load (elasticity ≥ ½ at every step); null with fewer than two loads. */
  readonly load: number | null;
  /** The curve was still rising at the largest load, so the knee lies beyond. */
  readonly beyond: boolean;
  /** Last load, from the smallest without a break, at which 90 % of the requests met the TTFT SLO; null if none. */
  readonly sloLoad: number | null;
}

export function curve(runs: readonly Run[]): CurvePoint[] {
  return groups(runs).map(({ mode, load, of }) => {
    const figure = (pick: (f: RunFigures) => number | null | undefined): number | null =>
      median(of.map((run) => pick(run.figures)).filter((value) => value !== null && value !== undefined));
    return {
      mode,
      load,
      seeds: of.length,
      ttftMeanMs: figure((f) => f.ttftMs?.mean),
      ttftP50Ms: figure((f) => f.ttftMs?.p50),
      ttftP90Ms: figure((f) => f.ttftMs?.p90),
      ttftP99Ms: figure((f) => f.ttftMs?.p99),
      itlMeanMs: figure((f) => f.itlMs?.mean),
      itlP50Ms: figure((f) => f.itlMs?.p50),
      itlP99Ms: figure((f) => f.itlMs?.p99),
      outputTokensPerSecond: figure((f) => f.outputTokensPerSecond) ?? 0,
      requestsPerSecond: figure((f) => f.requestsPerSecond) ?? 0,
      withinSlo: figure((f) => f.withinSlo) ?? 0,
      hitPredicted: figure((f) => f.cache.predicted),
      hitReported: figure((f) => f.cache.reported),
      hitBias: figure((f) => f.cache.bias),
      errors: sum(of.map((run) => run.figures.errors)),
      imbalance: figure((f) => imbalance(f.perWorker)),
    };
  });
}

function imbalance(perWorker: Readonly<Record<string, number>>): number | null {
  const counts = Object.values(perWorker);
  return counts.length === 0 ? null : (Math.max(...counts) * counts.length) / sum(counts);
}

export function gains(runs: readonly Run[]): Gain[] {
  const baseline = runs[0]?.mode;
  return groups(runs)
    .filter((group) => group.mode !== baseline)
    .map(({ mode, load, of }) => {
      const pairs = of.flatMap((run) => {
        const base = runs.find(
          (other) => other.mode === baseline && other.load === load && other.seed === run.seed,
        );
        return base === undefined ? [] : [{ mine: run.figures, base: base.figures }];
      });
      const compare = (pick: (f: RunFigures) => number | undefined): Ratio | null =>
        ratio(pairs.map((pair) => [pick(pair.mine), pick(pair.base)]));
      return {
        mode,
        load,
        ttftMean: compare((f) => f.ttftMs?.mean),
        outputTokensPerSecond: compare((f) => f.outputTokensPerSecond),
        requestsPerSecond: compare((f) => f.requestsPerSecond),
      };
    });
}

function ratio(pairs: readonly (readonly [number | undefined, number | undefined])[]): Ratio | null {
  const ratios = pairs.flatMap(([mine, base]) => (mine === undefined || !base ? [] : [mine / base - 1]));
  const middle = median(ratios);
  return middle === null ? null : { median: middle, min: Math.min(...ratios), max: Math.max(...ratios) };
}

/**
 * The knee of a mode's curve. Between neighbouring loads a < b the elasticity of throughput X is ln(X_b/X_a) / ln(b/a): 1 while
 * throughput grows in proportion, 0 when it has stopped growing. The knee is the last load that was reached with every step ≥ ½.
 */
export function knees(points: readonly CurvePoint[]): Knee[] {
  return [...new Set(points.map((point) => point.mode))].map((mode) => {
    const mine = points.filter((point) => point.mode === mode).sort((a, b) => a.load - b.load);
    const last = mine.findIndex((point, i) => i + 1 < mine.length && elasticity(point, mine[i + 1]!) < 0.5);
    const at = last === -1 ? mine.length - 1 : last;
    const broken = mine.findIndex((point) => point.withinSlo < 0.9);
    const met = broken === -1 ? mine.length : broken;
    return {
      mode,
      load: mine.length < 2 ? null : mine[at]!.load,
      beyond: mine.length >= 2 && last === -1,
      sloLoad: met === 0 ? null : mine[met - 1]!.load,
    };
  });
}

function elasticity(a: CurvePoint, b: CurvePoint): number {
  if (a.outputTokensPerSecond <= 0 || b.outputTokensPerSecond <= 0) return 0;
  return Math.log(b.outputTokensPerSecond / a.outputTokensPerSecond) / Math.log(b.load / a.load);
}

/** Runs by (load, mode), loads rising, modes in the order in which they first ran. */
function groups(runs: readonly Run[]): { mode: string; load: number; of: Run[] }[] {
  const modes = [...new Set(runs.map((run) => run.mode))];
  const loads = [...new Set(runs.map((run) => run.load))].sort((a, b) => a - b);
  return loads.flatMap((load) =>
    modes
      .map((mode) => ({ mode, load, of: runs.filter((run) => run.mode === mode && run.load === load) }))
      .filter((group) => group.of.length > 0),
  );
}
