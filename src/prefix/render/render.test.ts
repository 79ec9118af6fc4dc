/** Requests become the engine's prompts: roles, tools, parts, options, completions. */
import { describe, expect, it } from "vitest";
import { exampleModel } from "../../../test/support/example-models.ts";
import { KedgeError } from "../../errors/index.ts";
import { parseJson } from "../../json/index.ts";
import type { ModelCard } from "../types.ts";
import { detectContentFormat } from "./content-format.ts";
import { ChatRenderer, type Rendered } from "./index.ts";
import { parseTemplate } from "./jinja/ast.ts";

const qwen = exampleModel("qwen3").card;
const llama = exampleModel("llama3_1").card;

const PLAIN =
  "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
const PARTS =
  "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}" +
  "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}{% endfor %}" +
  "{% endif %}{% endfor %}";

function cardWith(changes: Partial<ModelCard>): ModelCard {
  return { ...qwen, ...changes };
}

function chat(card: ModelCard, body: object, now = 0): Rendered {
  return new ChatRenderer(card, { now: () => now }).renderChat(parseJson(JSON.stringify(body)));
}

function chatText(card: ModelCard, body: object, now = 0): string {
  const rendered = chat(card, body, now);
  if (rendered.kind !== "text") throw new Error(JSON.stringify(rendered));
  return rendered.text;
}

