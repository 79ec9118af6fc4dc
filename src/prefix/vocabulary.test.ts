/** Tokens' bytes, put together, are the canonical text: checked against ids recorded from the Rust tokenizers library. */

import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { KedgeError } from "../errors/index.ts";
import { canonicalText } from "./canonical-text.ts";
import { readTokenizerFile, textRules } from "./tokenizer-file.ts";
import { vocabularyFromTokenizerJson } from "./vocabulary.ts";

interface Recorded {
  readonly name: string;
  readonly tokenizer: Record<string, unknown>;
  readonly cases: readonly (readonly [string, number[]])[];
  readonly with_special: readonly (readonly [string, number[]])[];
}

const recorded: Recorded[] = readFileSync(
  new URL("../../test/fixtures/prefix/spelling.jsonl", import.meta.url),
  "utf8",
)
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

const byName = (name: string): Recorded => recorded.find((entry) => entry.name === name)!;

const textOf = (bytes: Uint8Array | null): string | null =>
  bytes && new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);

/** Unigram takes the text "<0x41>" for the byte token of that name; keys then differ and the prompt is a miss. */
const AMBIGUOUS = new Set(["unigram-metaspace-always:<0x41> <0x0a>"]);

test.each(recorded)(
  "$name: token bytes equal the canonical text",
  ({ name, tokenizer, cases, with_special }) => {
    const vocabulary = vocabularyFromTokenizerJson(tokenizer);
    const rules = { ...textRules(readTokenizerFile(tokenizer)), addedPrefix: "<s>" };
    for (const [text, ids] of cases) {
      if (AMBIGUOUS.has(`${name}:${text}`)) continue;
      expect(textOf(vocabulary.decode(ids))).toBe(canonicalText(rules, text, { addSpecial: false }));
    }
    for (const [text, ids] of with_special) {
      expect(textOf(vocabulary.decode(ids))).toBe(canonicalText(rules, text, { addSpecial: true }));
    }
  },
);

test("ids without a token are not in the vocabulary", () => {
  const { tokenizer } = byName("byte-level-nfc");
  const withHole = {
    ...tokenizer,
    added_tokens: [{ id: 300, content: "<|far|>", normalized: false, special: true }],
  };
  const vocabulary = vocabularyFromTokenizerJson(withHole);
  expect(textOf(vocabulary.decode([300, 65]))).toBe("<|far|>A");
  expect([299, 301, -1, 1.5, Number.NaN].filter((id) => vocabulary.has(id))).toEqual([]);
  expect(vocabulary.decode([65, 299])).toBeNull();
});

test("a byte-level token with a character outside the byte alphabet stands for its own text", () => {
  const { tokenizer } = byName("byte-level-nfc");
  const model = tokenizer.model as { vocab: Record<string, number> };
  const vocabulary = vocabularyFromTokenizerJson({
    ...tokenizer,
    added_tokens: [],
    model: { ...model, vocab: { ...model.vocab, "<｜end｜>": 259 } },
  });
  expect(textOf(vocabulary.decode([259]))).toBe("<｜end｜>");
});

test.each<[string, string, (file: Record<string, unknown>) => object]>([
  ["WordPiece", "bpe-prepend", (file) => ({ ...file, model: { type: "WordPiece", vocab: { a: 0 } } })],
  ["Lowercase", "bpe-prepend", (file) => ({ ...file, normalizer: { type: "Lowercase" } })],
  ["StripAccents", "byte-level-nfc", (file) => ({ ...file, normalizer: { type: "StripAccents" } })],
  ["NFKC", "byte-level-nfc", (file) => ({ ...file, normalizer: { type: "NFKC" } })],
  ["an unknown decoder", "byte-level-nfc", (file) => ({ ...file, decoder: { type: "CTC" } })],
  [
    "a pre-tokenizer that drops text",
    "byte-level-nfc",
    (file) => ({
      ...file,
      pre_tokenizer: {
        type: "Sequence",
        pretokenizers: [{ type: "WhitespaceSplit" }, { type: "ByteLevel" }],
      },
    }),
  ],
  [
    "no byte fallback",
    "bpe-prepend",
    (file) => ({ ...file, model: { ...(file.model as object), byte_fallback: false } }),
  ],
  [
    "a byte no token spells",
    "byte-level-nfc",
    (file) => ({ ...file, model: { ...(file.model as object), vocab: { a: 0, b: 1 } } }),
  ],
  ["neither byte-level nor ▁", "bpe-prepend", (file) => ({ ...file, normalizer: null })],
])("%s is refused and the scheme to use is named", (_, name, change) => {
  const refused = change(byName(name).tokenizer);
  expect(() => vocabularyFromTokenizerJson(refused)).toThrow(/Use the scheme "tokens"/);
  expect(() => vocabularyFromTokenizerJson(refused)).toThrow(
    expect.objectContaining({ code: "unsupported_tokenizer" }),
  );
});

test.each([[null], [7], [[]], [{}], [{ model: {} }], [{ model: { type: "BPE" } }]])(
  "what is no tokenizer.json is told apart from an unsupported one: %j",
  (json) => {
    let thrown: unknown;
    try {
      vocabularyFromTokenizerJson(json);
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(KedgeError);
  },
);
