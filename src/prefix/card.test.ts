/** Cards say what a tokenizer and its files say, and refuse what bytes cannot see. */
import { describe, expect, it } from "vitest";
import { exampleModel } from "../../test/support/example-models.ts";
import { KedgeError } from "../errors/index.ts";
import { deriveModelCard, type ModelCardSource, parseModelCard } from "./card.ts";

const byteLevel = { type: "ByteLevel", add_prefix_space: false, trim_offsets: true, use_regex: true };

function tokenizer(changes: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    model: { type: "BPE", vocab: {}, merges: [] },
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: byteLevel,
    post_processor: byteLevel,
    decoder: byteLevel,
    ...changes,
  };
}

function derive(changes: Partial<ModelCardSource> = {}) {
  return deriveModelCard({ model: "m", tokenizerJson: tokenizer(), ...changes });
}

function codeOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof KedgeError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return "nothing was thrown";
}

const bosTemplate = {
  type: "TemplateProcessing",
  single: [
    { SpecialToken: { id: "<s>", type_id: 0 } },
    { Sequence: { id: "A", type_id: 0 } },
    { SpecialToken: { id: "</s>" } },
  ],
  special_tokens: { "<s>": { id: "<s>", ids: [1], tokens: ["<s>"] } },
};

describe("deriveModelCard", () => {
  it("reads Qwen3: NFC, no BOS", () => {
    const { card } = exampleModel("qwen3");
    expect(card).toMatchObject({
      version: 1,
      model: "qwen3",
      scheme: "bytes",
      unitSize: 128,
      contentFormat: "string",
      bosToken: null,
      eosToken: "<|im_end|>",
      specialTokens: { pad_token: "<|endoftext|>" },
      addedPrefix: null,
      normalizer: "NFC",
      strippingTokens: [],
      timeZone: "UTC",
      bytesPerToken: 4,
      maxModelLen: null,
    });
    expect(card.chatTemplate).toContain("<|im_start|>");
  });

  it("reads Llama 3.1: its post-processor adds the BOS text", () => {
    expect(exampleModel("llama3_1").card).toMatchObject({
      bosToken: "<|begin_of_text|>",
      addedPrefix: "<|begin_of_text|>",
      normalizer: null,
    });
  });

  it("survives JSON: what an agent publishes is what a gateway reads", () => {
    for (const name of ["qwen3", "llama3_1"] as const) {
      const { card } = exampleModel(name);
      expect(parseModelCard(JSON.parse(JSON.stringify(card)))).toEqual(card);
    }
  });

  it("finds the BOS rule in a sequence of processors, and none where nothing precedes the text", () => {
    const sequence = { type: "Sequence", processors: [byteLevel, bosTemplate] };
    expect(derive({ tokenizerJson: tokenizer({ post_processor: sequence }) }).addedPrefix).toBe("<s>");
    const onlyEnd = { ...bosTemplate, single: bosTemplate.single.slice(1) };
    expect(derive({ tokenizerJson: tokenizer({ post_processor: onlyEnd }) }).addedPrefix).toBeNull();
    expect(derive({ tokenizerJson: tokenizer({ post_processor: null }) }).addedPrefix).toBeNull();
  });

  it("follows add_bos_token for the classes that rebuild their processor from it", () => {
    const tokenizerJson = tokenizer({ post_processor: bosTemplate });
    const rule = (add_bos_token: boolean, tokenizer_class: string) =>
      derive({
        tokenizerJson,
        tokenizerConfig: { add_bos_token, tokenizer_class, bos_token: { content: "<s>" } },
      }).addedPrefix;
    expect(rule(false, "LlamaTokenizerFast")).toBeNull();
    expect(rule(true, "LlamaTokenizer")).toBe("<s>");
    expect(rule(false, "PreTrainedTokenizerFast")).toBe("<s>");
  });

  it("takes the template file before the config, and named templates by name", () => {
    const named = [
      { name: "default", template: "D" },
      { name: "tool_use", template: "T" },
    ];
    expect(derive({ tokenizerConfig: { chat_template: "C" } }).chatTemplate).toBe("C");
    expect(derive({ tokenizerConfig: { chat_template: "C" }, chatTemplateFile: "F" }).chatTemplate).toBe("F");
    const card = derive({ tokenizerConfig: { chat_template: named } });
    expect([card.chatTemplate, card.namedTemplates]).toEqual(["D", { tool_use: "T" }]);
    expect(derive().chatTemplate).toBeNull();
  });

  it("has no template for models that engines do not render by template", () => {
    expect(derive({ chatTemplateFile: "F", config: { model_type: "gpt_oss" } }).chatTemplate).toBeNull();
  });

  it("detects the content format from the template", () => {
    const chatTemplateFile =
      "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}";
    expect(derive({ chatTemplateFile }).contentFormat).toBe("openai");
    expect(derive({ chatTemplateFile: "{% broken" }).contentFormat).toBe("string");
  });

  it("lists added tokens that swallow white space, and the model's length", () => {
    const stripping = { id: 7, content: "<mask>", lstrip: true, rstrip: false, normalized: false };
    const card = derive({
      tokenizerJson: tokenizer({
        added_tokens: [stripping, { ...stripping, id: 8, content: "<x>", lstrip: false }],
      }),
      config: { text_config: { max_position_embeddings: 4096 } },
    });
    expect(card.strippingTokens).toEqual([{ content: "<mask>", lstrip: true, rstrip: false }]);
    expect(card.maxModelLen).toBe(4096);
  });

  it.each([
    [
      "a lossy normaliser",
      { normalizer: { type: "Sequence", normalizers: [{ type: "NFC" }, { type: "Lowercase" }] } },
    ],
    ["another model", { model: { type: "WordPiece", vocab: {} } }],
  ])("refuses %s for bytes, naming the way out, and takes it for tokens", (_, changes) => {
    const tokenizerJson = tokenizer(changes);
    expect(codeOf(() => derive({ tokenizerJson }))).toMatch(/^unsupported_tokenizer: .*scheme "tokens"/s);
    expect(derive({ tokenizerJson, scheme: "tokens" })).toMatchObject({
      scheme: "tokens",
      unitSize: 16,
      normalizer: null,
    });
  });

  it("takes SentencePiece's ▁ rules", () => {
    const normalizers = [
      { type: "Prepend", prepend: "▁" },
      { type: "Replace", pattern: { String: " " }, content: "▁" },
    ];
    const tokenizerJson = tokenizer({
      model: { type: "BPE", vocab: {}, merges: [], byte_fallback: true },
      normalizer: { type: "Sequence", normalizers },
      pre_tokenizer: null,
      decoder: null,
    });
    expect(derive({ tokenizerJson }).leadingSpace).toBe("always");
  });

  it.each([
    [{ timeZone: "Mars/Olympus" }, "timeZone"],
    [{ unitSize: 0 }, "unitSize"],
    [{ model: "" }, "model"],
    [{ tokenizerConfig: [] }, "tokenizer_config.json"],
    [{ tokenizerJson: { hello: 1 } }, "tokenizer.json"],
  ])("refuses %j", (changes, named) => {
    const code = codeOf(() => derive(changes));
    expect(code).toMatch(/^config_invalid/);
    expect(code).toContain(named);
  });
});

describe("parseModelCard", () => {
  it("refuses fields it does not know, and missing ones", () => {
    const { card } = exampleModel("qwen3");
    expect(codeOf(() => parseModelCard({ ...card, chunkSize: 1 }))).toContain("chunkSize");
    expect(codeOf(() => parseModelCard({ ...card, model: undefined }))).toContain("model");
    expect(codeOf(() => parseModelCard("x"))).toMatch(/^config_invalid/);
  });
});
