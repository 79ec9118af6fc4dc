/** Tool calls as the hermes parser reads them: who is called, and which part of the answer's text is which delta. */

import { randomBytes } from "node:crypto";
import type { Engine } from "../engine.ts";
import { badRequest } from "./errors.ts";
import type { Body } from "./params.ts";
import { pythonJson, sampleOf } from "./schema.ts";

export interface ToolCall {
  readonly id: string;
  readonly name: string;
  /** Raw JSON text. */
  readonly arguments: string;
  /** Where the arguments stand in the answer's text. */
  readonly from: number;
  readonly to: number;
}

interface Tool {
  readonly name: string;
  readonly parameters: unknown;
}

export interface ToolPlan {
  readonly choice: "named" | "required" | "auto";
  /** Text that makes the call; null if none is to be made. */
  readonly text: string | null;
}

const isObject = (value: unknown): value is Body =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function readTools(body: Body): Tool[] {
  const tools = Array.isArray(body.tools) ? body.tools : [];
  return tools.filter(isObject).flatMap((tool) => {
    const { function: described } = tool;
    return isObject(described) ? [{ name: String(described.name), parameters: described.parameters }] : [];
  });
}

function namedTool(choice: unknown): string | null {
  if (!isObject(choice) || !isObject(choice.function)) return null;
  return String(choice.function.name);
}

/**
 * What the request wants of tools; null: nothing.
 * A call is made if the request demands one, or if the last message says `call <name>`.
 * Errors: 400 as vLLM refuses tools that it cannot serve.
 */
export function planTools(engine: Engine, body: Body): ToolPlan | null {
  const tools = readTools(body);
  const asked = body.tool_choice ?? (tools.length > 0 ? "auto" : "none");
  if (asked === "none") return null;
  if (tools.length === 0) {
    throw badRequest("When using `tool_choice`, `tools` must be set. (parameter=tool_choice)", "tool_choice");
  }
  const named = namedTool(asked);
  if (engine.config.toolCallParser === null) throw badRequest(withoutParser(asked, named));
  if (named !== null || asked === "required") {
    const tool = tools.find(({ name }) => name === named) ?? tools[0]!;
    return { choice: named !== null ? "named" : "required", text: callText(tool) };
  }
  const last = JSON.stringify((body.messages as unknown[]).at(-1) ?? "");
  const called = tools.find(({ name }) => last.includes(`call ${name}`));
  return { choice: "auto", text: called === undefined ? null : callText(called) };
}

function withoutParser(asked: unknown, named: string | null): string {
  if (named !== null) return `tool_choice=function "${named}" requires --tool-call-parser to be set`;
  if (asked === "required") return 'tool_choice="required" requires --tool-call-parser to be set';
  return '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set';
}

function callText({ name, parameters }: Tool): string {
  const sample = pythonJson(sampleOf(parameters ?? {}));
  return `<tool_call>\n{"name": ${JSON.stringify(name)}, "arguments": ${sample}}\n</tool_call>`;
}

const CALL = /<tool_call>\s*\{\s*"name":\s*"([^"]*)",\s*"arguments":\s*([\s\S]*?)\}\s*<\/tool_call>/g;

/** The calls in an answer's whole text, and the text before the first one. */
export function readCalls(text: string): { readonly content: string; readonly calls: readonly ToolCall[] } {
  const calls = [...text.matchAll(CALL)].map((match) => {
    const from = match.index + match[0].indexOf(match[2]!, match[0].indexOf('"arguments"'));
    const id = `chatcmpl-tool-${randomBytes(8).toString("hex")}`;
    return { id, name: match[1]!, arguments: match[2]!, from, to: from + match[2]!.length };
  });
  const start = text.indexOf("<tool_call>");
  return { content: calls.length > 0 ? text.slice(0, start) : text, calls };
}

/** Turns pieces of a text that is known beforehand into deltas of content and tool calls. */
export class ToolDeltas {
  readonly calls: readonly ToolCall[];
  readonly #content: string;
  readonly #named = new Set<number>();
  #at = 0;

  constructor(text: string) {
    const { content, calls } = readCalls(text);
    this.#content = content;
    this.calls = calls;
  }

  /** The deltas (JSON) for the next `length` characters; none where only markup passes. */
  next(length: number): string[] {
    const from = this.#at;
    const to = from + length;
    this.#at = to;
    const deltas: string[] = [];
    const content = this.#content.slice(from, to);
    if (content !== "") deltas.push(JSON.stringify({ content }));
    this.calls.forEach((call, index) => {
      if (to > call.from && !this.#named.has(index)) {
        this.#named.add(index);
        const { id, name } = call;
        deltas.push(
          JSON.stringify({
            content: null,
            tool_calls: [{ id, type: "function", index, function: { name } }],
          }),
        );
      }
      const start = Math.max(from, call.from) - call.from;
      const piece = call.arguments.slice(start, Math.max(start, Math.min(to, call.to) - call.from));
      if (piece !== "") {
        deltas.push(
          JSON.stringify({ content: null, tool_calls: [{ index, function: { arguments: piece } }] }),
        );
      }
    });
    return deltas;
  }
}
