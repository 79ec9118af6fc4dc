/** Dynamo's defaults of a policy, and what a pool's role and a request's overrides make of a configuration. */

import type { Overrides, PolicyConfig, RequestFacts } from "./types.ts";

export const DEFAULT_POLICY: PolicyConfig = {
  mode: "kv",
  role: "aggregated",
  overlapScoreWeight: 1,
  temperature: 0,
  overlapScoreCredit: 1,
  overlapScoreCreditDecay: 0,
  prefillLoadScale: 1,
  decodeActiveRequestWeight: 0,
  hostCacheHitWeight: 0.75,
  diskCacheHitWeight: 0.25,
  sharedCacheMultiplier: 0,
  trackPrefillTokens: true,
  trackActiveBlocks: true,
  conditionalDisagg: false,
  unknownLoad: "behind",
  tieBandBlocks: 0,
  rampUpMs: 0,
  busy: {
    activeDecodeBlocksThreshold: null,
    activePrefillTokensThreshold: null,
    activePrefillTokensThresholdFrac: null,
  },
};

/** A request of `promptTokens` that asks for nothing special. */
export function plainRequest(promptTokens: number, turn = 0): RequestFacts {
  return {
    promptTokens,
    turn,
    pin: null,
    allowedWorkers: null,
    requiredTaints: [],
    preferredTaints: {},
    overrides: null,
  };
}

/**
 * The settings in force for one request: overrides first, then the pool's rules, which no request can undo
 * (Dynamo's mode tables, 0.9 and 1.x). Returns `config` itself if nothing changes.
 */
export function effectiveSettings(config: PolicyConfig, overrides: Overrides | null): PolicyConfig {
  const asked = overrides === null ? config : applyOverrides(config, overrides);
  switch (config.role) {
    case "aggregated":
      return asked;
    case "prefill":
      return { ...asked, trackActiveBlocks: false, trackPrefillTokens: true };
    case "decode":
      return {
        ...asked,
        overlapScoreWeight: 0,
        overlapScoreCredit: config.conditionalDisagg ? asked.overlapScoreCredit : 0,
        trackPrefillTokens: false,
      };
  }
}

function applyOverrides(config: PolicyConfig, overrides: Overrides): PolicyConfig {
  const weight = overrides.overlapScoreWeight;
  return {
    ...config,
    overlapScoreWeight: weight ?? config.overlapScoreWeight,
    temperature: overrides.temperature ?? config.temperature,
    // Dynamo 1.x reads the old weight as a load scale, and its 0 as "ignore the cache".
    overlapScoreCredit: overrides.overlapScoreCredit ?? (weight === 0 ? 0 : config.overlapScoreCredit),
    prefillLoadScale: overrides.prefillLoadScale ?? weight ?? config.prefillLoadScale,
    sharedCacheMultiplier: overrides.sharedCacheMultiplier ?? config.sharedCacheMultiplier,
    trackPrefillTokens: overrides.trackPrefillTokens ?? config.trackPrefillTokens,
  };
}
