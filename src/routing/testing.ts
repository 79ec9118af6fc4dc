/** Candidates and configurations for tests: everything idle, cold and 16 tokens per block unless said otherwise. */

import { DEFAULT_POLICY } from "./config.ts";
import type { Candidate, CandidateLoad, PolicyConfig } from "./types.ts";

export const IDLE: CandidateLoad = {
  activePrefillTokens: 0,
  activeDecodeBlocks: 0,
  activeRequests: 0,
  newBlocks: 0,
};

export function candidate(
  worker: string,
  given: Partial<Omit<Candidate, "load">> & { readonly load?: Partial<CandidateLoad> | null } = {},
): Candidate {
  return {
    worker,
    rank: 0,
    blockSize: 16,
    overlapBlocks: 0,
    hostExtensionBlocks: 0,
    diskExtensionBlocks: 0,
    sharedBlocksBeyondDevice: 0,
    treeSize: 0,
    totalBlocks: null,
    maxNumBatchedTokens: null,
    taints: [],
    ageMs: null,
    excluded: null,
    ...given,
    load: given.load === null ? null : { ...IDLE, ...given.load },
  };
}

export const policy = (given: Partial<PolicyConfig> = {}): PolicyConfig => ({ ...DEFAULT_POLICY, ...given });

/** Mulberry32: seeded, uniform in [0, 1). */
export function seededRandom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}
