/** Drawing: uniform order, softmax over costs. All chance comes from the injected source. */

import type { RandomSource } from "./types.ts";

/** Fisher–Yates, in place. A stable sort afterwards leaves ties in uniformly random order. */
export function shuffle<T>(items: T[], random: RandomSource): T[] {
  for (let last = items.length - 1; last > 0; last--) {
    const pick = Math.floor(random() * (last + 1));
    const held = items[last]!;
    items[last] = items[pick]!;
    items[pick] = held;
  }
  return items;
}

/**
 * p_i ∝ exp(−(cost_i − min) / ((max − min) · temperature)); all equal: uniform. Dynamo 0.9 does not subtract the
 * minimum, which cancels. Finite for any finite costs and any temperature > 0: a range past the largest double is
 * halved, and the division by a tiny temperature comes last.
 */
export function softmaxProbabilities(costs: readonly number[], temperature: number): number[] {
  let min = Number.POSITIVE_INFINITY;
  let max = Number.NEGATIVE_INFINITY;
  for (const cost of costs) {
    if (cost < min) min = cost;
    if (cost > max) max = cost;
  }
  if (min === max) return costs.map(() => 1 / costs.length);
  const scale = Number.isFinite(max - min) ? 1 : 0.5;
  const range = max * scale - min * scale;
  const weights = costs.map((cost) => Math.exp(-((cost * scale - min * scale) / range) / temperature));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

/** First index whose cumulated probability exceeds u ∈ [0, 1); the last one if rounding leaves a rest. */
export function drawIndex(probabilities: readonly number[], u: number): number {
  let cumulative = 0;
  for (let index = 0; index < probabilities.length; index++) {
    cumulative += probabilities[index]!;
    if (u < cumulative) return index;
  }
  return probabilities.length - 1;
}
