/** What is spoken at an agent's door besides the engine's own words: header names, and errors that keep their code across it. */

import { type ErrorCode, KedgeError } from "../errors/index.ts";

/** On every answer of a door: what answers without it is something else at the agent's address. */
export const DOOR_HEADER = "x-kedge-door";
/** The code of an error of the door's own; the answer's body is that error in OpenAI's form. */
export const ERROR_HEADER = "x-kedge-error";
/** The stream is judged already (`TransportResponse.vouched`). */
export const VOUCHED_HEADER = "x-kedge-vouched";

/** Headers of a request that pass from gateway to agent. */
export const DOOR_REQUEST_HEADERS = ["x-request-id", "traceparent", "tracestate"] as const;
/** Headers of an answer that a gateway takes over. */
export const DOOR_RESPONSE_HEADERS = ["content-type", "retry-after"] as const;

/** Longest body of an error that is read for its message. */
export const MAX_ERROR_BYTES = 16 * 1024;
const MAX_MESSAGE_LENGTH = 500;

/** Codes that a door may answer with; all that it says otherwise is the agent's own trouble. */
const DOOR_CODES: readonly ErrorCode[] = [
  "upstream_busy",
  "upstream_unreachable",
  "upstream_error",
  "upstream_timeout",
  "shutting_down",
  "payload_too_large",
  "invalid_request",
  "invalid_json",
];

/** The error of an answer, null if it is an engine's. `header` takes lower-case names; `body` may be cut or empty. */
export function doorError(
  agentId: string,
  header: (name: string) => string | null | undefined,
  body: string,
): KedgeError | null {
  if (!header(DOOR_HEADER)) {
    return new KedgeError(
      "upstream_error",
      `What answers at the address of agent ${agentId} is no Kedge agent.`,
    );
  }
  const said = header(ERROR_HEADER);
  if (!said) return null;
  if (said === "plan_rejected") {
    // Not the client's fault, and perhaps that node's alone: another may take its plan.
    return new KedgeError(
      "upstream_error",
      `Agent ${agentId} refuses this gateway's plans; its log says why (keys, clock, agent id).`,
    );
  }
  const code = DOOR_CODES.find((known) => known === said);
  if (code === undefined) return new KedgeError("upstream_error", `Agent ${agentId} failed.`);
  const seconds = Number(header("retry-after") ?? Number.NaN);
  return new KedgeError(code, messageOf(body) ?? `Agent ${agentId} answered ${code}.`, {
    ...(Number.isSafeInteger(seconds) && seconds >= 0 && { retryAfterSeconds: seconds }),
  });
}

function messageOf(body: string): string | null {
  try {
    const message: unknown = JSON.parse(body).error.message;
    return typeof message === "string" && message !== "" ? message.slice(0, MAX_MESSAGE_LENGTH) : null;
  } catch {
    return null;
  }
}
