/** Rendered text and token ids equal those that a real vLLM engine recorded. */
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";
import { describe, expect, it } from "vitest";
import { exampleModel } from "../../../test/support/example-models.ts";
import { KedgeError } from "../../errors/index.ts";
import { parseJson } from "../../json/index.ts";
import { ChatRenderer } from "./index.ts";

interface Recorded {
  readonly case: string;
  readonly request: unknown;
  readonly prompt_text?: string;
  readonly prompt_token_ids?: readonly number[];
  readonly chat_error?: {
    readonly status: number;
    readonly json: { readonly error: { readonly message: string } };
  };
}

const fixture = new URL("../../../test/fixtures/vllm/chats/rendered.jsonl", import.meta.url);
const recorded: Recorded[] = readFileSync(fixture, "utf8")
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

const { card, tokenizerJson, tokenizerConfig } = exampleModel("qwen3");
const renderer = new ChatRenderer(card, { now: () => 0 });

describe("chats as vLLM renders them", () => {
  const rendered = recorded.filter((entry) => entry.prompt_text !== undefined);
  const refused = recorded.filter((entry) => entry.chat_error !== undefined);

  it("has all recorded cases", () => {
    expect([rendered.length, refused.length]).toEqual([43, 1]);
  });

  it.each(rendered)("$case: the same text", ({ request, prompt_text }) => {
    const result = renderer.renderChat(parseJson(JSON.stringify(request)));
    expect(result).toEqual({ kind: "text", text: prompt_text, complete: true, addSpecial: false });
  });

  it("encodes to the same token ids", () => {
    const tokenizer = new Tokenizer(tokenizerJson, tokenizerConfig);
    for (const { request, prompt_token_ids } of rendered) {
      const result = renderer.renderChat(parseJson(JSON.stringify(request)));
      const text = result.kind === "text" ? result.text : "";
      expect(tokenizer.encode(text, { add_special_tokens: false }).ids).toEqual(prompt_token_ids);
    }
  });

  it.each(refused)("$case: refused as the engine refuses it", ({ request, chat_error }) => {
    try {
      renderer.renderChat(parseJson(JSON.stringify(request)));
      expect.unreachable();
    } catch (error) {
      if (!(error instanceof KedgeError)) throw error;
      expect([error.code, error.kind.status, error.param]).toEqual([
        "invalid_request",
        chat_error!.status,
        "tools",
      ]);
      expect(chat_error!.json.error.message).toContain(error.message);
    }
  });
});
