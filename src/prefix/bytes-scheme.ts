/** Scheme `bytes`: a key per fixed-size chunk of the prompt's UTF-8, from text (gateway) or from token ids (agent). */

import { KedgeError } from "../errors/index.ts";
import { chainRoot, type Hasher } from "./hasher.ts";
import type { ChainKeyer, ChainState } from "./keyer.ts";
import type { ChainIdentity, PrefixChain } from "./types.ts";
import type { Vocabulary } from "./vocabulary.ts";

/** Bytes per chunk unless the card says otherwise. */
export const DEFAULT_CHUNK_BYTES = 128;

const NO_BYTES = new Uint8Array(0);

/**
 * The chain of a prompt's canonical text or bytes. Key i is the link (see {@link Hasher.link}) from key i−1, or from the
 * root for i = 0, over the i-th chunk; a trailing partial chunk has no key.
 */
export function bytesChain(
  hasher: Hasher,
  identity: ChainIdentity,
  prompt: string | Uint8Array,
  unitSize: number = DEFAULT_CHUNK_BYTES,
  complete = true,
): PrefixChain {
  const root = chainRoot(hasher, "bytes", unitSize, identity);
  const bytes = typeof prompt === "string" ? hasher.encode(prompt) : prompt;
  const keys = new BigUint64Array(Math.floor(bytes.length / unitSize));
  let key = root;
  for (let i = 0; i < keys.length; i++) {
    key = hasher.link(key, bytes, i * unitSize, unitSize);
    keys[i] = key;
  }
  return { scheme: "bytes", root, keys, unitSize, unitCount: bytes.length, complete };
}

/** The agent's side: token ids turned back into bytes by the vocabulary, block by block, of any block size. */
export function createBytesKeyer(
  hasher: Hasher,
  vocabulary: Vocabulary,
  unitSize: number = DEFAULT_CHUNK_BYTES,
): ChainKeyer {
  const { bytes, offsets } = vocabulary;
  const chunk = new Uint8Array(unitSize);

  return {
    scheme: "bytes",
    unitSize,

    start(identity) {
      const root = chainRoot(hasher, "bytes", unitSize, identity);
      return { root, key: root, depth: 0, tokens: 0, pending: NO_BYTES };
    },

    extend(state, tokenIds) {
      const pending = pendingBytes(state);
      chunk.set(pending);
      let filled = pending.length;
      let key = state.key;
      const keys: bigint[] = [];
      const tokens: number[] = [];
      for (let i = 0; i < tokenIds.length; i++) {
        const id = tokenIds[i]!;
        if (!vocabulary.has(id)) throw unknownToken(id);
        let from = offsets[id]!;
        const end = offsets[id + 1]!;
        // A long token may close several chunks; it lies wholly inside the last only if it ends with it.
        while (from < end) {
          const taken = Math.min(end - from, unitSize - filled);
          copyBytes(bytes, from, chunk, filled, taken);
          from += taken;
          filled += taken;
          if (filled < unitSize) break;
          key = hasher.link(key, chunk, 0, unitSize);
          keys.push(key);
          tokens.push(state.tokens + i + (from === end ? 1 : 0));
          filled = 0;
        }
      }
      const next: ChainState = {
        root: state.root,
        key,
        depth: state.depth + keys.length,
        tokens: state.tokens + tokenIds.length,
        pending: filled === 0 ? NO_BYTES : chunk.slice(0, filled),
      };
      return { state: next, keys, tokens };
    },
  };
}

/** Tokens are a few bytes long, where a loop is faster than a `subarray` and a `set`. */
function copyBytes(source: Uint8Array, from: number, target: Uint8Array, at: number, count: number): void {
  for (let i = 0; i < count; i++) target[at + i] = source[from + i]!;
}

function pendingBytes(state: ChainState): Uint8Array {
  if (state.pending instanceof Uint8Array) return state.pending;
  throw new KedgeError("internal_error", "A chain state of another scheme was given to the bytes keyer.");
}

function unknownToken(id: unknown): KedgeError {
  return new KedgeError("invalid_request", `Token id ${String(id)} is not in the model's vocabulary.`);
}
