/** XXH64 over reusable buffers, and the one link that every chain of prefix keys is made of. */

import xxhash from "xxhash-wasm";
import type { ChainIdentity, PrefixSchemeName } from "./types.ts";

/** Bumped when the layout of links or roots changes: old and new keys then never meet. */
const CHAIN_VERSION = 1;

/** Encode buffers above this many bytes are not kept: a rare huge prompt must not stay in a small isolate. */
const MAX_KEPT_BYTES = 1 << 20;

/** Synchronous hashing; made once by {@link createHasher}. Not re-entrant, which synchronous code never is. */
export interface Hasher {
  /** XXH64 with seed 0, unsigned. */
  hash(bytes: Uint8Array): bigint;
  /**
   * One step of a chain: XXH64, seed 0, of `previous` as 8 little-endian bytes followed by
   * `source[start … start + length − 1]`.
   */
  link(previous: bigint, source: Uint8Array, start: number, length: number): bigint;
  /** UTF-8 of `text`. The bytes lie in a buffer that the next call overwrites. */
  encode(text: string): Uint8Array;
}

interface LinkBuffer {
  readonly bytes: Uint8Array;
  readonly view: DataView;
}

/** Loads the WebAssembly hash; everything after is synchronous. Works in Node and in workerd. */
export async function createHasher(): Promise<Hasher> {
  const { h64Raw } = await xxhash();
  const encoder = new TextEncoder();
  const linkBuffers = new Map<number, LinkBuffer>();
  let encoded = new Uint8Array(0);

  const linkBuffer = (length: number): LinkBuffer => {
    let buffer = linkBuffers.get(length);
    if (buffer === undefined) {
      const bytes = new Uint8Array(8 + length);
      buffer = { bytes, view: new DataView(bytes.buffer) };
      linkBuffers.set(length, buffer);
    }
    return buffer;
  };

  return {
    hash: (bytes) => h64Raw(bytes),

    link(previous, source, start, length) {
      const { bytes, view } = linkBuffer(length);
      view.setBigUint64(0, previous, true);
      bytes.set(source.subarray(start, start + length), 8);
      return h64Raw(bytes);
    },

    encode(text) {
      // A UTF-16 unit never takes more than three bytes of UTF-8.
      const most = text.length * 3;
      if (most > MAX_KEPT_BYTES) return encoder.encode(text);
      if (encoded.length < most) encoded = new Uint8Array(Math.max(4096, most));
      return encoded.subarray(0, encoder.encodeInto(text, encoded).written);
    },
  };
}

/**
 * The seed of a chain: XXH64, seed 0, of the seven fields domain, scheme, version, unit size, model, adapter, salt,
 * each as its UTF-8 behind its length (32-bit little-endian), so that no text can move from one field to the next.
 * Absent and empty adapters and salts are the same.
 */
export function chainRoot(
  hasher: Hasher,
  scheme: PrefixSchemeName,
  unitSize: number,
  identity: ChainIdentity,
): bigint {
  const fields = [
    "kedge.prefix-chain",
    scheme,
    String(CHAIN_VERSION),
    String(unitSize),
    identity.model,
    identity.adapter ?? "",
    identity.salt ?? "",
  ];
  // Three bytes per UTF-16 unit at most.
  const message = new Uint8Array(fields.reduce((most, field) => most + 4 + 3 * field.length, 0));
  const view = new DataView(message.buffer);
  let end = 0;
  for (const field of fields) {
    const bytes = hasher.encode(field);
    view.setUint32(end, bytes.length, true);
    message.set(bytes, end + 4);
    end += 4 + bytes.length;
  }
  return hasher.hash(message.subarray(0, end));
}
