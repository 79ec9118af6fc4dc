/** Registrations, cards and ops as tests of the view need them. */

import type { IncarnationKey, LoadReport, Registration, Tier } from "../../src/fleet/types.ts";
import type { ModelCard } from "../../src/prefix/types.ts";
import type { RemoveOp, StoreOp } from "../../src/store/types.ts";

export const MODEL = "acme/model";

const CARD: ModelCard = {
  version: 1,
  model: MODEL,
  scheme: "tokens",
  unitSize: 16,
  chatTemplate: null,
  namedTemplates: {},
  contentFormat: "string",
  bosToken: null,
  eosToken: null,
  specialTokens: {},
  addedPrefix: null,
  normalizer: null,
  strippingTokens: [],
  timeZone: "UTC",
  bytesPerToken: 4,
  maxModelLen: null,
};

export function registrationOf(key: IncarnationKey, changes: Partial<Registration> = {}): Registration {
  return {
    worker: key.worker,
    rank: key.rank,
    incarnation: key.incarnation,
    agent: null,
    model: MODEL,
    servedNames: ["model", "style"],
    adapters: ["style"],
    card: CARD,
    role: "aggregated",
    region: "eu",
    cluster: "lab",
    node: "node-1",
    engine: "mock 1",
    dpSize: 1,
    blockSize: 16,
    totalBlocks: 1_000,
    maxNumBatchedTokens: 8_192,
    maxNumSeqs: 256,
    maxModelLen: null,
    kvEvents: true,
    saltInEvents: true,
    taints: [],
    ...changes,
  };
}

export function reportOf(key: IncarnationKey, changes: Partial<LoadReport> = {}): LoadReport {
  return {
    worker: key.worker,
    rank: key.rank,
    incarnation: key.incarnation,
    sequence: 1,
    activeBlocks: 0,
    prefillTokens: 0,
    running: 0,
    waiting: 0,
    admitted: [],
    publishedSequence: 0,
    ...changes,
  };
}

/** Keys `start` to `end` of a chain, 16 tokens each. */
export function storeKeys(
  chain: BigUint64Array,
  start = 0,
  end = chain.length,
  tier: Tier = "device",
): StoreOp {
  const keys = chain.slice(start, end);
  const tokens = Uint32Array.from(keys, (_, i) => 16 * (start + i + 1));
  return { op: "store", tier, root: chain[0], parent: start === 0 ? null : chain[start - 1], keys, tokens };
}

export function removeKeys(
  chain: BigUint64Array,
  start: number,
  end = chain.length,
  tier: Tier = "device",
): RemoveOp {
  return { op: "remove", tier, root: chain[0], keys: chain.slice(start, end).reverse() };
}
