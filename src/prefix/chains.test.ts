/** Laws of both kinds of chain: fixed layout, prefix property, separation of identities, agent and gateway agreeing. */

import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { bytesChain, createBytesKeyer } from "./bytes-scheme.ts";
import { chainRoot, createHasher, type Hasher } from "./hasher.ts";
import type { ChainKeyer } from "./keyer.ts";
import { createTokensKeyer, tokensChain } from "./token-scheme.ts";
import type { ChainIdentity, PrefixSchemeName } from "./types.ts";
import { Vocabulary } from "./vocabulary.ts";

const plain: ChainIdentity = { model: "m", adapter: null, salt: null };
let hasher: Hasher;

fc.configureGlobal({ seed: 20_260 });
beforeAll(async () => {
  hasher = await createHasher();
});

/** Feeds ids in blocks of the given sizes, in turn, the last block cut short. */
function feed(keyer: ChainKeyer, ids: readonly number[], blockSizes: readonly number[]) {
  let state = keyer.start(plain);
  const keys: bigint[] = [];
  const tokens: number[] = [];
  for (let at = 0, turn = 0; at < ids.length; turn++) {
    const size = blockSizes[turn % blockSizes.length]!;
    const extension = keyer.extend(state, ids.slice(at, at + size));
    state = extension.state;
    keys.push(...extension.keys);
    tokens.push(...extension.tokens);
    at += size;
  }
  return { state, keys, tokens };
}

/** A vocabulary whose token i is i + 1 bytes long, so that one token may span several chunks. */
function stairVocabulary(size: number): Vocabulary {
  const offsets = Uint32Array.from({ length: size + 1 }, (_, i) => (i * (i + 1)) / 2);
  return new Vocabulary(
    Uint8Array.from({ length: offsets[size]! }, (_, i) => (i * 37) % 256),
    offsets,
  );
}

const ids = (max: number) => fc.array(fc.nat(max), { maxLength: 200 });
const bytes = fc.uint8Array({ maxLength: 600 });
const unitSizes = fc.constantFrom(1, 3, 8, 64, 128);

describe("layout", () => {
  // Expected values computed with python-xxhash from the documented layout.
  test("roots and keys of scheme bytes", () => {
    const text = "The quick brown fox jumps over the lazy dog. ".repeat(7);
    const chain = bytesChain(hasher, { model: "Qwen/Qwen3-8B", adapter: null, salt: "tenant-ä" }, text);
    expect(chain).toEqual({
      scheme: "bytes",
      root: 5875995749654413465n,
      keys: BigUint64Array.of(11350895188638007379n, 7048621397113804484n),
      unitSize: 128,
      unitCount: 315,
      complete: true,
    });
  });

  test("roots and keys of scheme tokens", () => {
    const identity = { model: "Qwen/Qwen3-8B", adapter: "adapter", salt: "" };
    const chain = tokensChain(
      hasher,
      identity,
      Array.from({ length: 40 }, (_, i) => i * 1_000_003),
      16,
      false,
    );
    expect(chain).toEqual({
      scheme: "tokens",
      root: 712530542772866123n,
      keys: BigUint64Array.of(9549286453190129187n, 17748677523993695701n),
      unitSize: 16,
      unitCount: 40,
      complete: false,
    });
  });

  test("a text longer than the reusable buffer has the keys of its bytes", () => {
    for (const text of ["é".repeat(500_000), "x".repeat(50_000), ""]) {
      const fromBytes = bytesChain(hasher, plain, new TextEncoder().encode(text));
      expect(bytesChain(hasher, plain, text)).toEqual(fromBytes);
    }
  });
});

describe("identity", () => {
  const part = fc.string({ unit: fc.constantFrom("a", "b", "\0", "1", "é"), maxLength: 3 });
  const schemes: fc.Arbitrary<PrefixSchemeName> = fc.constantFrom("bytes", "tokens");
  const seed = fc.tuple(schemes, fc.constantFrom(1, 11, 16), part, fc.option(part), fc.option(part));

  test("two seeds have one root exactly if scheme, unit size, model, adapter and salt are the same", () => {
    const rootOf = ([scheme, unitSize, model, adapter, salt]: [
      PrefixSchemeName,
      number,
      string,
      string | null,
      string | null,
    ]): bigint => chainRoot(hasher, scheme, unitSize, { model, adapter, salt });
    fc.assert(
      fc.property(seed, seed, (a, b) => {
        const normal = (s: typeof a): string => JSON.stringify(s.map((field) => field ?? ""));
        expect(rootOf(a) === rootOf(b)).toBe(normal(a) === normal(b));
      }),
      { numRuns: 3000 },
    );
  });

  test("a character moved between model, adapter and salt makes another root", () => {
    const roots = [
      ["ab", "c", "d"],
      ["a", "bc", "d"],
      ["abc", "", "d"],
      ["ab", "cd", ""],
      ["ab", "", "cd"],
      ["abcd", "", ""],
    ].map(([model, adapter, salt]) =>
      chainRoot(hasher, "bytes", 128, { model: model!, adapter: adapter!, salt: salt! }),
    );
    expect(new Set(roots).size).toBe(roots.length);
  });

  test("chains of different identities share no key", () => {
    const text = "same text ".repeat(100);
    const a = bytesChain(hasher, plain, text).keys;
    const b = bytesChain(hasher, { ...plain, salt: "tenant" }, text).keys;
    expect(a.some((key) => b.includes(key))).toBe(false);
  });
});

