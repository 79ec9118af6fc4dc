/** Reads request bodies and ids the way vLLM's front-end does. */

import { randomBytes } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { validationError, wrongMediaType } from "./errors.ts";
import type { Body } from "./params.ts";
import { pythonJsonFault } from "./python-json.ts";

/** The body as an object. Errors: 400 in the words of FastAPI and Python's JSON decoder. */
export function readBody(request: IncomingMessage, text: string): Body {
  const mediaType = (request.headers["content-type"] ?? "").split(";")[0]!.trim().toLowerCase();
  if (text === "")
    throw validationError([{ type: "missing", loc: "body", msg: "Field required", input: null }]);
  if (mediaType !== "application/json") throw wrongMediaType();
  const value = parse(text);
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Body;
  const msg = "Input should be a valid dictionary or object to extract fields from";
  throw validationError([{ type: "model_attributes_type", loc: "body", msg, input: value }]);
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    const { position, message } = pythonJsonFault(text) ?? { position: 0, message: "Expecting value" };
    throw validationError([
      {
        type: "json_invalid",
        loc: `body.${position}`,
        msg: "JSON decode error",
        input: {},
        ctx: { error: message },
      },
    ]);
  }
}

/** The part of a response id that is the request's own. */
export function requestId(body: Body, headers: Readonly<Record<string, string | undefined>>): string {
  const given = headers["x-request-id"] ?? body.request_id;
  return typeof given === "string" && given !== "" ? given : randomBytes(8).toString("hex");
}
