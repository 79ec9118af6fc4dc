/** How keys, tokens, slots and names travel to Redis and back: as short ASCII text. */

import { TIERS, type Tier } from "../../fleet/types.ts";
import { boundaryAt, boundaryCount } from "../../prefix/boundaries.ts";

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CODES = Uint8Array.from(ALPHABET, (letter) => letter.charCodeAt(0));
const VALUES = new Uint8Array(128);
for (let value = 0; value < 64; value++) VALUES[CODES[value]] = value;

/** Characters of one key. */
export const KEY_CHARS = 11;
/** The most that four characters of base64url can say. */
const MAX_NUMBER = 2 ** 24 - 1;

const ascii = new TextDecoder();

/** Keys, 11 characters of base64url each, which are their 8 bytes from the lowest on. */
export function packKeys(keys: BigUint64Array): string {
  const words = new Uint32Array(keys.buffer, keys.byteOffset, keys.length * 2);
  const out = new Uint8Array(keys.length * KEY_CHARS);
  for (let i = 0; i < keys.length; i++) packWords(out, i * KEY_CHARS, words[2 * i], words[2 * i + 1]);
  return ascii.decode(out);
}

export function packKey(key: bigint): string {
  return packKeys(BigUint64Array.of(key));
}

/** Of a prompt's keys only those at prediction boundaries. */
export function packBoundaryKeys(keys: BigUint64Array): string {
  const words = new Uint32Array(keys.buffer, keys.byteOffset, keys.length * 2);
  const count = boundaryCount(keys.length);
  const out = new Uint8Array(count * KEY_CHARS);
  for (let i = 0; i < count; i++) {
    const at = 2 * (boundaryAt(i) - 1);
    packWords(out, i * KEY_CHARS, words[at], words[at + 1]);
  }
  return ascii.decode(out);
}

/** Fractions of a token are kept to 36 bits, which no rounding of tokens at a depth can tell from all. */
const RATE_UNIT = 2 ** 36;

/** Tokens per key, below 4,096, in 8 characters. */
export function packRate(tokensPerKey: number): string {
  const units = Math.round(Math.max(0, Math.min(tokensPerKey, 4_095)) * RATE_UNIT);
  return packNumbers([Math.floor(units / 2 ** 24), units % 2 ** 24]);
}

/** Two characters for a number in [0, 1). */
export function packStamp(random: number): string {
  return packNumbers([Math.floor(random * 4_096)]).slice(2);
}

export function unpackRate(text: string, at: number): number {
  return (unpackNumber(text, at) * 2 ** 24 + unpackNumber(text, at + 4)) / RATE_UNIT;
}

/** Numbers, 4 characters each; those above 2^24 − 1 count as that. */
export function packNumbers(numbers: ArrayLike<number>): string {
  const out = new Uint8Array(numbers.length * 4);
  for (let i = 0; i < numbers.length; i++) {
    const number = Math.max(0, Math.min(numbers[i], MAX_NUMBER));
    out[4 * i] = CODES[(number >>> 18) & 63];
    out[4 * i + 1] = CODES[(number >>> 12) & 63];
    out[4 * i + 2] = CODES[(number >>> 6) & 63];
    out[4 * i + 3] = CODES[number & 63];
  }
  return ascii.decode(out);
}

/** The number that the 4 characters from `at` on stand for. */
export function unpackNumber(text: string, at: number): number {
  return (
    (digitAt(text, at) << 18) |
    (digitAt(text, at + 1) << 12) |
    (digitAt(text, at + 2) << 6) |
    digitAt(text, at + 3)
  );
}

/** Slot of the first tier of a group, whose name has its lowest digit first. */
export function firstSlotOf(group: string): number {
  let number = 0;
  for (let at = 3; at >= 0; at--) number = number * 64 + digitAt(group, at);
  return number * TIERS.length;
}

/** A group's slots: one per tier. */
export function slotsOf(group: string): Readonly<Record<Tier, number>> {
  const first = firstSlotOf(group);
  return { device: first, host: first + 1, disk: first + 2 };
}

/** Which of `shards` parts the chain of this first key belongs to; other bits than those that choose the bucket decide. */
export function shardOf(root: bigint, shards: number): number {
  return shards === 1 ? 0 : Number((root >> 32n) % BigInt(shards));
}

/** Any text as ASCII without line breaks; different texts stay different. Escapes are JSON's. */
export function asciiName(text: string): string {
  return /^[ -[\]-~]*$/.test(text) ? text : asciiJson(text).slice(1, -1);
}

/** JSON of a value in ASCII. */
export function asciiJson(value: unknown): string {
  return JSON.stringify(value).replace(
    /[\u007f-\uffff]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** 11 characters hold 66 bits: the last one's lowest two are 0. */
function packWords(out: Uint8Array, at: number, low: number, high: number): void {
  // Bytes in the order b0 … b7 of the little-endian key; three bytes make four characters.
  const b0 = low & 255;
  const b1 = (low >>> 8) & 255;
  const b2 = (low >>> 16) & 255;
  const b3 = low >>> 24;
  const b4 = high & 255;
  const b5 = (high >>> 8) & 255;
  const b6 = (high >>> 16) & 255;
  const b7 = high >>> 24;
  out[at] = CODES[b0 >> 2];
  out[at + 1] = CODES[((b0 & 3) << 4) | (b1 >> 4)];
  out[at + 2] = CODES[((b1 & 15) << 2) | (b2 >> 6)];
  out[at + 3] = CODES[b2 & 63];
  out[at + 4] = CODES[b3 >> 2];
  out[at + 5] = CODES[((b3 & 3) << 4) | (b4 >> 4)];
  out[at + 6] = CODES[((b4 & 15) << 2) | (b5 >> 6)];
  out[at + 7] = CODES[b5 & 63];
  out[at + 8] = CODES[b6 >> 2];
  out[at + 9] = CODES[((b6 & 3) << 4) | (b7 >> 4)];
  out[at + 10] = CODES[(b7 & 15) << 2];
}

/** The value of one character of base64url. */
export function digitAt(text: string, at: number): number {
  return VALUES[text.charCodeAt(at) & 127];
}
