/** The Upstash REST protocol as pure functions: requests into Redis commands, Redis replies into JSON. */

import { isUtf8 } from "node:buffer";
import { KedgeError } from "../../errors/index.ts";

/** A Redis command; `name` in capitals. */
export interface RestCommand {
  readonly name: string;
  readonly args: readonly (string | Buffer)[];
}

/**
 * What Redis answered. Strings of digits are integers, kept as text so that none loses precision; bulk and simple
 * strings are Buffers; an Error within an array is an error reply there.
 */
export type Reply = Buffer | string | number | null | Error | readonly Reply[];

/** The result of one command: its reply, Redis' error, or a failure to reach Redis (`lost`). */
export type Outcome =
  | { readonly kind: "reply"; readonly reply: Reply }
  | { readonly kind: "error" | "lost"; readonly message: string };

/** Redis closes the connection of whoever sends more in one command (its limit is 2^20 with the name). */
const MAX_ARGUMENTS = 1_048_575;

const bad = (message: string): KedgeError => new KedgeError("invalid_request", `ERR ${message}`);

/** The command of a body `["SET","k","v"]`. Errors: `invalid_json`, `invalid_request`. */
export function parseCommand(body: Buffer): RestCommand {
  return withExactNumbers(body, (value) => toCommand(value, "the command"));
}

/** The commands of a body `[["SET","k","v"],["GET","k"]]`. Errors: `invalid_json`, `invalid_request`. */
export function parsePipeline(body: Buffer, maxLength: number): RestCommand[] {
  return withExactNumbers(body, (value) => {
    if (!Array.isArray(value)) throw bad("the body must be a JSON array of commands, each an array");
    if (value.length === 0) throw bad("empty pipeline request");
    if (value.length > maxLength)
      throw bad(`a pipeline may hold at most ${maxLength} commands; this one has ${value.length}`);
    return value.map((item, i) => toCommand(item, `command ${i}`));
  });
}

/**
 * The command of the path form: `/set/key/value`, a body as its next argument, then what the query holds
 * (`?EX=100` is `EX 100`). Percent-escapes may stand for any bytes. Errors: `invalid_request`.
 */
export function parsePath(path: string, query: string, body: Buffer): RestCommand {
  const words: (string | Buffer)[] = path.slice(1).split("/").map(decodeSegment);
  if (body.length > 0) words.push(body);
  for (const part of query.split("&")) {
    if (part === "" || part.startsWith("_token=")) continue;
    const at = part.indexOf("=");
    words.push(decodeSegment(plusAsSpace(at < 0 ? part : part.slice(0, at))));
    if (at >= 0 && at + 1 < part.length) words.push(decodeSegment(plusAsSpace(part.slice(at + 1))));
  }
  return toCommand(words, "the command");
}

/** A path segment's or query value's text; a Buffer where its escapes are no UTF-8. Errors: `invalid_request`. */
export function decodeSegment(text: string): string | Buffer {
  if (!text.includes("%")) return text;
  try {
    return decodeURIComponent(text);
  } catch {
    if (/%(?![0-9a-fA-F]{2})/.test(text)) throw bad("the URL holds a malformed percent-escape");
    const parts = text.split(/%([0-9a-fA-F]{2})/);
    return Buffer.concat(parts.map((part, i) => Buffer.from(part, i % 2 === 0 ? "utf8" : "hex")));
  }
}

function plusAsSpace(text: string): string {
  return text.replaceAll("+", " ");
}

class InexactNumber extends Error {}

/** Parses the body; once more, with the digits as they stand, if a number in it is not a safe integer. */
function withExactNumbers<T>(body: Buffer, convert: (value: unknown) => T): T {
  if (!isUtf8(body)) throw new KedgeError("invalid_json", "ERR the body is not valid UTF-8");
  const text = body.toString("utf8");
  try {
    return convert(parseJson(text));
  } catch (error) {
    if (!(error instanceof InexactNumber)) throw error;
    return convert(parseJson(text, digits));
  }
}

