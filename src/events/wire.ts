/** Bytes of the bus's messages: the frame around a header and a body, and bounded readers and writers for what is in it. */

import { KedgeError } from "../errors/index.ts";

/** High half: major, which an older decoder refuses; low half: minor, which it reads as far as it knows. */
const MAJOR = 1;
const VERSION = MAJOR << 4;

/** version, kind, length of the header (u32 LE). */
const FRAME_BYTES = 6;

const LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });

/** What every malformed message is refused with: `invalid_request`. */
export function malformed(why: string, cause?: unknown): KedgeError {
  return new KedgeError("invalid_request", `Malformed bus message: ${why}.`, { cause });
}

export interface Frame {
  readonly kind: number;
  /** Parsed JSON. */
  readonly header: unknown;
  readonly body: Reader;
}

/** `[u8 version][u8 kind][u32 header length][JSON header][body]`. */
export function frame(kind: number, header: unknown, body: Writer | null): Uint8Array<ArrayBuffer> {
  const json = encoder.encode(JSON.stringify(header));
  const bodyBytes = body?.bytes() ?? new Uint8Array();
  const message = new Uint8Array(FRAME_BYTES + json.length + bodyBytes.length);
  message[0] = VERSION;
  message[1] = kind;
  new DataView(message.buffer).setUint32(2, json.length, true);
  message.set(json, FRAME_BYTES);
  message.set(bodyBytes, FRAME_BYTES + json.length);
  return message;
}

/** Errors: `invalid_request`. */
export function unframe(message: Uint8Array): Frame {
  if (message.length < FRAME_BYTES) throw malformed("it is shorter than its frame");
  const major = message[0] >> 4;
  if (major !== MAJOR)
    throw malformed(`its version is ${major}, this side reads ${MAJOR}; update the older side`);
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const end = FRAME_BYTES + view.getUint32(2, true);
  if (end > message.length) throw malformed("its header is longer than the message");
  let header: unknown;
  try {
    header = JSON.parse(decoder.decode(message.subarray(FRAME_BYTES, end)));
  } catch (thrown) {
    throw malformed("its header is no JSON", thrown);
  }
  return { kind: message[1], header, body: new Reader(message.subarray(end)) };
}

/** Grows as it is written to. */
export class Writer {
  private buffer = new Uint8Array(1_024);
  private view = new DataView(this.buffer.buffer);
  private length = 0;

  get size(): number {
    return this.length;
  }

  bytes(): Uint8Array {
    return this.buffer.subarray(0, this.length);
  }

  u8(value: number): void {
    this.room(1);
    this.buffer[this.length++] = value;
  }

  u64(value: bigint): void {
    this.room(8);
    this.view.setBigUint64(this.length, value, true);
    this.length += 8;
  }

  /** Unsigned, below 2^53: 7 bits a byte, the lowest first. */
  varint(value: number): void {
    this.room(8);
    let rest = value;
    for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) this.buffer[this.length++] = (rest % 0x80) | 0x80;
    this.buffer[this.length++] = rest;
  }

  /** 8 bytes each, little-endian. */
  u64s(values: BigUint64Array): void {
    this.room(values.byteLength);
    if (LITTLE_ENDIAN) {
      this.buffer.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength), this.length);
      this.length += values.byteLength;
    } else {
      for (const value of values) this.u64(value);
    }
  }

  /** Each as its difference from the one before, which is a byte where they grow steadily. */
  deltas(values: Uint32Array): void {
    let previous = 0;
    for (let i = 0; i < values.length; i += 1) {
      const difference = values[i] - previous;
      this.varint(difference >= 0 ? difference * 2 : -difference * 2 - 1);
      previous = values[i];
    }
  }

  private room(bytes: number): void {
    if (this.length + bytes <= this.buffer.length) return;
    const grown = new Uint8Array(Math.max(this.buffer.length * 2, this.length + bytes));
    grown.set(this.buffer);
    this.buffer = grown;
    this.view = new DataView(grown.buffer);
  }
}

/** Reads what a Writer wrote. Errors of every method: `invalid_request`; nothing is allocated beyond what the bytes can fill. */
export class Reader {
  private readonly bytes: Uint8Array;
  private readonly view: DataView;
  private at = 0;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  u8(): number {
    return this.bytes[this.take(1)];
  }

  u64(): bigint {
    return this.view.getBigUint64(this.take(8), true);
  }

  varint(): number {
    let value = 0;
    for (let scale = 1; scale < 2 ** 53; scale *= 0x80) {
      const byte = this.u8();
      value += (byte & 0x7f) * scale;
      if (byte < 0x80) {
        if (value > Number.MAX_SAFE_INTEGER) break;
        return value;
      }
    }
    throw malformed("a number in it is too large");
  }

  /** A count of things of at least `bytesEach`, which must all be there. */
  count(bytesEach: number): number {
    const count = this.varint();
    if (count * bytesEach > this.bytes.length - this.at) throw malformed("it counts more than it holds");
    return count;
  }

  u64s(count: number): BigUint64Array {
    const from = this.take(count * 8);
    const values = new BigUint64Array(count);
    if (LITTLE_ENDIAN) {
      new Uint8Array(values.buffer).set(this.bytes.subarray(from, from + count * 8));
    } else {
      for (let i = 0; i < count; i += 1) values[i] = this.view.getBigUint64(from + i * 8, true);
    }
    return values;
  }

  deltas(count: number): Uint32Array {
    const values = new Uint32Array(count);
    let value = 0;
    for (let i = 0; i < count; i += 1) {
      const coded = this.varint();
      value += coded % 2 === 0 ? coded / 2 : -(coded + 1) / 2;
      if (value < 0 || value > 0xffff_ffff) throw malformed("a token count in it is out of range");
      values[i] = value;
    }
    return values;
  }

  private take(count: number): number {
    const from = this.at;
    if (count > this.bytes.length - from) throw malformed("it ends early");
    this.at = from + count;
    return from;
  }
}
