/** Samples of every message of the bus; they run in workerd too. */

import type { IncarnationKey, LoadReport, Registration } from "../../src/fleet/types.ts";
import type { KvBatch, KvSnapshot, StoreOp } from "../../src/store/types.ts";

export const KEY: IncarnationKey = { worker: "n/engine 0", rank: 0, incarnation: "first-life" };

export function chain(count: number, from = 1n, parent: bigint | null = null): StoreOp {
  const keys = BigUint64Array.from({ length: count }, (_, i) =>
    BigInt.asUintN(64, (from + BigInt(i)) * 0x9e3779b97f4a7c15n),
  );
  const tokens = Uint32Array.from({ length: count }, (_, i) => (i + 1) * 28);
  return { op: "store", tier: "device", root: 7n, parent, keys, tokens };
}

export function batch(sequence: number, key: IncarnationKey = KEY): KvBatch {
  return {
    ...key,
    model: "m",
    sequence,
    ops: [
      chain(3, BigInt(sequence)),
      { op: "remove", tier: "host", root: 7n, keys: BigUint64Array.of(2n ** 64n - 1n, BigInt(sequence)) },
    ],
  };
}

export function snapshot(keys: number, key: IncarnationKey = KEY): KvSnapshot {
  return { ...key, model: "m", sequence: 42, ops: [chain(keys)] };
}

export function registration(key: IncarnationKey = KEY): Registration {
  return {
    ...key,
    agent: { id: "agent-n", url: "http://127.0.0.1:1" },
    model: "m",
    servedNames: ["m", "größe"],
    adapters: [],
    card: {
      version: 1,
      model: "m",
      scheme: "bytes",
      unitSize: 128,
      chatTemplate: "{{ messages }}",
      namedTemplates: {},
      contentFormat: "string",
      bosToken: null,
      eosToken: "</s>",
      specialTokens: {},
      addedPrefix: null,
      normalizer: null,
      strippingTokens: [{ content: "<x>", lstrip: true, rstrip: false }],
      timeZone: "UTC",
      bytesPerToken: 4.2,
      maxModelLen: 4_096,
    },
    role: "aggregated",
    region: "r",
    cluster: "c",
    node: "n",
    engine: "mock 1",
    dpSize: 1,
    blockSize: 16,
    totalBlocks: 1_000,
    maxNumBatchedTokens: null,
    maxNumSeqs: 256,
    maxModelLen: 4_096,
    kvEvents: true,
    saltInEvents: true,
    taints: [],
  };
}

export function load(
  sequence: number,
  admitted: readonly string[] = [],
  key: IncarnationKey = KEY,
): LoadReport {
  return {
    ...key,
    sequence,
    activeBlocks: 12,
    prefillTokens: null,
    running: 3,
    waiting: 0,
    admitted,
    publishedSequence: 5,
  };
}
