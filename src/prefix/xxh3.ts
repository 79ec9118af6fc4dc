/** XXH3, 64 bits, with a seed: the hash of Dynamo's blocks and sequences, of which xxhash-wasm has no build. */

/*
 * Follows the xxHash specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md, XXH3). 64-bit values are unsigned
 * BigInts; V8 compiles arithmetic under asUintN(64, …) to machine words.
 */

const P32_1 = 0x9e3779b1n;
const P32_2 = 0x85ebca77n;
const P32_3 = 0xc2b2ae3dn;
const P64_1 = 0x9e3779b185ebca87n;
const P64_2 = 0xc2b2ae3d27d4eb4fn;
const P64_3 = 0x165667b19e3779f9n;
const P64_4 = 0x85ebca77c2b2ae63n;
const P64_5 = 0x27d4eb2f165667c5n;
const MIX_1 = 0x165667919e3779f9n;
const MIX_2 = 0x9fb21c651e98df25n;
const LOW_32 = 0xffffffffn;

/** The default secret of the specification, 192 bytes. */
const SECRET_HEX =
  "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f" +
  "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c" +
  "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
  "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364" +
  "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e" +
  "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e";

const SECRET_BYTES = 192;
const STRIPE_BYTES = 64;
const STRIPES_PER_BLOCK = (SECRET_BYTES - STRIPE_BYTES) / 8;

const SECRET = parseSecret(SECRET_HEX);

/** XXH3-64 of `bytes`; `seed` and result are unsigned 64-bit. */
export function xxh3(bytes: Uint8Array, seed = 0n): bigint {
  const input = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = bytes.byteLength;
  if (length <= 16) return hashTo16(input, length, seed);
  if (length <= 128) return hashTo128(input, length, seed);
  if (length <= 240) return hashTo240(input, length, seed);
  return hashLong(input, length, seed);
}

function hashTo16(input: DataView, length: number, seed: bigint): bigint {
  if (length > 8) return hash9To16(input, length, seed);
  if (length >= 4) return hash4To8(input, length, seed);
  if (length === 0) return avalanche64(seed ^ word(SECRET, 56) ^ word(SECRET, 64));
  const first = input.getUint8(0);
  const middle = input.getUint8(length >> 1);
  const last = input.getUint8(length - 1);
  const combined = ((first << 16) | (middle << 24) | last | (length << 8)) >>> 0;
  const flip = wrap(BigInt(SECRET.getUint32(0, true) ^ SECRET.getUint32(4, true)) & LOW_32) + seed;
  return avalanche64(BigInt(combined) ^ wrap(flip));
}

function hash4To8(input: DataView, length: number, seed: bigint): bigint {
  const mixedSeed = seed ^ (byteSwap(seed & LOW_32) & ~LOW_32);
  const head = BigInt(input.getUint32(0, true));
  const tail = BigInt(input.getUint32(length - 4, true));
  const flip = wrap((word(SECRET, 8) ^ word(SECRET, 16)) - mixedSeed);
  let h = (tail + (head << 32n)) ^ flip;
  h ^= rotateLeft(h, 49n) ^ rotateLeft(h, 24n);
  h = wrap(h * MIX_2);
  h ^= (h >> 35n) + BigInt(length);
  h = wrap(h * MIX_2);
  return h ^ (h >> 28n);
}

function hash9To16(input: DataView, length: number, seed: bigint): bigint {
  const flipLow = wrap((word(SECRET, 24) ^ word(SECRET, 32)) + seed);
  const flipHigh = wrap((word(SECRET, 40) ^ word(SECRET, 48)) - seed);
  const low = word(input, 0) ^ flipLow;
  const high = word(input, length - 8) ^ flipHigh;
  return avalanche(wrap(BigInt(length) + byteSwap(low) + high + foldedProduct(low, high)));
}

function hashTo128(input: DataView, length: number, seed: bigint): bigint {
  let acc = wrap(BigInt(length) * P64_1);
  // Pairs of 16 bytes from both ends towards the middle.
  for (let i = (length - 1) >> 5; i >= 0; i--) {
    acc = wrap(acc + mix16(input, 16 * i, SECRET, 32 * i, seed));
    acc = wrap(acc + mix16(input, length - 16 * (i + 1), SECRET, 32 * i + 16, seed));
  }
  return avalanche(acc);
}

function hashTo240(input: DataView, length: number, seed: bigint): bigint {
  let acc = wrap(BigInt(length) * P64_1);
  for (let i = 0; i < 8; i++) acc = wrap(acc + mix16(input, 16 * i, SECRET, 16 * i, seed));
  acc = avalanche(acc);
  const rounds = length >> 4;
  for (let i = 8; i < rounds; i++) acc = wrap(acc + mix16(input, 16 * i, SECRET, 16 * (i - 8) + 3, seed));
  return avalanche(wrap(acc + mix16(input, length - 16, SECRET, 136 - 17, seed)));
}

