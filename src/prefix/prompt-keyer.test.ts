/** The gateway's keyer: what each form of prompt yields under each scheme. */

import { readFileSync } from "node:fs";
import { beforeAll, expect, test } from "vitest";
import { bytesChain } from "./bytes-scheme.ts";
import { createHasher, type Hasher } from "./hasher.ts";
import { createPromptKeyer, type PromptKeyerOptions } from "./prompt-keyer.ts";
import { tokensChain } from "./token-scheme.ts";
import { createTokenizer } from "./tokenizer.ts";
import { readTokenizerFile, textRules } from "./tokenizer-file.ts";
import type { ModelCard } from "./types.ts";
import { vocabularyFromTokenizerJson } from "./vocabulary.ts";

const identity = { model: "m", adapter: null, salt: null };
const fixture = readFileSync(new URL("../../test/fixtures/prefix/spelling.jsonl", import.meta.url), "utf8");
const { tokenizer: tokenizerJson } = fixture
  .split("\n")
  .map((line) => JSON.parse(line || "{}"))
  .find((line) => line.name === "byte-level-nfc");

const card: ModelCard = {
  version: 1,
  model: "m",
  scheme: "bytes",
  unitSize: 8,
  chatTemplate: null,
  namedTemplates: {},
  contentFormat: "string",
  bosToken: "<s>",
  eosToken: null,
  specialTokens: {},
  addedPrefix: "<s>",
  ...textRules(readTokenizerFile(tokenizerJson)),
  timeZone: "UTC",
  bytesPerToken: 4,
  maxModelLen: null,
};

let hasher: Hasher;
beforeAll(async () => {
  hasher = await createHasher();
});

const keyer = (options: Partial<PromptKeyerOptions> = {}) => createPromptKeyer({ hasher, card, ...options });
const text = (value: string, addSpecial = false, complete = true) =>
  ({ kind: "text", text: value, addSpecial, complete }) as const;

test("bytes: text is keyed as the tokenizer would spell it, with its prefix only if the engine adds it", () => {
  const prompt = "hello<|user|>   cafe\u0301 and more";
  const canonical = "hello<|user|>café and more";
  expect(keyer().keysOf(text(prompt), identity)).toEqual(bytesChain(hasher, identity, canonical, 8));
  expect(keyer().keysOf(text(prompt, true), identity)).toEqual(
    bytesChain(hasher, identity, `<s>${canonical}`, 8),
  );
});

test("bytes: token ids have no keys without the vocabulary, and those of their text with it", () => {
  const vocabulary = vocabularyFromTokenizerJson(tokenizerJson);
  const prompt = { kind: "tokens", tokenIds: [...new TextEncoder().encode("hello there!")] } as const;
  expect(keyer().keysOf(prompt, identity)).toBeNull();
  expect(keyer({ vocabulary }).keysOf(prompt, identity)).toEqual(
    keyer().keysOf(text(new TextDecoder().decode(vocabulary.decode(prompt.tokenIds)!)), identity),
  );
  expect(keyer({ vocabulary }).keysOf({ kind: "tokens", tokenIds: [999_999] }, identity)).toBeNull();
});

test("tokens: text needs the tokenizer; ids are keyed as they are", () => {
  const tokenCard: ModelCard = { ...card, scheme: "tokens", unitSize: 4 };
  const tokenizer = createTokenizer(tokenizerJson, {});
  const withTokenizer = keyer({ card: tokenCard, tokenizer });
  const tokenIds = tokenizer.encode("hello there", { addSpecial: true });
  expect(tokenIds[0]).toBe(tokenizerJson.added_tokens[0].id);
  const chain = tokensChain(hasher, identity, tokenIds, 4);
  expect(chain.keys.length).toBeGreaterThan(0);
  expect(withTokenizer.keysOf(text("hello there", true), identity)).toEqual(chain);
  expect(keyer({ card: tokenCard }).keysOf({ kind: "tokens", tokenIds }, identity)).toEqual(chain);
  expect(keyer({ card: tokenCard }).keysOf(text("hello there"), identity)).toBeNull();
});

test("a prompt that is known only in part keeps the keys of that part and says so; an unknown one has none", () => {
  const head = keyer().keysOf(text("what is in this picture? ", false, false), identity);
  const whole = keyer().keysOf(text("what is in this picture? A cat."), identity)!;
  expect(head).toMatchObject({ complete: false, root: whole.root });
  expect(head!.keys).toEqual(whole.keys.slice(0, 3));
  expect(keyer().keysOf({ kind: "unkeyed" }, identity)).toBeNull();
  expect(keyer({ card: { ...card, scheme: "tokens" } }).keysOf({ kind: "unkeyed" }, identity)).toBeNull();
});
