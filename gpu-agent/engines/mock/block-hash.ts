/** Block hashes as vLLM's `sha256_cbor` makes them: SHA-256 over canonical CBOR of (parent, token ids, tagged extra keys). */

import { hash } from "node:crypto";

/** A block's digest as 64 hex digits. */
export type BlockDigest = string;

/** One extra key as it is hashed: `["lora", name, path]` or `["cache_salt", salt]`. */
export type TaggedKey = readonly string[];

/** Seed of every chain's first block. Unset, vLLM hashes a fixed string (since its PR 51875). */
export function noneDigest(seed: string | null): BlockDigest {
  const text = Buffer.from(seed ?? "vllm-none-hash");
  const writer = new CborWriter();
  writer.head(3, text.length);
  writer.raw(text);
  return writer.digest();
}

/** The event form of a digest: its last 8 bytes, big-endian, unsigned (engines.md §1.5). */
export function eventHash(digest: BlockDigest): bigint {
  return BigInt(`0x${digest.slice(48)}`);
}

class CborWriter {
  #buffer = Buffer.allocUnsafe(4096);
  #at = 0;

  reset(): void {
    this.#at = 0;
  }

  digest(): BlockDigest {
    return hash("sha256", this.#buffer.subarray(0, this.#at), "hex");
  }

  raw(bytes: Uint8Array): void {
    this.#room(bytes.length);
    this.#buffer.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  hex(digest: BlockDigest): void {
    this.#room(32);
    this.#at += this.#buffer.write(digest, this.#at, "hex");
  }

  text(value: string): void {
    const bytes = Buffer.from(value);
    this.head(3, bytes.length);
    this.raw(bytes);
  }

  null(): void {
    this.#room(1);
    this.#buffer[this.#at++] = 0xf6;
  }

  /** Major type and argument in the shortest form. */
  head(major: number, argument: number): void {
    this.#room(5);
    const buffer = this.#buffer;
    const top = major << 5;
    if (argument < 24) buffer[this.#at++] = top | argument;
    else if (argument < 0x100) {
      buffer[this.#at++] = top | 24;
      buffer[this.#at++] = argument;
    } else if (argument < 0x1_0000) {
      buffer[this.#at++] = top | 25;
      this.#at = buffer.writeUInt16BE(argument, this.#at);
    } else {
      buffer[this.#at++] = top | 26;
      this.#at = buffer.writeUInt32BE(argument, this.#at);
    }
  }

  #room(bytes: number): void {
    if (this.#at + bytes <= this.#buffer.length) return;
    const larger = Buffer.allocUnsafe(this.#buffer.length * 2 + bytes);
    larger.set(this.#buffer.subarray(0, this.#at));
    this.#buffer = larger;
  }
}

const shared = new CborWriter();

/** Digest of the block `tokens[from, to)` behind `parent`. */
export function blockDigest(
  parent: BlockDigest,
  tokens: ArrayLike<number>,
  from: number,
  to: number,
  extraKeys: readonly TaggedKey[],
): BlockDigest {
  shared.reset();
  shared.head(4, 3);
  shared.head(2, 32);
  shared.hex(parent);
  shared.head(4, to - from);
  for (let i = from; i < to; i++) shared.head(0, tokens[i]!);
  if (extraKeys.length === 0) shared.null();
  else {
    shared.head(4, extraKeys.length);
    for (const key of extraKeys) {
      shared.head(4, key.length);
      for (const part of key) shared.text(part);
    }
  }
  return shared.digest();
}
