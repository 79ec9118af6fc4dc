/** Errors in vLLM's shapes. */

/** An answer other than success. `body` is sent as it is. */
export class HttpError extends Error {
  readonly status: number;
  readonly body: object;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, body: object, headers: Readonly<Record<string, string>> = {}) {
    super(`HTTP ${status}`);
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

const envelope = (status: number, message: string, type: string, param: string | null): HttpError =>
  new HttpError(status, { error: { message, type, param, code: status } });

export const badRequest = (message: string, param: string | null = null): HttpError =>
  envelope(400, message, "BadRequestError", param);

export const notFoundError = (message: string, param: string | null): HttpError =>
  envelope(404, message, "NotFoundError", param);

export const internalError = (message: string): HttpError =>
  envelope(500, message, "InternalServerError", null);

export const busyError = (): HttpError =>
  envelope(
    503,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
    null,
  );

export const shutDownError = (): HttpError => internalError("cannot schedule new futures after shutdown");

export const unauthorized = (): HttpError => new HttpError(401, { error: "Unauthorized" });

export const scaleOutDisabled = (): HttpError =>
  envelope(
    403,
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    "PermissionDeniedError",
    null,
  );

export const routeNotFound = (): HttpError => new HttpError(404, { detail: "Not Found" });

export const methodNotAllowed = (allow: string): HttpError =>
  new HttpError(405, { detail: "Method Not Allowed" }, { allow });

export interface ValidationIssue {
  readonly type: string;
  /** Dotted, from `body`. */
  readonly loc: string;
  readonly msg: string;
  readonly input: unknown;
  readonly ctx?: Readonly<Record<string, string>>;
}

/** How pydantic's input is named in a message. */
function inputName(input: unknown): string {
  if (input === null || input === undefined) return "None";
  if (Array.isArray(input)) return `<list of ${input.length} items>`;
  if (typeof input === "object") return `<dict of ${Object.keys(input).length} items>`;
  return String(input);
}

const quoted = (text: string): string =>
  text.includes("'") && !text.includes('"') ? `"${text}"` : `'${text.replaceAll("'", "\\'")}'`;

/** A failed body validation: one line per issue, written as a Python dict. */
export function validationError(issues: readonly ValidationIssue[]): HttpError {
  const lines = issues.map(({ type, loc, msg, input, ctx }) => {
    const context =
      ctx === undefined
        ? ""
        : `, 'ctx': {${Object.entries(ctx)
            .map(([key, value]) => `'${key}': ${quoted(value)}`)
            .join(", ")}}`;
    return `  {'type': '${type}', 'loc': '${loc}', 'msg': ${quoted(msg)}, 'input': ${quoted(inputName(input))}${context}}`;
  });
  const head = `${issues.length} validation error${issues.length === 1 ? "" : "s"}:`;
  return envelope(400, [head, ...lines].join("\n"), "Bad Request", issues[0]?.loc ?? null);
}

export const wrongMediaType = (): HttpError =>
  envelope(
    400,
    "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
    "Bad Request",
    null,
  );