function hashLong(input: DataView, length: number, seed: bigint): bigint {
  const secret = seededSecret(seed);
  const acc = BigUint64Array.of(P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1);
  const stripes = Math.floor((length - 1) / STRIPE_BYTES);
  for (let i = 0; i < stripes; i++) {
    const inBlock = i % STRIPES_PER_BLOCK;
    accumulate(acc, input, i * STRIPE_BYTES, secret, inBlock * 8);
    if (inBlock === STRIPES_PER_BLOCK - 1) scramble(acc, secret, SECRET_BYTES - STRIPE_BYTES);
  }
  accumulate(acc, input, length - STRIPE_BYTES, secret, SECRET_BYTES - STRIPE_BYTES - 7);
  let merged = wrap(BigInt(length) * P64_1);
  for (let i = 0; i < 4; i++) {
    const left = acc[2 * i]! ^ word(secret, 11 + 16 * i);
    const right = acc[2 * i + 1]! ^ word(secret, 19 + 16 * i);
    merged = wrap(merged + foldedProduct(left, right));
  }
  return avalanche(merged);
}

function accumulate(
  acc: BigUint64Array,
  input: DataView,
  at: number,
  secret: DataView,
  secretAt: number,
): void {
  for (let i = 0; i < 8; i++) {
    const value = word(input, at + 8 * i);
    const keyed = value ^ word(secret, secretAt + 8 * i);
    acc[i ^ 1] = wrap(acc[i ^ 1]! + value);
    acc[i] = wrap(acc[i]! + wrap((keyed & LOW_32) * (keyed >> 32n)));
  }
}

function scramble(acc: BigUint64Array, secret: DataView, secretAt: number): void {
  for (let i = 0; i < 8; i++) {
    const value = acc[i]!;
    acc[i] = wrap((value ^ (value >> 47n) ^ word(secret, secretAt + 8 * i)) * P32_1);
  }
}

function mix16(input: DataView, at: number, secret: DataView, secretAt: number, seed: bigint): bigint {
  const low = word(input, at) ^ wrap(word(secret, secretAt) + seed);
  const high = word(input, at + 8) ^ wrap(word(secret, secretAt + 8) - seed);
  return foldedProduct(low, high);
}

/** Both halves of the 128-bit product, xored; by 32-bit halves, so that no intermediate leaves 64 bits. */
function foldedProduct(a: bigint, b: bigint): bigint {
  const aLow = a & LOW_32;
  const aHigh = a >> 32n;
  const bLow = b & LOW_32;
  const bHigh = b >> 32n;
  const lowLow = wrap(aLow * bLow);
  const highLow = wrap(aHigh * bLow);
  const cross = wrap(wrap(aLow * bHigh) + (lowLow >> 32n) + (highLow & LOW_32));
  const upper = wrap(wrap(aHigh * bHigh) + (highLow >> 32n) + (cross >> 32n));
  return upper ^ wrap((cross << 32n) | (lowLow & LOW_32));
}

function avalanche(value: bigint): bigint {
  const mixed = wrap((value ^ (value >> 37n)) * MIX_1);
  return mixed ^ (mixed >> 32n);
}

/** The finish of XXH64, which XXH3 uses for the shortest inputs. */
function avalanche64(value: bigint): bigint {
  let h = wrap((value ^ (value >> 33n)) * P64_2);
  h = wrap((h ^ (h >> 29n)) * P64_3);
  return h ^ (h >> 32n);
}

function seededSecret(seed: bigint): DataView {
  if (seed === 0n) return SECRET;
  const secret = new DataView(new ArrayBuffer(SECRET_BYTES));
  for (let at = 0; at < SECRET_BYTES; at += 16) {
    secret.setBigUint64(at, wrap(word(SECRET, at) + seed), true);
    secret.setBigUint64(at + 8, wrap(word(SECRET, at + 8) - seed), true);
  }
  return secret;
}

function word(view: DataView, at: number): bigint {
  return view.getBigUint64(at, true);
}

function wrap(value: bigint): bigint {
  return BigInt.asUintN(64, value);
}

function rotateLeft(value: bigint, bits: bigint): bigint {
  return wrap(value << bits) | (value >> (64n - bits));
}

function byteSwap(value: bigint): bigint {
  const view = new DataView(new ArrayBuffer(8));
  view.setBigUint64(0, value, true);
  return view.getBigUint64(0, false);
}

function parseSecret(hex: string): DataView {
  const view = new DataView(new ArrayBuffer(SECRET_BYTES));
  for (let i = 0; i < SECRET_BYTES; i++) view.setUint8(i, Number.parseInt(hex.slice(2 * i, 2 * i + 2), 16));
  return view;
}
