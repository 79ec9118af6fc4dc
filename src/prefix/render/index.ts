/** Renders requests to the text that the engine renders, with the model's own chat template. */

import { KedgeError } from "../../errors/index.ts";
import { booleanMember, type JsonNode, member, stringMember } from "../../json/index.ts";
import type { ModelCard } from "../types.ts";
import { type ContentFormat, detectContentFormat } from "./content-format.ts";
import { toValue } from "./convert.ts";
import { type CompiledTemplate, compileTemplate } from "./jinja/compile.ts";
import { TemplateFailure, UnsupportedTemplate } from "./jinja/failures.ts";
import { strip } from "./jinja/strings.ts";
import type { Dict, Value } from "./jinja/values.ts";
import { CUT_MARK, foldDeveloperMessages, readConversation, readTools, UnknownPrompt } from "./messages.ts";

/** One prompt as the engine will see it. */
export type Rendered =
  | {
      readonly kind: "text";
      readonly text: string;
      /** False if a part without text (image, audio, unknown) follows: `text` is what precedes it. */
      readonly complete: boolean;
      /** The engine lets the tokenizer add its own prefix (`ModelCard.addedPrefix`) to this text. */
      readonly addSpecial: boolean;
    }
  | { readonly kind: "tokens"; readonly tokenIds: readonly number[] }
  /** What the engine will see is not known here; it may well serve the request. */
  | { readonly kind: "unkeyed"; readonly reason: string };

export interface ChatRendererOptions {
  /** Unix time in ms, for templates that print a date. */
  readonly now: () => number;
}

/** Names of `chat_template_kwargs` that steer the engine's own call, not the template. */
const RESERVED_KWARGS: ReadonlySet<string> = new Set([
  ...[
    "chat_template",
    "conversation",
    "messages",
    "tools",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
  ],
  ...["return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"],
]);

/** Appended to the message to continue and looked for in the text; the space shows whether the template trims. */
const CONTINUE_MARK = "\uf3b2\ue19d\uf64e\ue7f0";

interface Template {
  readonly source: string;
  readonly compiled: CompiledTemplate;
  readonly contentFormat: ContentFormat;
}

/** Renders requests for one model. Templates are compiled at first use and kept. */
export class ChatRenderer {
  private readonly card: ModelCard;
  private readonly options: ChatRendererOptions;
  private readonly templates = new Map<string, Template | UnsupportedTemplate>();

  constructor(card: ModelCard, options: ChatRendererOptions) {
    this.card = card;
    this.options = options;
  }

  /**
   * Renders a `/v1/chat/completions` body.
   * Errors: `KedgeError` `invalid_request` for what the engine surely refuses, `template_error` with the template's own message.
   */
  renderChat(body: JsonNode): Rendered {
    try {
      return this.renderKnownChat(body);
    } catch (error) {
      return unkeyedOrThrow(error);
    }
  }

  /**
   * Renders a `/v1/completions` body: one entry per prompt, in order.
   * Errors: `KedgeError` `invalid_request` if there is no prompt.
   */
  renderCompletion(body: JsonNode): Rendered[] {
    const embeds: Rendered[] = isGiven(member(body, "prompt_embeds")) ? [unkeyed("prompt_embeds")] : [];
    const prompt = member(body, "prompt");
    const given = isGiven(prompt)
      ? promptEntries(prompt, booleanMember(body, "add_special_tokens") ?? true)
      : [];
    const prompts = embeds.concat(given);
    if (prompts.length === 0)
      throw new KedgeError("invalid_request", "`prompt` is missing.", { param: "prompt" });
    return isGiven(member(body, "truncate_prompt_tokens"))
      ? prompts.map(() => unkeyed("truncate_prompt_tokens"))
      : prompts;
  }