describe("prefix property", () => {
  test("bytes: a longer prompt keeps the keys of the shorter one", () => {
    fc.assert(
      fc.property(bytes, bytes, unitSizes, (head, tail, unitSize) => {
        const short = bytesChain(hasher, plain, head, unitSize).keys;
        const long = bytesChain(hasher, plain, Uint8Array.of(...head, ...tail), unitSize).keys;
        expect(short).toEqual(long.slice(0, short.length));
        expect(short.length).toBe(Math.floor(head.length / unitSize));
      }),
    );
  });

  test("bytes: a change anywhere changes every key from its chunk on and none before", () => {
    fc.assert(
      fc.property(
        fc.uint8Array({ minLength: 1, maxLength: 600 }),
        fc.nat(),
        unitSizes,
        (text, where, unitSize) => {
          const at = where % text.length;
          const changed = text.map((byte, i) => (i === at ? byte ^ 1 : byte));
          const before = bytesChain(hasher, plain, text, unitSize).keys;
          const after = bytesChain(hasher, plain, changed, unitSize).keys;
          before.forEach((key, i) => {
            expect(key === after[i]).toBe(i < Math.floor(at / unitSize));
          });
        },
      ),
    );
  });

  test("tokens: the same two laws", () => {
    const some = fc.array(fc.nat(2 ** 31), { minLength: 1, maxLength: 200 });
    fc.assert(
      fc.property(some, ids(2 ** 31), fc.constantFrom(1, 4, 16), (head, tail, unitSize) => {
        const whole = [...head, ...tail];
        const short = tokensChain(hasher, plain, head, unitSize).keys;
        const long = tokensChain(hasher, plain, whole, unitSize).keys;
        expect(short).toEqual(long.slice(0, short.length));
        const changed = tokensChain(hasher, plain, whole.with(0, 2 ** 32 - 1), unitSize).keys;
        expect(changed.some((key, i) => key === long[i])).toBe(false);
      }),
    );
  });
});

describe("the agent's keyers", () => {
  test("tokens: engine blocks of any multiple of the unit give the gateway's keys and counts", () => {
    fc.assert(
      fc.property(
        ids(2 ** 32 - 1),
        fc.constantFrom(1, 4, 16),
        fc.integer({ min: 1, max: 4 }),
        (all, unit, k) => {
          const whole = all.slice(0, Math.floor(all.length / (unit * k)) * unit * k);
          const fed = feed(createTokensKeyer(hasher, unit), whole, [unit * k]);
          expect(fed.keys).toEqual([...tokensChain(hasher, plain, whole, unit).keys]);
          expect(fed.tokens).toEqual(fed.keys.map((_, i) => (i + 1) * unit));
          expect(fed.state).toMatchObject({ depth: fed.keys.length, tokens: whole.length });
        },
      ),
    );
  });

  test("tokens: a block that is no multiple of the unit is refused with the fix", () => {
    const keyer = createTokensKeyer(hasher, 16);
    const extend = () => keyer.extend(keyer.start(plain), new Array(24).fill(0));
    expect(extend).toThrow(expect.objectContaining({ code: "engine_mismatch" }));
    expect(extend).toThrow(/24 tokens.*16 tokens.*divisor/);
  });

  test("bytes: blocks of any sizes give the keys of the concatenated bytes", () => {
    const vocabulary = stairVocabulary(300);
    const sizes = fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(ids(299), sizes, unitSizes, (all, blockSizes, unitSize) => {
        const fed = feed(createBytesKeyer(hasher, vocabulary, unitSize), all, blockSizes);
        const text = vocabulary.decode(all)!;
        expect(fed.keys).toEqual([...bytesChain(hasher, plain, text, unitSize).keys]);
        expect(fed.state).toMatchObject({ depth: fed.keys.length, tokens: all.length });
        // Tokens wholly inside a chunk's end: those whose own end is not beyond it.
        const ends = all.map((_, i) => all.slice(0, i + 1).reduce((sum, id) => sum + id + 1, 0));
        expect(fed.tokens).toEqual(
          fed.keys.map((_, i) => ends.filter((end) => end <= (i + 1) * unitSize).length),
        );
      }),
    );
  });

  test("bytes: a state can be continued twice and neither branch sees the other", () => {
    const keyer = createBytesKeyer(hasher, stairVocabulary(300));
    const { state } = feed(keyer, [60, 70, 80], [3]);
    const alone = keyer.extend(state, [200]);
    keyer.extend(state, [100, 299]);
    expect(keyer.extend(state, [200])).toEqual(alone);
  });

  test("bytes: a failed extension leaves nothing behind, and says which id is unknown", () => {
    const keyer = createBytesKeyer(hasher, stairVocabulary(300));
    const { state } = feed(keyer, [60, 70, 80], [3]);
    const before = keyer.extend(state, [5, 200]);
    expect(() => keyer.extend(state, [7, 300])).toThrow(
      expect.objectContaining({ code: "invalid_request", message: expect.stringContaining("300") }),
    );
    expect(keyer.extend(state, [5, 200])).toEqual(before);
  });

  test.each([-1, 1.5, 2 ** 32, Number.NaN])("tokens: id %d is refused", (id) => {
    const keyer = createTokensKeyer(hasher, 1);
    const refusal = expect.objectContaining({ code: "invalid_request" });
    expect(() => keyer.extend(keyer.start(plain), [id])).toThrow(refusal);
    expect(() => tokensChain(hasher, plain, [id], 1)).toThrow(refusal);
  });
});
