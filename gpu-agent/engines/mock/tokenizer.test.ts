/** The mock's fast tokenizer says exactly what the reference library says, and its model folder is what the script trains. */

import { readFileSync } from "node:fs";
import { Tokenizer as Reference } from "@huggingface/tokenizers";
import fc from "fast-check";
import { expect, it } from "vitest";
import { wordIds as trainedWords, trainTokenizer } from "../../../scripts/train-mock-tokenizer.ts";
import { modelPath, wordIds } from "./model.ts";
import { loadTokenizer } from "./tokenizer.ts";

const file = readFileSync(modelPath("tokenizer.json"), "utf8");
const config = JSON.parse(readFileSync(modelPath("tokenizer_config.json"), "utf8")) as object;
const reference = new Reference(JSON.parse(file) as object, config);
const tokenizer = loadTokenizer(modelPath("tokenizer.json"));

const expected = (text: string): number[] => reference.encode(text, { add_special_tokens: false }).ids;

const words = fc.constantFrom(
  " harbour",
  "the",
  " don't",
  "\n\n",
  "  ",
  "<|im_end|>",
  "<|im_start|>user\n",
  "é",
  "👩‍👩‍👧",
  " 4.10",
  '{"a": [1, 2]}',
);
const text = fc.array(
  fc.oneof(words, fc.string({ unit: "grapheme", maxLength: 12 }), fc.string({ maxLength: 12 })),
  { maxLength: 30 },
);

it("encodes any text as the reference library does", () => {
  fc.assert(
    fc.property(text, (parts) => {
      const joined = parts.join("").toWellFormed();
      expect(tokenizer.encode(joined)).toEqual(expected(joined));
    }),
    { numRuns: 500, seed: 7 },
  );
});

it("decoding what was encoded gives the text back", () => {
  fc.assert(
    fc.property(text, (parts) => {
      const joined = parts.join("").toWellFormed();
      expect(tokenizer.decode(tokenizer.encode(joined))).toBe(joined);
    }),
    { numRuns: 300, seed: 8 },
  );
});

it("every word that the mock speaks in encodes to itself, alone and in a row", () => {
  const row = [...wordIds()];
  expect(row.length).toBeGreaterThan(2000);
  expect(tokenizer.encode(tokenizer.decode(row))).toEqual(row);
});

it("needs about one token per word of plain English", () => {
  const sample =
    "The harbour master kept a ledger of every vessel that dropped anchor between the breakwater and the old customs house.";
  expect(sample.length / tokenizer.encode(sample).length).toBeGreaterThan(4);
});

it("the checked-in tokenizer is at most 300 KB and is what the training script makes of the corpus", () => {
  const corpus = readFileSync(new URL("../../../scripts/mock-tokenizer-corpus.txt", import.meta.url), "utf8");
  expect(trainTokenizer(corpus) === file).toBe(true);
  expect(Buffer.byteLength(file)).toBeLessThanOrEqual(300_000);
  expect(trainedWords(corpus, file)).toEqual(wordIds());
});
