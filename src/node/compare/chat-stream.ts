/** What a chat stream said: the answer, the usage, the error it carried, and whether it ended as it should. */

import { sseParser } from "./sse.ts";

export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Null: the engine does not say. */
  readonly cachedTokens: number | null;
}

export interface ChatStream {
  push(chunk: Uint8Array): void;
  readonly text: string;
  readonly usage: Usage | null;
  /** Code or message of an in-band error. */
  readonly error: string | null;
  /** `[DONE]` was seen. */
  readonly done: boolean;
}

/** `onText` is called for each chunk that carries generated text. */
export function chatStream(onText: () => void): ChatStream {
  let text = "";
  let usage: Usage | null = null;
  let error: string | null = null;
  let done = false;

  const event = (data: string): void => {
    if (data === "[DONE]") {
      done = true;
      return;
    }
    const chunk = parse(data);
    if (chunk === null) {
      error ??= "malformed_stream";
      return;
    }
    if (chunk.error !== undefined && chunk.error !== null) error ??= errorName(chunk.error);
    const piece = chunk.choices?.[0]?.delta?.content;
    if (typeof piece === "string" && piece !== "") {
      text += piece;
      onText();
    }
    if (chunk.usage !== undefined && chunk.usage !== null) usage = readUsage(chunk.usage);
  };

  const parser = sseParser(event);
  return {
    push: (chunk) => parser.push(chunk),
    get text() {
      return text;
    },
    get usage() {
      return usage;
    },
    get error() {
      return error;
    },
    get done() {
      return done;
    },
  };
}

interface Chunk {
  readonly choices?: readonly { readonly delta?: { readonly content?: unknown } }[];
  readonly usage?: RawUsage | null;
  readonly error?: unknown;
}

interface RawUsage {
  readonly prompt_tokens?: number;
  readonly completion_tokens?: number;
  readonly prompt_tokens_details?: { readonly cached_tokens?: number | null } | null;
}

function parse(data: string): Chunk | null {
  try {
    const value: unknown = JSON.parse(data);
    return typeof value === "object" && value !== null ? (value as Chunk) : null;
  } catch {
    return null;
  }
}

/** Usage of an OpenAI-style answer; fields that are missing count as none. */
export function readUsage(raw: RawUsage): Usage {
  return {
    promptTokens: raw.prompt_tokens ?? 0,
    completionTokens: raw.completion_tokens ?? 0,
    cachedTokens: raw.prompt_tokens_details?.cached_tokens ?? null,
  };
}

/** A short stable name for an error body: its code, type or message. */
export function errorName(error: unknown): string {
  if (typeof error === "string") return error.slice(0, 80);
  if (typeof error !== "object" || error === null) return "error";
  const { code, type, message } = error as { code?: unknown; type?: unknown; message?: unknown };
  const name = [code, type, message].find((part) => part !== undefined && part !== null && part !== "");
  return String(name ?? "error").slice(0, 80);
}
