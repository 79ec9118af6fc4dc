/** Kedge's own index, as it runs in production: each rank's mirror turns events into operations, the memory store answers. */

import { Mirror } from "../../../gpu-agent/bridge/mirror.ts";
import { KedgeError } from "../../errors/index.ts";
import { type FleetRow, type Registration, TIERS, type Tier } from "../../fleet/types.ts";
import type { Hasher } from "../../prefix/hasher.ts";
import { createTokensKeyer, tokensChain } from "../../prefix/token-scheme.ts";
import { MemoryStore } from "../../store/memory/index.ts";
import type { LookupResult } from "../../store/types.ts";
import { type BlockIndex, type Depths, type Place, placeName, type StoredBlock } from "./block-index.ts";

const MODEL = "replay";
const IDENTITY = { model: MODEL, adapter: null, salt: null };

/** A replay is one moment: nothing expires. */
const NOW_MS = 0;
const now = (): number => NOW_MS;

interface RankState {
  readonly place: Place;
  readonly incarnation: string;
  readonly mirror: Mirror;
  sequence: number;
  /** Announcements of a block since its last removal, by tier and hash. */
  readonly announced: Map<string, number>;
}

/**
 * Recorded histories say which blocks there are, the mirror counts copies: a removal here takes all copies announced
 * since the last one. Surplus removals are nothing to the mirror.
 */
export class KedgeIndex implements BlockIndex {
  readonly #hasher: Hasher;
  readonly #blockSize: number;
  readonly #store: MemoryStore;
  readonly #ranks = new Map<string, RankState>();
  #incarnations = 0;

  constructor(hasher: Hasher, blockSize: number, random: () => number) {
    this.#hasher = hasher;
    this.#blockSize = blockSize;
    this.#store = new MemoryStore({ now, random });
  }

  store(place: Place, tier: Tier, parent: bigint | null, blocks: readonly StoredBlock[]): void {
    const rank = this.#rank(place);
    const hashes = blocks.map((block) => block.hash);
    for (const hash of hashes) {
      const name = `${tier} ${hash}`;
      rank.announced.set(name, (rank.announced.get(name) ?? 0) + 1);
    }
    this.#apply(rank, {
      type: "stored",
      hashes,
      parent,
      tokenIds: blocks.flatMap((block) => block.tokenIds),
      blockSize: this.#blockSize,
      loraName: null,
      tier,
      extraKeys: null,
      group: 0,
      specKind: null,
      slidingWindow: null,
    });
  }

  remove(place: Place, tier: Tier, hashes: readonly bigint[]): void {
    const rank = this.#rank(place);
    const copies: bigint[] = [];
    for (const hash of hashes) {
      const name = `${tier} ${hash}`;
      for (let left = rank.announced.get(name) ?? 0; left > 0; left--) copies.push(hash);
      rank.announced.delete(name);
    }
    this.#apply(rank, { type: "removed", hashes: copies, tier, group: 0 });
  }

  clear(place: Place): void {
    const rank = this.#ranks.get(placeName(place));
    if (rank === undefined) return;
    this.#store.retire({ ...place, incarnation: rank.incarnation });
    this.#ranks.delete(placeName(place));
  }

  lookup(tokenIds: readonly number[]): ReadonlyMap<string, Depths> {
    const { keys } = this.chain(tokenIds);
    const { lookup, fleet } = this.#store.read(MODEL, keys);
    const tokens = tokensBySlot(lookup);
    const found = new Map<string, Depths>();
    for (const row of fleet) {
      const depths = depthsOf(row, tokens, this.#blockSize);
      if (depths !== null) found.set(placeName(row), depths);
    }
    return found;
  }

  blockCount(place: Place): number {
    return this.#ranks.get(placeName(place))?.mirror.blockCount() ?? 0;
  }

  /** The prompt's prefix keys, one per full block. */
  chain(tokenIds: readonly number[]): ReturnType<typeof tokensChain> {
    return tokensChain(this.#hasher, IDENTITY, tokenIds, this.#blockSize);
  }

  #apply(rank: RankState, event: Parameters<Mirror["apply"]>[0][number]): void {
    const ops = rank.mirror.apply([event]);
    if (ops.length === 0) return;
    const { place, incarnation } = rank;
    rank.sequence += 1;
    const [outcome] = this.#store.apply([
      { ...place, incarnation, model: MODEL, sequence: rank.sequence, ops },
    ]);
    if (outcome !== "applied") {
      throw new KedgeError(
        "internal_error",
        `The store answered ${outcome} to a batch of ${placeName(place)}.`,
      );
    }
  }

  /** After a clearing the next event begins a new incarnation, as the agent does (D4). */
  #rank(place: Place): RankState {
    const name = placeName(place);
    let rank = this.#ranks.get(name);
    if (rank === undefined) {
      this.#incarnations += 1;
      rank = {
        place: { worker: place.worker, rank: place.rank },
        incarnation: `life-${this.#incarnations}`,
        mirror: new Mirror({
          keyer: createTokensKeyer(this.#hasher, this.#blockSize),
          model: MODEL,
          blockSize: this.#blockSize,
          now,
        }),
        sequence: 0,
        announced: new Map(),
      };
      this.#ranks.set(name, rank);
      this.#store.register(registration(rank, this.#blockSize));
    }
    return rank;
  }
}

function tokensBySlot(lookup: LookupResult): ReadonlyMap<number, number> {
  const tokens = new Map<number, number>();
  for (let row = 0; row < lookup.count; row++) tokens.set(lookup.slots[row]!, lookup.confirmedTokens[row]!);
  return tokens;
}

/** A lower tier's depth includes what lies above it; what it adds is its extension. Null: nothing held. */
function depthsOf(row: FleetRow, tokens: ReadonlyMap<number, number>, blockSize: number): Depths | null {
  let above = 0;
  const [device, host, disk] = TIERS.map((tier) => {
    const reached = Math.max(above, (tokens.get(row.slots[tier]) ?? 0) / blockSize);
    const added = reached - above;
    above = reached;
    return added;
  });
  return above === 0 ? null : { device: device!, host: host!, disk: disk! };
}

function registration({ place, incarnation }: RankState, blockSize: number): Registration {
  return {
    ...place,
    incarnation,
    agent: null,
    model: MODEL,
    servedNames: [MODEL],
    adapters: [],
    card: {
      version: 1,
      model: MODEL,
      scheme: "tokens",
      unitSize: blockSize,
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
    },
    role: "aggregated",
    region: "replay",
    cluster: "replay",
    node: "replay",
    engine: "recorded",
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
