/** What clients are told when something fails: public words for each code, headers, bodies. */

import { type ErrorCode, KedgeError, openAiErrorBody } from "../errors/index.ts";

/** Messages of failures that lie behind the gateway; their own may name workers or hosts, which clients never see (D12). */
const PUBLIC_MESSAGES: Partial<Record<ErrorCode, string>> = {
  upstream_busy: "All workers that were tried are busy; retry later.",
  upstream_unreachable: "No worker that was tried could be reached.",
  upstream_error: "Every worker that was tried failed before its first data.",
  upstream_timeout: "No worker that was tried sent its first data in time.",
  stream_interrupted: "The stream was cut off before its end; what was sent is incomplete.",
  stream_stalled: "The worker fell silent; what was sent is incomplete.",
  deadline_exceeded: "The request ran out of time.",
  shutting_down: "The service is shutting down; retry.",
};

/** `detailed`: the operator lets callers see how they are routed. */
export function publicError(error: KedgeError, detailed: boolean): KedgeError {
  const message = PUBLIC_MESSAGES[error.code];
  if (message === undefined) return error;
  const { retryAfterSeconds } = error;
  return new KedgeError(error.code, detailed ? `${message} Last: ${error.message}` : message, {
    cause: error,
    ...(retryAfterSeconds !== null && { retryAfterSeconds }),
  });
}

/** Whatever is only for now says when to come again, also where nobody upstream did. */
export function errorHeaders(error: KedgeError): Record<string, string> {
  const passes = error.kind.status === 503 && error.code !== "service_unconfigured";
  const seconds = error.retryAfterSeconds ?? (passes ? 1 : null);
  return {
    "content-type": "application/json",
    ...(seconds !== null && { "retry-after": String(seconds) }),
    ...(error.code === "unauthorized" && { "www-authenticate": "Bearer" }),
  };
}

export function errorJson(error: KedgeError): string {
  return JSON.stringify(openAiErrorBody(error));
}
