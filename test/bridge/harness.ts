/** The agent's bridge without sockets: frames → sequencer → decoder → publisher → bus → memory view, and what the view predicts. */

import { readFileSync } from "node:fs";
import { decodeBatch } from "../../gpu-agent/bridge/decode.ts";
import { RankPublisher } from "../../gpu-agent/bridge/publisher.ts";
import { Sequencer, type Step } from "../../gpu-agent/bridge/sequencer.ts";
import { KedgeError } from "../../src/errors/index.ts";
import { InProcessBus } from "../../src/events/in-process.ts";
import { type Registration, TIERS } from "../../src/fleet/types.ts";
import { bytesChain, createBytesKeyer } from "../../src/prefix/bytes-scheme.ts";
import type { Hasher } from "../../src/prefix/hasher.ts";
import type { ChainKeyer } from "../../src/prefix/keyer.ts";
import { createTokensKeyer, tokensChain } from "../../src/prefix/token-scheme.ts";
import type { ModelCard } from "../../src/prefix/types.ts";
import type { Vocabulary } from "../../src/prefix/vocabulary.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";

export const MODEL = "tiny";
const WORKER = "w";

export interface Identity {
  readonly salt?: string | null;
  readonly adapter?: string | null;
}

/** Depth in keys and usable tokens per tier, of rank 0's live incarnation. */
export interface Held {
  readonly depth: readonly [number, number, number];
  readonly tokens: readonly [number, number, number];
}

/** Keys of a prompt, cut as a scheme wants. */
export interface Scheme {
  readonly keyer: ChainKeyer;
  keysOf(tokenIds: readonly number[], identity: Identity): { keys: BigUint64Array; wholeUnits: boolean };
}

export function tokensScheme(hasher: Hasher, unitSize = 16): Scheme {
  return {
    keyer: createTokensKeyer(hasher, unitSize),
    keysOf: (ids, { salt = null, adapter = null }) => ({
      keys: tokensChain(hasher, { model: MODEL, salt, adapter }, ids, unitSize).keys,
      wholeUnits: ids.length % unitSize === 0,
    }),
  };
}

export function bytesScheme(hasher: Hasher, vocabulary: Vocabulary, unitSize = 128): Scheme {
  return {
    keyer: createBytesKeyer(hasher, vocabulary, unitSize),
    keysOf: (ids, { salt = null, adapter = null }) => {
      const bytes = vocabulary.decode(ids);
      if (bytes === null) throw new Error("a prompt holds an id outside the vocabulary");
      const chain = bytesChain(hasher, { model: MODEL, salt, adapter }, bytes, unitSize);
      return { keys: chain.keys, wholeUnits: bytes.length % unitSize === 0 };
    },
  };
}

/** A view that is fed by a bus, as an indexer would. */
export function viewOf(bus: InProcessBus): MemoryStore {
  const store = new MemoryStore({ now: () => 0, random: () => 0.5 });
  bus.onRegistration((registration) => void store.register(registration));
  bus.onRetirement((key) => void store.retire(key));
  bus.onKv((batch) => {
    const [outcome] = store.apply([batch]);
    if (outcome !== "applied") throw new Error(`batch ${batch.sequence} was ${outcome}`);
  });
  return store;
}

export function newBus(): InProcessBus {
  return new InProcessBus({
    onHandlerError: (thrown) => {
      throw thrown;
    },
  });
}

export function registration(scheme: Scheme, blockSize: number, rank = 0): Omit<Registration, "incarnation"> {
  const { scheme: name, unitSize } = scheme.keyer;
  const card = { version: 1, model: MODEL, scheme: name, unitSize } as ModelCard;
  return {
    worker: WORKER,
    rank,
    agent: null,
    model: MODEL,
    servedNames: [MODEL],
    adapters: [],
    card,
    role: "aggregated",
    region: "r",
    cluster: "c",
    node: "n",
    engine: "test",
    dpSize: 1,
    blockSize,
    totalBlocks: null,
    maxNumBatchedTokens: null,
    maxNumSeqs: null,
    maxModelLen: null,
    kvEvents: true,
    saltInEvents: true,
    taints: [],
  };
}

export interface BridgeOptions {
  readonly scheme: Scheme;
  readonly blockSize?: number;
  readonly capacityBlocks?: number | null;
  readonly replayable?: boolean;
}

