/** KV event batches in msgpack, byte for byte as vLLM's encoder writes them (engines.md §1.3–1.5). */

import type { BlockDigest } from "./block-hash.ts";
import type { KvEvent } from "./block-manager.ts";

/** `map`: vLLM 0.24 and later. `array`: up to 0.23, 12 elements per BlockStored. */
export type EventForm = "map" | "array";
/** How block hashes are written: unsigned 64-bit, raw digest, or the signed integers of old releases. */
export type HashForm = "u64" | "bytes" | "negative";

export interface WireForm {
  readonly events: EventForm;
  readonly hashes: HashForm;
}

const SPEC_KIND = "full_attention";
const MEDIUM = "GPU";
const GROUP = 0;

class MsgpackWriter {
  #buffer = Buffer.allocUnsafe(1 << 16);
  #at = 0;

  /** What was written since the last call, as bytes of its own. */
  take(): Buffer {
    const out = Buffer.from(this.#buffer.subarray(0, this.#at));
    this.#at = 0;
    return out;
  }

  array(length: number): void {
    this.#head(length, 15, 0x90, 0xdc);
  }

  map(length: number): void {
    this.#head(length, 15, 0x80, 0xde);
  }

  null(): void {
    this.#byte(0xc0);
  }

  float(value: number): void {
    this.#room(9);
    this.#buffer[this.#at++] = 0xcb;
    this.#at = this.#buffer.writeDoubleBE(value, this.#at);
  }

  /** A non-negative integer below 2^32 in its shortest form. */
  int(value: number): void {
    this.#room(5);
    const buffer = this.#buffer;
    if (value < 0x80) buffer[this.#at++] = value;
    else if (value < 0x100) {
      buffer[this.#at++] = 0xcc;
      buffer[this.#at++] = value;
    } else if (value < 0x1_0000) {
      buffer[this.#at++] = 0xcd;
      this.#at = buffer.writeUInt16BE(value, this.#at);
    } else {
      buffer[this.#at++] = 0xce;
      this.#at = buffer.writeUInt32BE(value, this.#at);
    }
  }

  intOrNull(value: number | null): void {
    if (value === null) this.null();
    else this.int(value);
  }

  text(value: string): void {
    const length = Buffer.byteLength(value);
    if (length < 32) this.#byte(0xa0 | length);
    else if (length < 0x100) {
      this.#byte(0xd9);
      this.#byte(length);
    } else {
      this.#room(3);
      this.#buffer[this.#at++] = 0xda;
      this.#at = this.#buffer.writeUInt16BE(length, this.#at);
    }
    this.#room(length);
    this.#at += this.#buffer.write(value, this.#at);
  }

  textOrNull(value: string | null): void {
    if (value === null) this.null();
    else this.text(value);
  }

  hash(digest: BlockDigest, form: HashForm): void {
    this.#room(34);
    if (form === "bytes") {
      this.#buffer[this.#at++] = 0xc4;
      this.#buffer[this.#at++] = 32;
      this.#at += this.#buffer.write(digest, this.#at, "hex");
      return;
    }
    const signed = form === "negative" && digest.charCodeAt(48) >= "8".charCodeAt(0);
    const high = Number.parseInt(digest.slice(48, 56), 16);
    const low = Number.parseInt(digest.slice(56), 16);
    if (high === 0 && !signed) this.int(low);
    else {
      this.#buffer[this.#at++] = signed ? 0xd3 : 0xcf;
      this.#at += this.#buffer.write(digest.slice(48), this.#at, "hex");
    }
  }

  #head(length: number, shortMax: number, short: number, long: number): void {
    this.#room(5);
    if (length <= shortMax) this.#buffer[this.#at++] = short | length;
    else if (length < 0x1_0000) {
      this.#buffer[this.#at++] = long;
      this.#at = this.#buffer.writeUInt16BE(length, this.#at);
    } else {
      this.#buffer[this.#at++] = long + 1;
      this.#at = this.#buffer.writeUInt32BE(length, this.#at);
    }
  }

  #byte(value: number): void {
    this.#room(1);
    this.#buffer[this.#at++] = value;
  }

  #room(bytes: number): void {
    if (this.#at + bytes <= this.#buffer.length) return;
    const larger = Buffer.allocUnsafe(this.#buffer.length * 2 + bytes);
    larger.set(this.#buffer.subarray(0, this.#at));
    this.#buffer = larger;
  }
}

const writer = new MsgpackWriter();

/** A batch's payload: `[ts, events, data_parallel_rank]`. */
export function encodeBatch(
  unixSeconds: number,
  events: readonly KvEvent[],
  rank: number,
  blockSize: number,
  form: WireForm,
): Buffer {
  writer.array(3);
  writer.float(unixSeconds);
  writer.array(events.length);
  for (const event of events) {
    if (form.events === "map") writeMap(event, blockSize, form.hashes);
    else writeArray(event, blockSize, form.hashes);
  }
  writer.int(rank);
  return writer.take();
}

type Stored = Extract<KvEvent, { type: "stored" }>;

function writeMap(event: KvEvent, blockSize: number, hashes: HashForm): void {
  if (event.type === "stored") writeStoredMap(event, blockSize, hashes);
  else if (event.type === "removed") writeRemovedMap(event.digests, hashes);
  else {
    writer.map(1);
    writer.text("type");
    writer.text("AllBlocksCleared");
  }
}

function writeRemovedMap(digests: readonly BlockDigest[], hashes: HashForm): void {
  writer.map(4);
  writer.text("type");
  writer.text("BlockRemoved");
  writer.text("block_hashes");
  writeHashes(digests, hashes);
  writer.text("medium");
  writer.text(MEDIUM);
  writer.text("group_idx");
  writer.int(GROUP);
}

function writeStoredMap(event: Stored, blockSize: number, hashes: HashForm): void {
  writer.map(event.sessionId === null ? 11 : 12);
  writer.text("type");
  writer.text("BlockStored");
  writer.text("block_hashes");
  writeHashes(event.digests, hashes);
  writer.text("parent_block_hash");
  writeParent(event.parent, hashes);
  writer.text("token_ids");
  writeTokens(event.tokenIds);
  writer.text("block_size");
  writer.int(blockSize);
  writer.text("lora_id");
  writer.intOrNull(event.loraId);
  writer.text("medium");
  writer.text(MEDIUM);
  writer.text("lora_name");
  writer.textOrNull(event.loraName);
  writer.text("extra_keys");
  writeExtraKeys(event.extraKeys);
  writer.text("group_idx");
  writer.int(GROUP);
  writer.text("kv_cache_spec_kind");
  writer.text(SPEC_KIND);
  if (event.sessionId === null) return;
  writer.text("session_id");
  writer.text(event.sessionId);
}

function writeArray(event: KvEvent, blockSize: number, hashes: HashForm): void {
  if (event.type === "cleared") {
    writer.array(1);
    writer.text("AllBlocksCleared");
  } else if (event.type === "removed") {
    writer.array(4);
    writer.text("BlockRemoved");
    writeHashes(event.digests, hashes);
    writer.text(MEDIUM);
    writer.int(GROUP);
  } else {
    writer.array(12);
    writer.text("BlockStored");
    writeHashes(event.digests, hashes);
    writeParent(event.parent, hashes);
    writeTokens(event.tokenIds);
    writer.int(blockSize);
    writer.intOrNull(event.loraId);
    writer.text(MEDIUM);
    writer.textOrNull(event.loraName);
    writeExtraKeys(event.extraKeys);
    writer.int(GROUP);
    writer.text(SPEC_KIND);
    writer.null();
  }
}

function writeHashes(digests: readonly BlockDigest[], form: HashForm): void {
  writer.array(digests.length);
  for (const digest of digests) writer.hash(digest, form);
}

function writeParent(parent: BlockDigest | null, form: HashForm): void {
  if (parent === null) writer.null();
  else writer.hash(parent, form);
}

function writeTokens(tokens: readonly number[]): void {
  writer.array(tokens.length);
  for (let i = 0; i < tokens.length; i++) writer.int(tokens[i]!);
}

function writeExtraKeys(keys: readonly (readonly string[] | null)[]): void {
  writer.array(keys.length);
  for (const block of keys) {
    if (block === null) writer.null();
    else {
      writer.array(block.length);
      for (const key of block) writer.text(key);
    }
  }
}
