/** From single requests to the figures of one run: latencies, throughput, hit rates, who served. */

import type { Exchange } from "./client.ts";
import type { EndedBy, LoadResult } from "./load.ts";

export interface Distribution {
  readonly mean: number;
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

/** Times in ms and rates per second of the *simulated* clock: wall-clock time × speed (equal on real engines, speed 1). */
export interface RunFigures {
  readonly requests: number;
  readonly errors: number;
  /** Error name → count. */
  readonly errorKinds: Readonly<Record<string, number>>;
  readonly endedBy: EndedBy;
  /** Sending to first generated text; null when no request got any. */
  readonly ttftMs: Distribution | null;
  /** Per request: first to last text, divided by the tokens after the first. */
  readonly itlMs: Distribution | null;
  /** Sending to the end of the answer. */
  readonly e2eMs: Distribution | null;
  /** Tokens generated within the measurement window per second. */
  readonly outputTokensPerSecond: number;
  /** Requests completed within the window per second. */
  readonly requestsPerSecond: number;
  /** Share of requests, errors included, whose first text came within the SLO. */
  readonly withinSlo: number;
  readonly promptTokens: number;
  readonly completionTokens: number;
  readonly cache: CacheFigures;
  readonly perWorker: Readonly<Record<string, number>>;
  readonly perRung: Readonly<Record<string, number>>;
  readonly windowSeconds: number;
  /** Mean TTFT by the wall clock, unscaled. */
  readonly wallTtftMeanMs: number | null;
}

/** Shares are of prompt tokens, 0 … 1; null where nobody said. */
export interface CacheFigures {
  /** What the gateway expected when it chose (`x-kedge-overlap-tokens`). */
  readonly predicted: number | null;
  /** What the engines reported (`usage.prompt_tokens_details.cached_tokens`). */
  readonly reported: number | null;
  /** (predicted − reported) / reported, over requests where both are known; + means too optimistic. */
  readonly bias: number | null;
  /** Sum of |predicted − reported| over the sum of reported. */
  readonly error: number | null;
  /** Share of requests where both are the same to within `blockTolerance` tokens. */
  readonly exact: number | null;
}

export interface FigureOptions {
  /** Engine time per wall time; 0.25: engines run four times slower than the profile. */
  readonly speed: number;
  /** In simulated ms. */
  readonly sloTtftMs: number;
}

/** A chunk of the prefix key scheme and a block: less is not a difference that a router could act upon. */
const BLOCK_TOLERANCE = 48;

export function figures(result: LoadResult, options: FigureOptions): RunFigures {
  const { speed } = options;
  const all = result.exchanges;
  const good = all.filter((exchange) => exchange.error === null);
  const ttfts = good.flatMap((e) => (e.firstTextMs === null ? [] : [(e.firstTextMs - e.startMs) * speed]));
  const served = [...good, ...result.warmUps.filter((exchange) => exchange.error === null)];
  const windowMs = Math.max(1, result.windowEndMs - result.windowStartMs) * speed;
  const within = (e: Exchange): boolean => e.endMs <= result.windowEndMs && e.endMs >= result.windowStartMs;
  const ttftMs = distribution(ttfts);
  return {
    requests: all.length,
    errors: all.length - good.length,
    errorKinds: tally(all.flatMap((e) => (e.error === null ? [] : [e.error]))),
    endedBy: result.endedBy,
    ttftMs,
    itlMs: distribution(good.flatMap((e) => interTokenMs(e, speed))),
    e2eMs: distribution(good.map((e) => (e.endMs - e.startMs) * speed)),
    outputTokensPerSecond: (sum(served.map((e) => tokensWithin(e, result))) * 1000) / windowMs,
    requestsPerSecond: (served.filter(within).length * 1000) / windowMs,
    withinSlo: all.length === 0 ? 0 : ttfts.filter((ttft) => ttft <= options.sloTtftMs).length / all.length,
    promptTokens: sum(good.map((e) => e.promptTokens)),
    completionTokens: sum(good.map((e) => e.completionTokens)),
    cache: cacheFigures(good),
    perWorker: tally(good.map((e) => e.worker ?? "unknown")),
    perRung: tally(good.flatMap((e) => (e.rung === null ? [] : [e.rung]))),
    windowSeconds: windowMs / 1000,
    wallTtftMeanMs: ttftMs === null ? null : ttftMs.mean / speed,
  };
}

/** Percentiles with linear interpolation between ranks; null of nothing. */
export function distribution(values: readonly number[]): Distribution | null {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  return {
    mean: sum(values) / values.length,
    p50: percentile(sorted, 0.5),
    p90: percentile(sorted, 0.9),
    p99: percentile(sorted, 0.99),
  };
}

function percentile(sorted: Float64Array, q: number): number {
  const at = q * (sorted.length - 1);
  const below = sorted[Math.floor(at)]!;
  const above = sorted[Math.ceil(at)]!;
  return below + (above - below) * (at - Math.floor(at));
}

export function median(values: readonly number[]): number | null {
  return distribution(values)?.p50 ?? null;
}

function interTokenMs(exchange: Exchange, speed: number): number[] {
  const { firstTextMs, lastTextMs, completionTokens } = exchange;
  if (firstTextMs === null || lastTextMs === null || completionTokens < 2 || lastTextMs <= firstTextMs)
    return [];
  return [((lastTextMs - firstTextMs) * speed) / (completionTokens - 1)];
}

/** Tokens of an answer that fall into the window, taken as evenly spread from its first to its last text. */
function tokensWithin(exchange: Exchange, window: LoadResult): number {
  const { firstTextMs, lastTextMs, completionTokens } = exchange;
  if (firstTextMs === null || lastTextMs === null) return 0;
  const from = Math.max(firstTextMs, window.windowStartMs);
  const to = Math.min(lastTextMs, window.windowEndMs);
  if (to < from) return 0;
  return lastTextMs === firstTextMs
    ? completionTokens
    : (completionTokens * (to - from)) / (lastTextMs - firstTextMs);
}

function cacheFigures(good: readonly Exchange[]): CacheFigures {
  const known = good.flatMap((e) =>
    e.predictedTokens === null || e.cachedTokens === null
      ? []
      : [{ predicted: e.predictedTokens, reported: e.cachedTokens }],
  );
  const predicted = sum(known.map((k) => k.predicted));
  const reported = sum(known.map((k) => k.reported));
  const off = known.map((k) => Math.abs(k.predicted - k.reported));
  return {
    predicted: share(good, (e) => e.predictedTokens),
    reported: share(good, (e) => e.cachedTokens),
    bias: reported === 0 ? null : (predicted - reported) / reported,
    error: reported === 0 ? null : sum(off) / reported,
    exact:
      known.length === 0 ? null : off.filter((tokens) => tokens <= BLOCK_TOLERANCE).length / known.length,
  };
}

function share(good: readonly Exchange[], tokensOf: (exchange: Exchange) => number | null): number | null {
  const known = good.filter((e) => tokensOf(e) !== null);
  const prompt = sum(known.map((e) => e.promptTokens));
  return prompt === 0 ? null : sum(known.map((e) => tokensOf(e) ?? 0)) / prompt;
}

export function sum(values: readonly number[]): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

function tally(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const name of [...names].sort()) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}