  private renderKnownChat(body: JsonNode): Rendered {
    for (const name of ["chat_template", "truncate_prompt_tokens"]) {
      if (isGiven(member(body, name))) return unkeyed(name);
    }
    const tools = readTools(member(body, "tools"));
    const template = this.template(tools !== null);
    const marked = readConversation(member(body, "messages"), template.contentFormat, "mark");
    const messages = this.withKnownRoles(marked.messages, template);
    const variables = this.variables(body, tools);
    const addSpecial = booleanMember(body, "add_special_tokens") ?? false;
    if (!marked.hasMedia) {
      const continues = booleanMember(body, "continue_final_message") ?? false;
      const text = continues
        ? renderOpenEnded(template, messages, variables)
        : run(template, messages, variables);
      return { kind: "text", text, complete: true, addSpecial };
    }
    const text = this.textBeforeMedia(body, template, run(template, messages, variables), variables);
    return { kind: "text", text, complete: false, addSpecial };
  }

  /**
   * The text up to the mark, as far as the template prints the same when it sees the part's kind instead of a text: templates
   * may treat a whole conversation differently once it holds an image.
   */
  private textBeforeMedia(
    body: JsonNode,
    template: Template,
    marked: string,
    variables: ReadonlyMap<string, Value>,
  ): string {
    const before = marked.slice(0, Math.max(marked.indexOf(CUT_MARK), 0));
    if (template.contentFormat === "string") return before;
    const typed = readConversation(member(body, "messages"), template.contentFormat, "kind");
    return commonPrefix(before, run(template, this.withKnownRoles(typed.messages, template), variables));
  }

  private withKnownRoles(messages: readonly Dict[], { source }: Template): readonly Dict[] {
    const hasDeveloper = messages.some((message) => message.get("role") === "developer");
    const known = !hasDeveloper || source.includes('"developer"') || source.includes("'developer'");
    return known ? messages : foldDeveloperMessages(messages);
  }

  private variables(body: JsonNode, tools: Value): Map<string, Value> {
    const { bosToken, eosToken, specialTokens } = this.card;
    const variables = new Map<string, Value>(Object.entries(specialTokens));
    if (bosToken !== null) variables.set("bos_token", bosToken);
    if (eosToken !== null) variables.set("eos_token", eosToken);
    variables.set("documents", null);
    addKwargs(variables, member(body, "chat_template_kwargs"));
    const generates = booleanMember(body, "add_generation_prompt") ?? true;
    if (generates && booleanMember(body, "continue_final_message")) {
      throw new KedgeError(
        "invalid_request",
        "Cannot set both `continue_final_message` and `add_generation_prompt` to true.",
        { param: "continue_final_message" },
      );
    }
    variables.set("add_generation_prompt", generates);
    variables.set("tools", tools);
    const documents = member(body, "documents");
    if (isGiven(documents)) variables.set("documents", toValue(documents));
    const effort = stringMember(body, "reasoning_effort");
    if (effort !== undefined) {
      variables.set("reasoning_effort", effort);
      if (!variables.has("enable_thinking")) variables.set("enable_thinking", effort !== "none");
    }
    return variables;
  }

  /** The template the engine picks: one named `tool_use` where there are tools. */
  private template(withTools: boolean): Template {
    const { chatTemplate, namedTemplates, contentFormat } = this.card;
    const toolUse = withTools ? namedTemplates.tool_use : undefined;
    const source = toolUse ?? chatTemplate;
    if (source === null) throw new UnknownPrompt("the model has no chat template");
    let template = this.templates.get(source);
    if (template === undefined) {
      template = this.compile(source, toolUse === undefined ? contentFormat : null);
      this.templates.set(source, template);
    }
    if (template instanceof UnsupportedTemplate) throw template;
    return template;
  }

  private compile(source: string, contentFormat: ContentFormat | null): Template | UnsupportedTemplate {
    try {
      const compiled = compileTemplate(source, { nowMs: this.options.now, timeZone: this.card.timeZone });
      return { source, compiled, contentFormat: contentFormat ?? detectContentFormat(compiled.nodes) };
    } catch (error) {
      if (error instanceof UnsupportedTemplate) return error;
      throw error;
    }
  }
}

function unkeyed(reason: string): Rendered {
  return { kind: "unkeyed", reason };
}

