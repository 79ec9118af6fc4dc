/** NVIDIA Dynamo's block and sequence hashes, for interoperability and parity (its lib/kv-router and lib/kv-hashing). */

import { KedgeError } from "../errors/index.ts";
import { xxh3 } from "./xxh3.ts";

/** Seed of every sequence hash, and of block hashes without adapter and salt. */
const CHAIN_SEED = 1337n;

export interface DynamoBlockOptions {
  /** LoRA adapter; empty is absent. */
  readonly loraName?: string | null;
  /** `cache_salt`, Dynamo's cache namespace; empty is absent. */
  readonly cacheSalt?: string | null;
  /** EAGLE speculation: each block's hash also covers the first token of the next block. */
  readonly eagle?: boolean;
  /** Per block the unsigned 64-bit hashes of its images, or null; may be shorter than the number of blocks. */
  readonly mmHashes?: readonly (readonly bigint[] | null)[] | null;
}

/**
 * Local hashes of the full blocks: XXH3-64 of each block's ids as 32-bit little-endian, then its image hashes in ascending
 * order as 64-bit little-endian. The seed is 1337 plus XXH3(adapter, seed 0) plus XXH3(salt, seed 1), modulo 2^64.
 * Errors: `invalid_request` for an id that is not an unsigned 32-bit integer.
 */
export function dynamoBlockHashes(
  tokenIds: ArrayLike<number>,
  blockSize: number,
  options: DynamoBlockOptions = {},
): BigUint64Array {
  const seed = blockSeed(options.loraName, options.cacheSalt);
  const window = blockSize + (options.eagle ? 1 : 0);
  const count = Math.max(0, Math.floor((tokenIds.length - (window - blockSize)) / blockSize));
  const hashes = new BigUint64Array(count);
  for (let i = 0; i < count; i++) {
    const images = options.mmHashes?.[i] ?? [];
    hashes[i] = xxh3(blockBytes(tokenIds, i * blockSize, window, images), seed);
  }
  return hashes;
}

/** Sequence hashes: the first is the first local hash, each next XXH3-64(previous, local; seed 1337). */
export function dynamoSequenceHashes(blockHashes: ArrayLike<bigint>): BigUint64Array {
  const hashes = new BigUint64Array(blockHashes.length);
  if (hashes.length === 0) return hashes;
  const pair = new DataView(new ArrayBuffer(16));
  const bytes = new Uint8Array(pair.buffer);
  let previous = blockHashes[0]!;
  hashes[0] = previous;
  for (let i = 1; i < hashes.length; i++) {
    pair.setBigUint64(0, previous, true);
    pair.setBigUint64(8, blockHashes[i]!, true);
    previous = xxh3(bytes, CHAIN_SEED);
    hashes[i] = previous;
  }
  return hashes;
}

function blockSeed(loraName: string | null | undefined, cacheSalt: string | null | undefined): bigint {
  const encoder = new TextEncoder();
  let seed = CHAIN_SEED;
  if (loraName) seed += xxh3(encoder.encode(loraName), 0n);
  if (cacheSalt) seed += xxh3(encoder.encode(cacheSalt), 1n);
  return BigInt.asUintN(64, seed);
}

function blockBytes(
  tokenIds: ArrayLike<number>,
  start: number,
  window: number,
  images: readonly bigint[],
): Uint8Array {
  const bytes = new Uint8Array(window * 4 + images.length * 8);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < window; i++) {
    const id = tokenIds[start + i]!;
    if (id >>> 0 !== id) {
      throw new KedgeError("invalid_request", `Token id ${String(id)} is not an unsigned 32-bit integer.`);
    }
    view.setUint32(i * 4, id, true);
  }
  const ascending = BigUint64Array.from(images).sort();
  for (const [i, image] of ascending.entries()) view.setBigUint64(window * 4 + i * 8, image, true);
  return bytes;
}
