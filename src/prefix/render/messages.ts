/** Chat messages and tools as vLLM normalises them before its template sees them. */

import { KedgeError } from "../../errors/index.ts";
import { type JsonNode, type JsonObject, member, parseJson, stringMember } from "../../json/index.ts";
import type { ContentFormat } from "./content-format.ts";
import { toValue } from "./convert.ts";
import type { Dict, Value } from "./jinja/values.ts";

/** A request that the engine may well take, but whose prompt is not known here. */
export class UnknownPrompt extends Error {
  constructor(reason: string) {
    super(reason);
    this.name = "UnknownPrompt";
  }
}

/** What stands in for the first part that has no text: a mark to cut at, or the part's kind as the template expects it. */
export type MediaForm = "mark" | "kind";

/** Private-use characters: no template changes them and hardly a prompt holds them. */
export const CUT_MARK = "\uf0a5\ue5c1\uf1d7\ue84b";

export interface Conversation {
  readonly messages: readonly Dict[];
  /** Some part has no text (image, audio, unknown). */
  readonly hasMedia: boolean;
}

/** Content part types that are text, with the field that holds it. */
const TEXT_FIELDS: Readonly<Record<string, string>> = {
  text: "text",
  input_text: "text",
  output_text: "text",
  refusal: "refusal",
  thinking: "thinking",
};

/** Content part types and fields that stand for media, with the kind templates know them by. */
const MEDIA_KINDS: Readonly<Record<string, string>> = {
  image_url: "image",
  input_image: "image",
  image_pil: "image",
  image_embeds: "image",
  audio_url: "audio",
  input_audio: "audio",
  audio_embeds: "audio",
  video_url: "video",
};

interface Part {
  readonly kind: "text" | "tool_reference" | "media";
  /** The text, the tool's name, or the media kind. */
  readonly value: string;
}

/** Reads `messages` once, so that it can be laid out for either media form. Errors: `KedgeError` `invalid_request`. */
export function readConversation(
  node: JsonNode | undefined,
  format: ContentFormat,
  form: MediaForm,
): Conversation {
  if (node?.type !== "array") throw invalid("`messages` must be a list of messages.", "messages");
  const layout = new Layout(format, form);
  const messages = node.items.map((message, i) => {
    if (message.type !== "object") throw invalid(`messages[${i}] must be an object.`, "messages");
    return layout.message(message, i);
  });
  return { messages, hasMedia: layout.hasMedia };
}

function invalid(message: string, param: string): KedgeError {
  return new KedgeError("invalid_request", message, { param });
}

class Layout {
  hasMedia = false;
  private readonly format: ContentFormat;
  private readonly form: MediaForm;

  constructor(format: ContentFormat, form: MediaForm) {
    this.format = format;
    this.form = form;
  }

  message(node: JsonObject, index: number): Dict {
    const role = stringMember(node, "role");
    if (role === undefined) throw invalid(`messages[${index}].role must be a string.`, "messages");
    const parts = readParts(member(node, "content"), index);
    const message: Dict = new Map<Value, Value>([
      ["role", role],
      ["content", this.format === "string" ? this.flatText(parts) : this.partList(parts, role)],
    ]);
    if (role === "assistant") addAssistantFields(message, node);
    if (role === "tool") addText(message, node, "tool_call_id");
    addText(message, node, "name");
    addText(message, node, "task");
    if (role === "developer") message.set("tools", valueOrNone(member(node, "tools")));
    return message;
  }

  /** Text parts joined by newlines, empty ones dropped; placeholders of media go in front, so the cut is there too. */
  private flatText(parts: readonly Part[]): string {
    const text = parts
      .filter((part) => part.kind !== "media" && part.value !== "")
      .map((part) => part.value)
      .join("\n");
    const isFirstMedia = !this.hasMedia && parts.some((part) => part.kind === "media");
    if (!isFirstMedia) return text;
    this.hasMedia = true;
    return CUT_MARK + text;
  }

  private partList(parts: readonly Part[], role: string): Value {
    const list = parts.map((part) => this.partDict(part));
    const plain = list.every((part) => part.get("type") === "text");
    // Most templates only take text for tool results.
    return role === "tool" && plain ? list.map((part) => part.get("text")).join("\n") : list;
  }

  private partDict({ kind, value }: Part): Dict {
    if (kind === "text") return textPart(value);
    if (kind === "tool_reference") return dict(["type", kind], ["name", value]);
    const isFirst = !this.hasMedia;
    this.hasMedia = true;
    return isFirst && this.form === "mark" ? textPart(CUT_MARK) : dict(["type", value]);
  }
}

function dict(...entries: [string, Value][]): Dict {
  return new Map<Value, Value>(entries);
}

function textPart(text: string): Dict {
  return dict(["type", "text"], ["text", text]);
}

function valueOrNone(node: JsonNode | undefined): Value {
  return node === undefined ? null : toValue(node);
}

function addText(message: Dict, node: JsonObject, key: string): void {
  const text = stringMember(node, key);
  if (text !== undefined) message.set(key, text);
}

