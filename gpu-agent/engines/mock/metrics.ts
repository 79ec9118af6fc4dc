/** What one rank counts: the numbers behind vLLM's metric families. */

import type { FinishReason } from "./sequence.ts";

/** 1-2-5 series from 1 up to `largest`, as vLLM's token histograms have it. */
function series(largest: number): number[] {
  const out: number[] = [];
  for (let power = 1; ; power *= 10) {
    for (const digit of [1, 2, 5]) {
      if (digit * power > largest) return out;
      out.push(digit * power);
    }
  }
}

const TOKEN_BUCKETS = series(5000);
const SECOND_BUCKETS = [
  0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
];
const TTFT_BUCKETS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
  2560,
];
const TOKEN_GAP_BUCKETS = [
  0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
];
const STEP_BUCKETS = Array.from({ length: 13 }, (_, i) => (i === 0 ? 1 : 2 ** (i + 2)));

export class Histogram {
  readonly bounds: readonly number[];
  /** Per bucket, not cumulative; the last one is +Inf. */
  readonly counts: number[];
  sum = 0;
  count = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = new Array<number>(bounds.length + 1).fill(0);
  }

  /** Adds `value` to the histogram, `times` times. */
  observe(value: number, times = 1): void {
    let i = 0;
    while (i < this.bounds.length && value > this.bounds[i]!) i++;
    this.counts[i]! += times;
    this.sum += value * times;
    this.count += times;
  }
}

export class RankMetrics {
  prefixQueries = 0;
  prefixHits = 0;
  externalQueries = 0;
  externalHits = 0;
  preemptions = 0;
  promptTokens = 0;
  promptComputed = 0;
  promptCached = 0;
  promptExternal = 0;
  generationTokens = 0;
  readonly success: Record<FinishReason | "repetition", number> = {
    stop: 0,
    length: 0,
    abort: 0,
    error: 0,
    repetition: 0,
  };
  readonly stepTokens = new Histogram(STEP_BUCKETS);
  readonly promptLength = new Histogram(TOKEN_BUCKETS);
  readonly generationLength = new Histogram(TOKEN_BUCKETS);
  readonly maxGeneration = new Histogram(TOKEN_BUCKETS);
  readonly paramN = new Histogram([1, 2, 5, 10, 20]);
  readonly paramMaxTokens = new Histogram(TOKEN_BUCKETS);
  readonly firstTokenSeconds = new Histogram(TTFT_BUCKETS);
  readonly tokenGapSeconds = new Histogram(TOKEN_GAP_BUCKETS);
  readonly perTokenSeconds = new Histogram(TOKEN_GAP_BUCKETS);
  readonly totalSeconds = new Histogram(SECOND_BUCKETS);
  readonly queueSeconds = new Histogram(SECOND_BUCKETS);
  readonly inferenceSeconds = new Histogram(SECOND_BUCKETS);
  readonly prefillSeconds = new Histogram(SECOND_BUCKETS);
  readonly decodeSeconds = new Histogram(SECOND_BUCKETS);
  readonly requestPreemptions = new Histogram([1, 2, 3, 4, 5, 10, 20]);
  readonly prefillComputed = new Histogram(TOKEN_BUCKETS);
}
