/** A client's request body: what routing reads of it, and what goes upstream, edited by span (design D9). */

import { KedgeError } from "../errors/index.ts";
import {
  booleanMember,
  editJson,
  type JsonEdit,
  type JsonObject,
  member,
  parseJson,
  stringMember,
} from "../json/index.ts";

export type Endpoint = "chat" | "completions";

export const ENDPOINT_PATHS: Readonly<Record<Endpoint, string>> = {
  chat: "/v1/chat/completions",
  completions: "/v1/completions",
};

export interface ClientRequest {
  readonly endpoint: Endpoint;
  /** Name as the client asks for it. */
  readonly model: string;
  readonly stream: boolean;
  /** The client asked for the usage chunk of a stream. */
  readonly wantsUsage: boolean;
  readonly cacheSalt: string | null;
  readonly document: JsonObject;
  readonly text: string;
  readonly bytes: Uint8Array;
}

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const encoder = new TextEncoder();

const JSON_TYPE = /^application\/(?:[\w.+-]+\+)?json\b/i;

/** A body without a type is taken for JSON. Errors: `unsupported_media_type`. */
export function requireJson(header: (name: string) => string | undefined): void {
  const type = header("content-type");
  const encoding = header("content-encoding");
  if ((type !== undefined && !JSON_TYPE.test(type)) || (encoding !== undefined && encoding !== "identity")) {
    throw new KedgeError("unsupported_media_type", "Send the body as plain application/json.");
  }
}

/**
 * `endpoint` null: told by the body, `messages` for chat and `prompt` for completions.
 * Errors: `invalid_json`, `invalid_request`. Fields that only the engine needs are left to the engine to judge.
 */
export function readRequest(endpoint: Endpoint | null, bytes: Uint8Array): ClientRequest {
  const text = decodeUtf8(bytes);
  const document = parseJson(text, { nonFinite: true });
  if (document.type !== "object") {
    throw new KedgeError("invalid_request", "The request body must be a JSON object.");
  }
  const model = stringMember(document, "model");
  if (model === undefined || model === "") {
    throw new KedgeError("invalid_request", 'The request needs "model", the name of a served model.', {
      param: "model",
    });
  }
  return {
    endpoint: endpoint ?? detectEndpoint(document),
    model,
    stream: booleanMember(document, "stream") ?? false,
    wantsUsage: booleanMember(member(document, "stream_options"), "include_usage") ?? false,
    cacheSalt: stringMember(document, "cache_salt") || null,
    document,
    text,
    bytes,
  };
}

/**
 * The body for the engine. Two edits at most: KV transfer parameters never come from a client (D10), and a stream's
 * usage is always asked for. Everything else stays byte for byte.
 */
export function upstreamBody(request: ClientRequest): Uint8Array {
  const edits: JsonEdit[] = [];
  if (member(request.document, "kv_transfer_params") !== undefined) {
    edits.push({ op: "remove", path: ["kv_transfer_params"] });
  }
  if (request.stream && !request.wantsUsage) {
    edits.push({ op: "set", path: ["stream_options", "include_usage"], json: "true" });
    // Without include_usage the engine ignores this one; with it, every chunk would carry usage nobody asked for.
    if (member(member(request.document, "stream_options"), "continuous_usage_stats") !== undefined) {
      edits.push({ op: "set", path: ["stream_options", "continuous_usage_stats"], json: "false" });
    }
  }
  return edits.length === 0 ? request.bytes : encoder.encode(editJson(request.text, request.document, edits));
}

function detectEndpoint(document: JsonObject): Endpoint {
  const has = (name: string) => (member(document, name)?.type ?? "null") !== "null";
  if (has("messages")) return "chat";
  if (has("prompt") || has("prompt_embeds")) return "completions";
  throw new KedgeError("invalid_request", 'The body has neither "messages" nor "prompt".');
}

function decodeUtf8(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch (cause) {
    throw new KedgeError("invalid_json", "The request body is not valid UTF-8.", { cause });
  }
}