function unkeyedOrThrow(error: unknown): Rendered {
  if (error instanceof TemplateFailure && error.raised) {
    throw new KedgeError("template_error", error.message, { param: "messages", cause: error });
  }
  const known =
    error instanceof UnknownPrompt ||
    error instanceof UnsupportedTemplate ||
    error instanceof TemplateFailure;
  if (known) return unkeyed(error.message);
  throw error;
}

function isGiven(node: JsonNode | undefined): node is JsonNode {
  return node !== undefined && node.type !== "null";
}

function addKwargs(variables: Map<string, Value>, kwargs: JsonNode | undefined): void {
  if (!isGiven(kwargs)) return;
  if (kwargs.type !== "object") throw new UnknownPrompt("chat_template_kwargs in an unknown form");
  for (const { key, value } of kwargs.members) {
    if (RESERVED_KWARGS.has(key)) throw new UnknownPrompt(`chat_template_kwargs.${key}`);
    variables.set(key, toValue(value));
  }
}

function run(
  { compiled }: Template,
  messages: readonly Dict[],
  variables: ReadonlyMap<string, Value>,
): string {
  return compiled.render(new Map(variables).set("messages", messages));
}

/** `continue_final_message`: the text ends where the last message's own text ends, whatever the template prints after it. */
function renderOpenEnded(
  template: Template,
  messages: readonly Dict[],
  variables: ReadonlyMap<string, Value>,
): string {
  const last = messages.at(-1);
  const [marked, content] = last === undefined ? [] : markEnd(last);
  if (marked === undefined || content === undefined || !template.source.includes("content")) {
    throw new TemplateFailure("continue_final_message is set but there is no final message to continue");
  }
  const text = run(template, [...messages.slice(0, -1), marked], variables);
  const end = text.lastIndexOf(CONTINUE_MARK);
  if (end < 0 || !text.includes(strip(content))) {
    throw new TemplateFailure("continue_final_message is set but the template drops the final message");
  }
  const before = text.slice(0, end);
  // A template that swallowed the mark's space trims its messages.
  return text.startsWith(" ", end + CONTINUE_MARK.length) ? before : strip(before, null, false, true);
}

/** The message with the mark at the end of its text, and that text. */
function markEnd(message: Dict): [Dict, string] | [] {
  const content = message.get("content");
  const mark = `${CONTINUE_MARK} `;
  if (typeof content === "string") return [new Map(message).set("content", content + mark), content];
  if (!Array.isArray(content)) return [];
  const parts: readonly Value[] = content;
  const index = parts.findLastIndex((part) => part instanceof Map && part.has("text"));
  const part = parts[index];
  const text = part instanceof Map ? part.get("text") : undefined;
  if (!(part instanceof Map) || typeof text !== "string") return [];
  return [new Map(message).set("content", parts.with(index, new Map(part).set("text", text + mark))), text];
}

function commonPrefix(a: string, b: string): string {
  if (b.startsWith(a)) return a;
  let end = 0;
  while (end < a.length && a.charCodeAt(end) === b.charCodeAt(end)) end++;
  const splitsPair = end > 0 && (a.charCodeAt(end - 1) & 0xfc00) === 0xd800;
  return a.slice(0, splitsPair ? end - 1 : end);
}

function promptEntries(prompt: JsonNode, addSpecial: boolean): Rendered[] {
  if (prompt.type === "array" && !isTokenIds(prompt))
    return prompt.items.map((item) => promptEntry(item, addSpecial));
  return [promptEntry(prompt, addSpecial)];
}

function promptEntry(prompt: JsonNode, addSpecial: boolean): Rendered {
  if (prompt.type === "string") return { kind: "text", text: prompt.value, complete: true, addSpecial };
  if (!isTokenIds(prompt)) return unkeyed("a prompt in an unknown form");
  const tokenIds =
    prompt.type === "array" ? prompt.items.map((id) => (id.type === "number" ? Number(id.source) : 0)) : [];
  return { kind: "tokens", tokenIds };
}

function isTokenIds(prompt: JsonNode): boolean {
  if (prompt.type !== "array" || prompt.items.length === 0) return false;
  return prompt.items.every((item) => item.type === "number" && /^\d{1,10}$/.test(item.source));
}