function readParts(content: JsonNode | undefined, index: number): readonly Part[] {
  if (content === undefined || content.type === "null") return [];
  if (content.type === "string") return [{ kind: "text", value: content.value }];
  if (content.type !== "array") {
    throw invalid(`messages[${index}].content must be a string or a list of parts.`, "messages");
  }
  return content.items.map(readPart).filter((part) => part !== null);
}

function readPart(node: JsonNode): Part | null {
  if (node.type === "string") return { kind: "text", value: node.value };
  if (node.type !== "object") throw invalid("A content part must be a string or an object.", "messages");
  const type = stringMember(node, "type") ?? "";
  const uuid = member(node, "uuid");
  const field = uuid === undefined || uuid.type === "null" ? TEXT_FIELDS[type] : undefined;
  if (field !== undefined) {
    const text = stringMember(node, field);
    return text === undefined ? null : { kind: "text", value: text };
  }
  if (type === "tool_reference") return { kind: "tool_reference", value: stringMember(node, "name") ?? "" };
  return { kind: "media", value: MEDIA_KINDS[type] ?? untypedMediaKind(node) ?? type };
}

/** Parts may name their media by the field alone: `{"image_url": "https://…"}`. */
function untypedMediaKind(node: JsonObject): string | undefined {
  const entry = node.members.find(({ key }) => Object.hasOwn(MEDIA_KINDS, key));
  return entry && MEDIA_KINDS[entry.key];
}

function addAssistantFields(message: Dict, node: JsonObject): void {
  const calls = member(node, "tool_calls");
  if (calls?.type === "array" && calls.items.length > 0)
    message.set("tool_calls", calls.items.map(readToolCall));
  const reasoning = stringMember(node, "reasoning") ?? stringMember(node, "reasoning_content");
  if (reasoning === undefined) return;
  message.set("reasoning", reasoning);
  message.set("reasoning_content", reasoning);
}

/** In the order of the engine's schema, which is not the client's; unknown fields are gone. */
function readToolCall(node: JsonNode): Dict {
  const call: Dict = new Map();
  addIfGiven(call, node, "id");
  const called = member(node, "function");
  if (called !== undefined) {
    const parsed: Dict = new Map<Value, Value>([["arguments", readArguments(member(called, "arguments"))]]);
    addIfGiven(parsed, called, "name");
    call.set("function", parsed);
  }
  addIfGiven(call, node, "custom");
  addIfGiven(call, node, "type");
  return call;
}

function addIfGiven(target: Dict, node: JsonNode, key: string): void {
  const value = member(node, key);
  if (value !== undefined) target.set(key, toValue(value));
}

/** Arguments are parsed as Python would; what is not an object in JSON becomes an empty one. */
function readArguments(node: JsonNode | undefined): Value {
  const parsed = node?.type === "string" ? parseLeniently(node.value) : node;
  return parsed?.type === "object" ? toValue(parsed) : new Map();
}

function parseLeniently(text: string): JsonNode | undefined {
  try {
    return parseJson(text, { nonFinite: true });
  } catch (error) {
    if (error instanceof KedgeError) return undefined;
    throw error;
  }
}

/**
 * `tools` as the engine rebuilds them: `type`, then `name`, `description`, `parameters`, and `strict` if given. Null if there are none.
 * Errors: `KedgeError` `invalid_request` for an empty list; {@link UnknownPrompt} for tools of another kind.
 */
export function readTools(node: JsonNode | undefined): Value {
  if (node === undefined || node.type === "null") return null;
  if (node.type !== "array") throw new UnknownPrompt("tools in an unknown form");
  if (node.items.length === 0) {
    throw invalid(
      "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
      "tools",
    );
  }
  return node.items.map(readTool);
}

function readTool(node: JsonNode): Dict {
  const definition = member(node, "function");
  const name = stringMember(definition, "name");
  if (name === undefined) throw new UnknownPrompt("a tool that is not a named function");
  const declared: Dict = new Map<Value, Value>([
    ["name", name],
    ["description", valueOrNone(member(definition, "description"))],
    ["parameters", valueOrNone(member(definition, "parameters"))],
  ]);
  const strict = member(definition, "strict");
  if (strict?.type === "boolean") declared.set("strict", strict.value);
  return dict(["type", "function"], ["function", declared]);
}

/** For a template that does not know the role: developer messages become system messages, and all of these one, in front. */
export function foldDeveloperMessages(messages: readonly Dict[]): readonly Dict[] {
  const converted = messages.map((message) => {
    if (message.get("role") !== "developer") return message;
    const system: Dict = new Map(message);
    system.set("role", "system");
    system.delete("tools");
    return system;
  });
  const isSystem = (message: Dict) => message.get("role") === "system";
  if (converted.findLastIndex(isSystem) <= 0) return converted;
  const contents = converted
    .filter(isSystem)
    .map(contentText)
    .filter((text) => text !== "");
  const merged = dict(["role", "system"], ["content", contents.join("\n\n")]);
  return [merged, ...converted.filter((message) => !isSystem(message))];
}

function contentText(message: Dict): string {
  const content = message.get("content");
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  const texts: Value[] = content.map((part: Value) => (part instanceof Map ? part.get("text") : undefined));
  return texts.filter((text) => typeof text === "string").join("\n");
}
