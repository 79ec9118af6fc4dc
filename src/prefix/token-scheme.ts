/** Scheme `tokens`: a key per fixed-size block of token ids, from a prompt (gateway) or from engine blocks (agent). */

import { KedgeError } from "../errors/index.ts";
import { chainRoot, type Hasher } from "./hasher.ts";
import type { ChainKeyer } from "./keyer.ts";
import type { ChainIdentity, PrefixChain } from "./types.ts";

/** Tokens per key block unless the card says otherwise. */
export const DEFAULT_BLOCK_TOKENS = 16;

/**
 * The chain of a prompt's token ids. Key i is the link (see {@link Hasher.link}) from key i−1, or from the root for
 * i = 0, over the ids of block i, each as 4 little-endian bytes; a trailing partial block has no key.
 * Errors: `invalid_request` for an id that is not an unsigned 32-bit integer.
 */
export function tokensChain(
  hasher: Hasher,
  identity: ChainIdentity,
  tokenIds: ArrayLike<number>,
  unitSize: number = DEFAULT_BLOCK_TOKENS,
  complete = true,
): PrefixChain {
  const root = chainRoot(hasher, "tokens", unitSize, identity);
  const block = new BlockWriter(unitSize);
  const keys = new BigUint64Array(Math.floor(tokenIds.length / unitSize));
  let key = root;
  for (let i = 0; i < keys.length; i++) {
    key = hasher.link(key, block.fill(tokenIds, i * unitSize), 0, unitSize * 4);
    keys[i] = key;
  }
  return { scheme: "tokens", root, keys, unitSize, unitCount: tokenIds.length, complete };
}

/**
 * The agent's side. An engine block of k units yields k keys.
 * Errors of `extend`, besides those of the contract: `engine_mismatch` if a block is not a whole number of units.
 */
export function createTokensKeyer(hasher: Hasher, unitSize: number = DEFAULT_BLOCK_TOKENS): ChainKeyer {
  const block = new BlockWriter(unitSize);
  return {
    scheme: "tokens",
    unitSize,

    start(identity) {
      const root = chainRoot(hasher, "tokens", unitSize, identity);
      return { root, key: root, depth: 0, tokens: 0, pending: null };
    },

    extend(state, tokenIds) {
      if (tokenIds.length % unitSize !== 0) throw blockMismatch(tokenIds.length, unitSize);
      let key = state.key;
      const keys: bigint[] = [];
      const tokens: number[] = [];
      for (let at = 0; at < tokenIds.length; at += unitSize) {
        key = hasher.link(key, block.fill(tokenIds, at), 0, unitSize * 4);
        keys.push(key);
        tokens.push(state.tokens + at + unitSize);
      }
      return {
        state: {
          root: state.root,
          key,
          depth: state.depth + keys.length,
          tokens: state.tokens + tokenIds.length,
          pending: null,
        },
        keys,
        tokens,
      };
    },
  };
}

/** Writes blocks of ids as little-endian bytes into one reusable buffer. */
class BlockWriter {
  readonly #unitSize: number;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;

  constructor(unitSize: number) {
    this.#unitSize = unitSize;
    this.#bytes = new Uint8Array(unitSize * 4);
    this.#view = new DataView(this.#bytes.buffer);
  }

  fill(tokenIds: ArrayLike<number>, start: number): Uint8Array {
    for (let i = 0; i < this.#unitSize; i++) {
      const id = tokenIds[start + i]!;
      if (id >>> 0 !== id) {
        throw new KedgeError("invalid_request", `Token id ${String(id)} is not an unsigned 32-bit integer.`);
      }
      this.#view.setUint32(i * 4, id, true);
    }
    return this.#bytes;
  }
}

function blockMismatch(blockTokens: number, unitSize: number): KedgeError {
  return new KedgeError(
    "engine_mismatch",
    `The engine's block of ${blockTokens} tokens is not a multiple of the model's key block of ${unitSize} tokens. ` +
      `Set the key block (the card's unitSize) to a divisor of the engine's block size, or start the engine with a ` +
      `block size that is a multiple of ${unitSize}.`,
    { param: "unitSize" },
  );
}