/** One rank, fed frame by frame. */
export class Bridge {
  readonly bus = newBus();
  readonly view = viewOf(this.bus);
  readonly publisher: RankPublisher;
  readonly sequencer: Sequencer;
  readonly mismatches: KedgeError[] = [];
  nowMs = 0;
  replaysAsked: number[] = [];
  unreadable = 0;
  readonly #scheme: Scheme;
  readonly #blockSize: number;

  constructor({ scheme, blockSize = 16, capacityBlocks = null, replayable = false }: BridgeOptions) {
    let lives = 0;
    this.#scheme = scheme;
    this.#blockSize = blockSize;
    this.sequencer = new Sequencer({ replayable });
    this.publisher = new RankPublisher({
      bus: this.bus,
      registration: registration(scheme, blockSize),
      mirror: { keyer: scheme.keyer, model: MODEL, blockSize, capacityBlocks },
      now: () => this.nowMs,
      newIncarnation: () => `life-${++lives}`,
      onMismatch: (error) => this.mismatches.push(error),
    });
  }

  live(sequence: number, payload: Uint8Array): void {
    this.take(this.sequencer.live(sequence, payload, this.nowMs));
  }

  take(steps: readonly Step[]): void {
    for (const step of steps) {
      if (step.kind === "replay") this.replaysAsked.push(step.from);
      else if (step.kind === "reset") this.publisher.reset(step.reason);
      else this.#payload(step.payload);
    }
  }

  #payload(payload: Uint8Array): void {
    try {
      this.publisher.apply(decodeBatch(payload));
    } catch (thrown) {
      if (!(thrown instanceof KedgeError)) throw thrown;
      this.unreadable++;
      this.publisher.reset("unreadable");
    }
  }

  held(tokenIds: readonly number[], identity: Identity = {}): Held {
    return this.#lookup(this.#scheme.keysOf(tokenIds, identity).keys);
  }

  /** Blocks per tier as Dynamo counts them: device, host extension, disk extension. */
  extensions(tokenIds: readonly number[], identity: Identity = {}): [number, number, number] {
    const [device, host, disk] = this.held(tokenIds, identity).depth;
    return [device, Math.max(0, host - device), Math.max(0, disk - Math.max(device, host))];
  }

  /** Cached tokens as a gateway predicts them: usable tokens, never the last one of the prompt, in whole blocks. */
  predict(tokenIds: readonly number[], identity: Identity = {}): number {
    const { keys, wholeUnits } = this.#scheme.keysOf(tokenIds, identity);
    const askable = wholeUnits ? keys.subarray(0, -1) : keys;
    return floorTo(this.#lookup(askable).tokens[0], this.#blockSize);
  }

  #lookup(keys: BigUint64Array): Held {
    const depth: [number, number, number] = [0, 0, 0];
    const tokens: [number, number, number] = [0, 0, 0];
    const { lookup, fleet } = this.view.read(MODEL, keys);
    const row = fleet[0];
    for (let i = 0; row !== undefined && i < lookup.count; i++) {
      const tier = TIERS.findIndex((name) => row.slots[name] === lookup.slots[i]);
      if (tier < 0) continue;
      depth[tier] = lookup.confirmedDepth[i]!;
      tokens[tier] = lookup.confirmedTokens[i]!;
    }
    return { depth, tokens };
  }
}

/** Depth in keys on the device, of the one rank in this view. */
export function depthIn(
  view: MemoryStore,
  scheme: Scheme,
  tokenIds: readonly number[],
  identity: Identity = {},
): number {
  const { lookup, fleet } = view.read(MODEL, scheme.keysOf(tokenIds, identity).keys);
  const at = lookup.slots.subarray(0, lookup.count).indexOf(fleet[0]?.slots.device ?? -1);
  return at < 0 ? 0 : lookup.confirmedDepth[at]!;
}

function floorTo(value: number, unit: number): number {
  return Math.max(0, Math.floor(value / unit) * unit);
}

export function fixture(path: string): string {
  return readFileSync(new URL(`../fixtures/${path}`, import.meta.url), "utf8");
}

export function jsonLines<T>(path: string): T[] {
  return fixture(path)
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as T);
}

/** A recorded ZMQ message: topic, 8-byte sequence, payload. */
export function frameOf(framesBase64: readonly string[]): { sequence: number; payload: Uint8Array } {
  const sequence = Buffer.from(framesBase64.at(-2)!, "base64");
  return {
    sequence: Number(sequence.readBigUInt64BE()),
    payload: Buffer.from(framesBase64.at(-1)!, "base64"),
  };
}
