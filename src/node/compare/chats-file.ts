/** A workload from a file: one OpenAI chat request per line, optionally with its arrival time. */

import { KedgeError } from "../../errors/index.ts";
import type { ChatMessage, ChatRequest, Workload } from "./workload.ts";

interface Line {
  readonly request: ChatRequest;
  readonly atMs: number | null;
}

/**
 * Lines are JSON objects with `messages`; `at_ms` (ms from the start) on every line makes an open loop of those arrivals.
 * `salt`, where not empty, opens the first text message, so that no other run's cache serves this one.
 * Errors: `config_invalid` naming the line.
 */
export function chatsFile(text: string, salt: string): Workload {
  const lines = text
    .split("\n")
    .map((line, index) => ({ line: line.trim(), number: index + 1 }))
    .filter(({ line }) => line !== "")
    .map(({ line, number }) => parseLine(line, number));
  if (lines.length === 0) throw new KedgeError("config_invalid", "--file: holds no requests.");
  return {
    turns: 1,
    arrivalsMs: arrivals(lines),
    warmUp: () => [],
    session: (index) => {
      const line = lines[index];
      if (line === undefined) return null;
      let asked = false;
      return {
        next: () => {
          if (asked) return null;
          asked = true;
          return salted(line.request, salt);
        },
      };
    },
  };
}

function parseLine(line: string, number: number): Line {
  const fail = (what: string): never => {
    throw new KedgeError("config_invalid", `--file: line ${number}: ${what}.`);
  };
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    return fail("is not JSON");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value))
    return fail("is not a JSON object");
  const { at_ms: atMs = null, ...request } = value as Record<string, unknown>;
  if (!isChatRequest(request)) return fail("has no `messages` with a role each");
  if (atMs !== null && (typeof atMs !== "number" || !(atMs >= 0))) return fail("`at_ms` is not a time in ms");
  return { request, atMs };
}

function isChatRequest(value: Record<string, unknown>): value is ChatRequest {
  const { messages } = value;
  return Array.isArray(messages) && messages.length > 0 && messages.every(isMessage);
}

function isMessage(value: unknown): value is ChatMessage {
  return (
    typeof value === "object" && value !== null && typeof (value as { role?: unknown }).role === "string"
  );
}

function arrivals(lines: readonly Line[]): readonly number[] | null {
  const timed = lines.filter((line) => line.atMs !== null).length;
  if (timed === 0) return null;
  if (timed < lines.length) {
    throw new KedgeError(
      "config_invalid",
      `--file: ${timed} of ${lines.length} lines have at_ms; give it to all or none.`,
    );
  }
  const times = lines.map((line) => line.atMs ?? 0);
  if (times.some((time, i) => i > 0 && time < times[i - 1]!)) {
    throw new KedgeError("config_invalid", "--file: at_ms must not decrease from line to line.");
  }
  return times;
}

function salted(request: ChatRequest, salt: string): ChatRequest {
  if (salt === "") return request;
  const head = `Run ${salt}. `;
  const at = request.messages.findIndex((message) => typeof message.content === "string");
  if (at === -1) return { ...request, messages: [{ role: "system", content: head }, ...request.messages] };
  const messages = request.messages.map((message, i) =>
    i === at ? { ...message, content: `${head}${message.content}` } : message,
  );
  return { ...request, messages };
}
