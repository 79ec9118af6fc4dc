/** The one table of errors: stable codes, HTTP status, retryable elsewhere or not, counted by breakers or not (design D14). */

export interface ErrorKind {
  /** HTTP status of the OpenAI-dialect answer. */
  readonly status: number;
  /** OpenAI-style `error.type`. */
  readonly type: string;
  /** Another worker may succeed with the same request. */
  readonly retryable: boolean;
  /** The failure says something about the worker's health. "Busy" (429, 503 from admission, 529) never does. */
  readonly countsAgainstBreaker: boolean;
}

const kind = (
  status: number,
  type: string,
  retryable: boolean,
  countsAgainstBreaker: boolean,
): ErrorKind => ({
  status,
  type,
  retryable,
  countsAgainstBreaker,
});

/** Codes are API: they are added, never renamed. */
export const ERROR_TABLE = {
  invalid_request: kind(400, "invalid_request_error", false, false),
  invalid_json: kind(400, "invalid_request_error", false, false),
  unsupported_media_type: kind(415, "invalid_request_error", false, false),
  payload_too_large: kind(413, "invalid_request_error", false, false),
  unauthorized: kind(401, "authentication_error", false, false),
  service_unconfigured: kind(503, "service_unavailable", false, false),
  not_found: kind(404, "invalid_request_error", false, false),
  method_not_allowed: kind(405, "invalid_request_error", false, false),
  model_not_found: kind(404, "invalid_request_error", false, false),
  context_length_exceeded: kind(400, "invalid_request_error", false, false),
  no_workers: kind(503, "service_unavailable", false, false),
  workers_busy: kind(503, "service_unavailable", false, false),
  worker_not_found: kind(404, "invalid_request_error", false, false),
  upstream_busy: kind(503, "service_unavailable", true, false),
  upstream_unreachable: kind(502, "upstream_error", true, true),
  upstream_error: kind(502, "upstream_error", true, true),
  upstream_timeout: kind(504, "upstream_error", true, true),
  stream_interrupted: kind(502, "upstream_error", false, true),
  stream_stalled: kind(504, "upstream_error", false, true),
  deadline_exceeded: kind(504, "upstream_error", false, false),
  client_closed: kind(499, "client_closed_request", false, false),
  plan_rejected: kind(403, "permission_error", false, false),
  view_unavailable: kind(503, "service_unavailable", false, false),
  overloaded: kind(503, "service_unavailable", false, false),
  shutting_down: kind(503, "service_unavailable", true, false),
  config_invalid: kind(500, "configuration_error", false, false),
  engine_mismatch: kind(500, "configuration_error", false, false),
  unsupported_tokenizer: kind(500, "configuration_error", false, false),
  template_error: kind(400, "invalid_request_error", false, false),
  retired_incarnation: kind(409, "conflict_error", false, false),
  unknown_incarnation: kind(409, "conflict_error", false, false),
  internal_error: kind(500, "internal_error", false, false),
} as const satisfies Record<string, ErrorKind>;

export type ErrorCode = keyof typeof ERROR_TABLE;

/** An error with a stable code. The message names what is wrong and, where there is one, the fix. It may reach a client. */
export class KedgeError extends Error {
  readonly code: ErrorCode;
  /** The request parameter or setting at fault, if one is. */
  readonly param: string | null;
  /** Seconds after which a retry is worth it; becomes `Retry-After`. */
  readonly retryAfterSeconds: number | null;

  constructor(
    code: ErrorCode,
    message: string,
    options: { cause?: unknown; param?: string; retryAfterSeconds?: number } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "KedgeError";
    this.code = code;
    this.param = options.param ?? null;
    this.retryAfterSeconds = options.retryAfterSeconds ?? null;
  }

  get kind(): ErrorKind {
    return ERROR_TABLE[this.code];
  }
}

/** Anything thrown, as a KedgeError; foreign errors become `internal_error` without their message, which may hold internals. */
export function toKedgeError(thrown: unknown): KedgeError {
  if (thrown instanceof KedgeError) return thrown;
  return new KedgeError("internal_error", "Internal error.", { cause: thrown });
}

/** The OpenAI-dialect body of an error. `code` is Kedge's stable code. */
export function openAiErrorBody(error: KedgeError): {
  error: { message: string; type: string; param: string | null; code: ErrorCode };
} {
  return { error: { message: error.message, type: error.kind.type, param: error.param, code: error.code } };
}