/** Numbers as the digits they were written with. */
const digits = (_key: string, value: unknown, context?: { source?: string }): unknown =>
  typeof value === "number" ? (context?.source ?? String(value)) : value;

function parseJson(text: string, reviver?: typeof digits): unknown {
  try {
    return JSON.parse(text, reviver);
  } catch {
    throw new KedgeError("invalid_json", "ERR failed to parse the request body as JSON");
  }
}

function toCommand(value: unknown, what: string): RestCommand {
  if (!Array.isArray(value)) throw bad(`${what} must be a JSON array`);
  const name = value[0];
  if (typeof name !== "string" || name === "") throw bad(`empty command: ${what} must begin with a name`);
  if (value.length > MAX_ARGUMENTS) throw bad(`${what} has more than ${MAX_ARGUMENTS} arguments`);
  const args = new Array<string | Buffer>(value.length - 1);
  for (let i = 1; i < value.length; i++) args[i - 1] = toArgument(value[i], what);
  return { name: name.toUpperCase(), args };
}

function toArgument(value: unknown, what: string): string | Buffer {
  if (typeof value === "string" || Buffer.isBuffer(value)) return value;
  if (typeof value === "number") {
    if (!Number.isSafeInteger(value)) throw new InexactNumber();
    return String(value);
  }
  if (typeof value === "boolean") return value ? "true" : "false";
  throw bad(
    value === null
      ? `null args are not supported (${what})`
      : `${what} has an argument that is an array or object; send it as a string`,
  );
}

/** `{"result":…}` or `{"error":…}`. `base64`: every string but a bare OK that is the whole reply. */
export function jsonOutcome(outcome: Outcome, base64: boolean): string {
  if (outcome.kind !== "reply") return jsonError(outcome.message);
  const { reply } = outcome;
  if (reply instanceof Error) return jsonError(reply.message);
  return `{"result":${base64 && isOk(reply) ? '"OK"' : jsonReply(reply, base64)}}`;
}

export function jsonError(message: string): string {
  return `{"error":${JSON.stringify(message)}}`;
}

/** Only a whole reply stays bare: within arrays clients decode every string. */
function isOk(reply: Reply): boolean {
  return Buffer.isBuffer(reply) && reply.length === 2 && reply[0] === 0x4f && reply[1] === 0x4b;
}

function jsonReply(reply: Reply, base64: boolean): string {
  if (reply === null) return "null";
  if (Buffer.isBuffer(reply))
    return base64 ? `"${reply.toString("base64")}"` : JSON.stringify(reply.toString("utf8"));
  if (typeof reply === "string" || typeof reply === "number") return `${reply}`;
  if (reply instanceof Error) return jsonReply(Buffer.from(reply.message), base64);
  let text = "[";
  for (let i = 0; i < reply.length; i++) text += `${i === 0 ? "" : ","}${jsonReply(reply[i]!, base64)}`;
  return `${text}]`;
}

/** The reply as RESP2. Simple strings other than OK have become bulk strings, which clients read alike. */
export function respOutcome(outcome: Outcome): Buffer {
  const out: Buffer[] = [];
  if (outcome.kind === "reply") respReply(outcome.reply, out);
  else out.push(Buffer.from(`-${oneLine(outcome.message)}\r\n`));
  return Buffer.concat(out);
}

function respReply(reply: Reply, out: Buffer[]): void {
  if (reply === null) out.push(Buffer.from("$-1\r\n"));
  else if (isOk(reply)) out.push(Buffer.from("+OK\r\n"));
  else if (Buffer.isBuffer(reply)) out.push(Buffer.from(`$${reply.length}\r\n`), reply, Buffer.from("\r\n"));
  else if (typeof reply === "string" || typeof reply === "number") out.push(Buffer.from(`:${reply}\r\n`));
  else if (reply instanceof Error) out.push(Buffer.from(`-${oneLine(reply.message)}\r\n`));
  else {
    out.push(Buffer.from(`*${(reply as readonly Reply[]).length}\r\n`));
    for (const item of reply as readonly Reply[]) respReply(item, out);
  }
}

function oneLine(message: string): string {
  return message.replace(/[\r\n]+/g, " ");
}
