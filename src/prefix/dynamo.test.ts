/** Dynamo's hashes: every recorded block and sequence hash, the published vectors, and XXH3 at every length class. */

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { type DynamoBlockOptions, dynamoBlockHashes, dynamoSequenceHashes } from "./dynamo.ts";
import { xxh3 } from "./xxh3.ts";

interface Recorded {
  readonly block_size: number;
  readonly tokens: number[];
  readonly lora_name: string | null;
  readonly cache_salt: string | null;
  readonly eagle: boolean;
  readonly mm_hashes: (string[] | null)[] | null;
  readonly block_hashes: string[];
  readonly sequence_hashes: string[] | null;
}

const recorded: Recorded[] = readFileSync(
  new URL("../../test/fixtures/dynamo/block-hashes.jsonl", import.meta.url),
  "utf8",
)
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

const upTo = (first: number, last: number): number[] =>
  Array.from({ length: last - first + 1 }, (_, i) => first + i);
const locals = (tokens: number[], blockSize: number, options?: DynamoBlockOptions): string[] =>
  Array.from(dynamoBlockHashes(tokens, blockSize, options), String);
const sequence = (tokens: number[], blockSize: number): string[] =>
  Array.from(dynamoSequenceHashes(dynamoBlockHashes(tokens, blockSize)), String);

test("all 600 recorded prompts: block and sequence hashes as Dynamo 1.6.1 gave them", () => {
  let sequences = 0;
  for (const line of recorded) {
    const hashes = dynamoBlockHashes(line.tokens, line.block_size, {
      loraName: line.lora_name,
      cacheSalt: line.cache_salt,
      eagle: line.eagle,
      mmHashes: line.mm_hashes?.map((images) => images?.map(BigInt) ?? null) ?? null,
    });
    expect(Array.from(hashes, String)).toEqual(line.block_hashes);
    if (line.sequence_hashes === null) continue;
    sequences++;
    expect(Array.from(dynamoSequenceHashes(hashes), String)).toEqual(line.sequence_hashes);
  }
  expect([recorded.length, sequences]).toEqual([600, 457]);
});

test("Dynamo's own vectors", () => {
  expect(xxh3(new TextEncoder().encode("test data"), 1337n)).toBe(13226331709069118873n);
  expect(locals(upTo(1, 12), 4)).toEqual([
    "14643705804678351452",
    "16777012769546811212",
    "483935686894639516",
  ]);
  expect(sequence(upTo(1, 12), 4)).toEqual([
    "14643705804678351452",
    "4945711292740353085",
    "12583592247330656132",
  ]);
});

test("derived vectors: longer blocks, adapters, salts, windows, images", () => {
  expect(sequence(upTo(0, 11), 4)).toEqual([
    "9143094415614847814",
    "9510318385840434533",
    "16998148715716822651",
  ]);
  expect(sequence(upTo(1, 64), 16)).toEqual([
    "16863443419780771464",
    "12466389667045779788",
    "960926348267535642",
    "4923844688253642376",
  ]);
  expect(locals(upTo(0, 63), 64)).toEqual(["3480597578098033343"]);
  expect(locals(upTo(0, 256), 256)).toEqual(["13509048708924160886"]);
  const four = upTo(0, 3);
  expect(locals(four, 4, { loraName: "adapter-a" })).toEqual(["6665157333201000639"]);
  expect(locals(four, 4, { cacheSalt: "tenant-a" })).toEqual(["17009624042690211646"]);
  expect(locals(four, 4, { loraName: "adapter-a", cacheSalt: "tenant-a" })).toEqual(["8269515957840517240"]);
  expect(locals(four, 4, { loraName: "", cacheSalt: "" })).toEqual(locals(four, 4));
  expect(locals(upTo(0, 8), 4, { eagle: true })).toEqual(["14562210786876287112", "15916330181359808192"]);
  expect(locals(four, 4, { mmHashes: [[42n, 7n]] })).toEqual(["4581426371996505827"]);
  expect(locals([], 4, { eagle: true })).toEqual([]);
});

test("an id that is not an unsigned 32-bit integer is refused", () => {
  expect(() => dynamoBlockHashes([-1], 1)).toThrow(expect.objectContaining({ code: "invalid_request" }));
  expect(() => dynamoBlockHashes([2 ** 32], 1)).toThrow(expect.objectContaining({ code: "invalid_request" }));
});

/** Expected values from python-xxhash: XXH3 (seed 0) over the hashes, as 8 little-endian bytes each, of the first 0 … 2,099 bytes. */
test.each([
  [0n, 7798416577491186212n],
  [1n, 4945911719132212780n],
  [1337n, 3307075655631272779n],
  [2n ** 64n - 1n, 16018548914766475513n],
])(
  "XXH3 with seed %i at every length from 0 to 2,099 equals the reference implementation",
  (seed, expected) => {
    const bytes = Uint8Array.from({ length: 2100 }, (_, i) => (i * 131 + 7) % 251);
    const hashes = BigUint64Array.from({ length: 2100 }, (_, length) =>
      xxh3(bytes.subarray(0, length), seed),
    );
    expect(xxh3(new Uint8Array(hashes.buffer))).toBe(expected);
  },
);
