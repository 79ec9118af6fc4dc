/** What the NATS suites share: buses with the process's timers, samples of every message, bounded waiting. */

import type { KedgeError } from "../../src/errors/index.ts";
import { connectNatsBus, type NatsBus, type NatsBusOptions } from "../../src/events/nats/index.ts";
import type { IncarnationKey, LoadReport, Registration } from "../../src/fleet/types.ts";
import type { KvBatch, KvSnapshot, StoreOp } from "../../src/store/types.ts";

export const TIMERS = {
  setTimeout: (callback: () => void, delayMs: number) => setTimeout(callback, delayMs),
  clearTimeout: (handle: unknown) => clearTimeout(handle as NodeJS.Timeout),
};

export interface Rig {
  readonly bus: NatsBus;
  readonly errors: [KedgeError, string][];
}

const open: NatsBus[] = [];

/** A bus in region `r`, cluster `c`, node `n` that tells its errors to a list. */
export function rig(url: string, more: Partial<NatsBusOptions> & Pick<NatsBusOptions, "role">): Rig {
  const errors: [KedgeError, string][] = [];
  const bus = connectNatsBus({
    servers: [url],
    prefix: "kedge",
    stream: "KEDGE_KV",
    streamLimits: { maxBytes: 64 * 1_024 * 1_024 },
    place: { region: "r", cluster: "c", node: "n" },
    name: more.role,
    timers: TIMERS,
    random: Math.random,
    reconnectMs: 50,
    reconnectMaxMs: 400,
    connectTimeoutMs: 2_000,
    pingMs: 500,
    onError: (error, doing) => errors.push([error, doing]),
    ...more,
  });
  open.push(bus);
  return { bus, errors };
}

/** A bus that is connected. */
export async function connected(url: string, more: Parameters<typeof rig>[1]): Promise<Rig> {
  const made = rig(url, more);
  await until(
    () => made.bus.connected,
    "the bus connects",
    () => made.errors,
  );
  return made;
}

/** Ends all buses of the test. */
export async function closeAll(): Promise<void> {
  await Promise.all(open.splice(0).map((bus) => bus.close()));
}

/** Polls until it holds; fails after `limitMs` with what was waited for. */
export async function until(
  holds: () => boolean,
  what: string,
  detail: () => unknown = () => undefined,
  limitMs = 15_000,
): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (!holds()) {
    if (performance.now() > deadline)
      throw new Error(`not within ${limitMs} ms: ${what} ${String(detail())}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

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