function errorOf(run: () => unknown): KedgeError {
  try {
    run();
  } catch (error) {
    if (error instanceof KedgeError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

const user = (content: unknown) => ({ role: "user", content });
const image = { type: "image_url", image_url: { url: "data:," } };
const text = (value: string) => ({ type: "text", text: value });

describe("roles", () => {
  const developer = { role: "developer", content: "B", tools: [{ type: "function" }] };

  it("folds developer messages into one leading system message where the template does not know them", () => {
    const messages = [{ role: "system", content: "A" }, user("x"), developer, user("y")];
    expect(chatText(cardWith({ chatTemplate: PLAIN }), { messages })).toBe(
      "[system]A\n\nB[user]x[user]y[assistant]",
    );
  });

  it("keeps them where the template names the role, with their tools", () => {
    const template =
      "{% for m in messages %}{% if m.role == 'developer' %}{{ m | tojson }}{% endif %}{% endfor %}";
    expect(chatText(cardWith({ chatTemplate: template }), { messages: [developer] })).toBe(
      '{"role": "developer", "content": "B", "tools": [{"type": "function"}]}',
    );
  });

  it("leaves later system messages alone when there is no developer", () => {
    const messages = [user("x"), { role: "system", content: "A" }];
    expect(chatText(cardWith({ chatTemplate: PLAIN }), { messages })).toBe("[user]x[system]A[assistant]");
  });
});

describe("what the template sees", () => {
  const dump = cardWith({ chatTemplate: "{{ messages | tojson }}{{ tools | tojson }}" });

  it("lays out tool calls in the engine's order, not the client's, and drops unknown fields", () => {
    const call = {
      index: 0,
      type: "function",
      function: { name: "f", arguments: '{"b":1.0,"a":[1e2]}' },
      id: "c",
    };
    const messages = [
      { role: "assistant", tool_calls: [call], content: null, reasoning_content: "r", extra: 1 },
    ];
    expect(chatText(dump, { messages })).toBe(
      '[{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": {"b": 1.0, "a": [100.0]}, ' +
        '"name": "f"}, "type": "function"}], "reasoning": "r", "reasoning_content": "r"}]null',
    );
  });

  it("drops empty tool_calls and keeps tool_call_id and name", () => {
    const messages = [
      { role: "assistant", content: "a", tool_calls: [] },
      { name: "n", tool_call_id: "c", role: "tool", content: [text("x"), text(""), text("y")] },
    ];
    expect(chatText(dump, { messages })).toBe(
      '[{"role": "assistant", "content": "a"}, {"role": "tool", "content": "x\\ny", "tool_call_id": "c", "name": "n"}]null',
    );
  });

  it("rebuilds tools and keeps the order and numbers of their parameters", () => {
    const body =
      '{"messages":[],"tools":[{"function":{"strict":true,"parameters":{"2":1.0,"1":{"default":1e2,"__proto__":null}},"name":"f"}}]}';
    const rendered = new ChatRenderer(dump, { now: () => 0 }).renderChat(parseJson(body));
    expect(rendered).toMatchObject({
      text:
        '[][{"type": "function", "function": {"name": "f", "description": null, "parameters": ' +
        '{"2": 1.0, "1": {"default": 100.0, "__proto__": null}}, "strict": true}}]',
    });
  });

  it("strips only what a template asks to strip", () => {
    const messages = [user("q"), { role: "assistant", content: "\n  <think>\n why\n</think>\n\n  a " }];
    expect(chatText(qwen, { messages, add_generation_prompt: false })).toBe(
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n why\n</think>\n\n  a <|im_end|>\n",
    );
  });

  it("passes kwargs, documents and reasoning effort; effort decides on thinking unless the client does", () => {
    const template =
      "{{ [x, documents, reasoning_effort, enable_thinking, add_generation_prompt] | tojson }}";
    const card = cardWith({ chatTemplate: template });
    const messages = [user("q")];
    const seen = (body: object) => chatText(card, { messages, ...body });
    expect(
      seen({ chat_template_kwargs: { x: 1.5 }, documents: [{ text: "t" }], reasoning_effort: "none" }),
    ).toBe('[1.5, [{"text": "t"}], "none", false, true]');
    expect(seen({ chat_template_kwargs: { x: 2, enable_thinking: false }, reasoning_effort: "high" })).toBe(
      '[2, null, "high", false, true]',
    );
  });

  it("prints dates in the card's zone", () => {
    const card = cardWith({ chatTemplate: "{{ strftime_now('%d %b %Y') }}", timeZone: "Asia/Tokyo" });
    expect(chatText(card, { messages: [user("q")] }, Date.UTC(2024, 11, 31, 23))).toBe("01 Jan 2025");
  });
});

describe("templates", () => {
  it("takes the one named tool_use where there are tools", () => {
    const card = cardWith({ chatTemplate: "plain", namedTemplates: { tool_use: "tools" } });
    const tools = [{ type: "function", function: { name: "f" } }];
    expect(chatText(card, { messages: [] })).toBe("plain");
    expect(chatText(card, { messages: [], tools })).toBe("tools");
  });

  it("hands over the template's own refusal", () => {
    const card = cardWith({ chatTemplate: "{{ raise_exception('Roles must alternate') }}" });
    const error = errorOf(() => chat(card, { messages: [] }));
    expect([error.code, error.message]).toEqual(["template_error", "Roles must alternate"]);
  });

  it.each([
    ["no template", cardWith({ chatTemplate: null }), {}],
    ["a template that does not parse here", cardWith({ chatTemplate: "{% raw %}x{% endraw %}" }), {}],
    ["a client's template", qwen, { chat_template: "x" }],
    ["a client's template among kwargs", qwen, { chat_template_kwargs: { chat_template: "x" } }],
    ["a truncated prompt", qwen, { truncate_prompt_tokens: 10 }],
    ["tools of another kind", qwen, { tools: [{ type: "custom", custom: { name: "x" } }] }],
  ])("leaves unkeyed: %s", (_, card, body) => {
    expect(chat(card, { messages: [user("x")], ...body }).kind).toBe("unkeyed");
  });

  it.each([
    [{}, "messages"],
    [{ messages: "hi" }, "messages"],
    [{ messages: ["hi"] }, "messages"],
    [{ messages: [{ content: "hi" }] }, "messages"],
    [{ messages: [user(5)] }, "messages"],
    [
      { messages: [user("x")], continue_final_message: true, add_generation_prompt: true },
      "continue_final_message",
    ],
  ])("refuses %j", (body, param) => {
    const error = errorOf(() => chat(qwen, body));
    expect([error.code, error.param]).toEqual(["invalid_request", param]);
  });
});

describe("beginning of sequence", () => {
  it("stands in a chat's text exactly once and is left to the tokenizer for completions", () => {
    const rendered = chat(llama, { messages: [user(" hi ")] });
    expect(rendered).toEqual({
      kind: "text",
      text:
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>" +
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
      complete: true,
      addSpecial: false,
    });
    expect(llama.addedPrefix).toBe("<|begin_of_text|>");
    const completion = new ChatRenderer(llama, { now: () => 0 }).renderCompletion(
      parseJson('{"prompt":"hi"}'),
    );
    expect(completion).toEqual([{ kind: "text", text: "hi", complete: true, addSpecial: true }]);
  });
});

describe("continue_final_message", () => {
  const options = { add_generation_prompt: false, continue_final_message: true };

  it("ends where the last message's text ends, trimmed if the template trims", () => {
    const messages = [user("q"), { role: "assistant", content: "so far " }];
    expect(chatText(cardWith({ chatTemplate: `${PLAIN}.` }), { messages, ...options })).toBe(
      "[user]q[assistant]so far ",
    );
    const trimming = PLAIN.replace("m.content", "m.content | trim");
    expect(chatText(cardWith({ chatTemplate: trimming }), { messages, ...options })).toBe(
      "[user]q[assistant]so far",
    );
  });

  it("continues the last text part of a list", () => {
    const messages = [user("q"), { role: "assistant", content: [text("a"), text("b")] }];
    const card = cardWith({ chatTemplate: PARTS, contentFormat: "openai" });
    expect(chatText(card, { messages, ...options })).toBe("[user]q[assistant]ab");
  });

  it("is unkeyed where the template drops the message, which the engine refuses", () => {
    const card = cardWith({ chatTemplate: "{{ messages[0].content }}" });
    expect(chat(card, { messages: [user("q"), user("x")], ...options }).kind).toBe("unkeyed");
  });
});

describe("parts without text", () => {
  const messages = [
    { role: "system", content: "S" },
    user([text("before"), image, text("after")]),
    user("z"),
  ];

  it("ends a list of parts right before the first of them", () => {
    const card = cardWith({ chatTemplate: PARTS, contentFormat: "openai" });
    expect(chat(card, { messages })).toEqual({
      kind: "text",
      text: "[system]S[user]before",
      complete: false,
      addSpecial: false,
    });
  });

  it("ends flat text before the whole message, for the engine puts placeholders in front of it", () => {
    expect(chat(cardWith({ chatTemplate: PLAIN }), { messages })).toMatchObject({
      text: "[system]S[user]",
      complete: false,
    });
  });

  it("keeps no more than what the template prints when it knows there is an image", () => {
    const template = `{% set ns = namespace(seen=false) %}{% for m in messages %}{% if m.content is not string %}{% for part in m.content %}{% if part.type == 'image' %}{% set ns.seen = true %}{% endif %}{% endfor %}{% endif %}{% endfor %}Head.{{ 'Vision.' if ns.seen }}${PARTS}`;
    const card = cardWith({ chatTemplate: template, contentFormat: "openai" });
    expect(chat(card, { messages })).toMatchObject({ text: "Head.", complete: false });
  });

  it.each(["input_audio", "video_url", "something_new"])("treats %s alike", (type) => {
    const card = cardWith({ chatTemplate: PARTS, contentFormat: "openai" });
    expect(chat(card, { messages: [user([text("a"), { type }])] })).toMatchObject({
      text: "[user]a",
      complete: false,
    });
  });

  it("keys the same text as the conversation without the image, up to it", () => {
    const withImage = chat(qwen, {
      messages: [user("first"), { role: "assistant", content: "ok" }, user([image])],
    });
    const without = chatText(qwen, {
      messages: [user("first"), { role: "assistant", content: "ok" }, user("more")],
    });
    expect(withImage.kind === "text" && without.startsWith(withImage.text)).toBe(true);
  });
});

describe("content format", () => {
  it.each([
    ["string", "{% for m in messages %}{{ m.content }}{% endfor %}"],
    ["openai", "{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}"],
    [
      "openai",
      "{% set ms = messages[1:] %}{% for m in ms %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    ],
    ["openai", "{% macro show(content) %}{% for c in content %}{{ c.text }}{% endfor %}{% endmacro %}"],
    ["string", "{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}"],
  ])("%s: %s", (format, template) => {
    expect(detectContentFormat(parseTemplate(template))).toBe(format);
  });

  it("hands a plain string over as one text part where the template wants parts", () => {
    const card = cardWith({ chatTemplate: "{{ messages | tojson }}", contentFormat: "openai" });
    expect(chatText(card, { messages: [user("hi"), { role: "tool", content: "r" }] })).toBe(
      '[{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "tool", "content": "r"}]',
    );
  });
});

describe("completions", () => {
  const complete = (body: string) =>
    new ChatRenderer(qwen, { now: () => 0 }).renderCompletion(parseJson(body));
  const prompt = (value: string) => ({ kind: "text", text: value, complete: true, addSpecial: true });

  it("takes a text, a list of texts, token ids and a list of token-id lists", () => {
    expect(complete('{"prompt":"a"}')).toEqual([prompt("a")]);
    expect(complete('{"prompt":["a","b"]}')).toEqual([prompt("a"), prompt("b")]);
    expect(complete('{"prompt":[1,2]}')).toEqual([{ kind: "tokens", tokenIds: [1, 2] }]);
    expect(complete('{"prompt":[[1,2],[3]]}')).toEqual([
      { kind: "tokens", tokenIds: [1, 2] },
      { kind: "tokens", tokenIds: [3] },
    ]);
    expect(complete('{"prompt":"a","add_special_tokens":false}')).toMatchObject([{ addSpecial: false }]);
  });

  it("takes lists of any length", () => {
    expect(complete(`{"prompt":[${Array(300_000).fill('"a"').join()}]}`)).toHaveLength(300_000);
  });

  it("keeps the number of prompts where one is not known", () => {
    const kinds = (body: string) => complete(body).map((entry) => entry.kind);
    expect(kinds('{"prompt":["a",[1.5]]}')).toEqual(["text", "unkeyed"]);
    expect(kinds('{"prompt":["a"],"prompt_embeds":"AA=="}')).toEqual(["unkeyed", "text"]);
    expect(kinds('{"prompt":["a","b"],"truncate_prompt_tokens":5}')).toEqual(["unkeyed", "unkeyed"]);
  });

  it.each(["{}", '{"prompt":null}', '{"prompt":[]}', "[]"])("refuses %s", (body) => {
    expect(errorOf(() => complete(body)).code).toBe("invalid_request");
  });
});
