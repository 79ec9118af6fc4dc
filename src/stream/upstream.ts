/** What an engine's answer means: good, the client's fault, busy, or broken; and which of these another worker may cure. */

import { KedgeError } from "../errors/index.ts";
import type { Failure } from "./usage.ts";

/** Statuses that are the gateway's own trouble with its engines, not the client's. */
const NOT_THE_CLIENTS = new Set([401, 403, 407, 408, 425]);
const BUSY = new Set([429, 503, 529]);

/** The error that a status stands for; null if the answer is to be passed on: success, or the client's own fault. */
export function statusError(status: number, retryAfter: string | undefined): KedgeError | null {
  if (BUSY.has(status)) {
    const seconds = Number(retryAfter);
    return new KedgeError("upstream_busy", `The engine answered ${status}.`, {
      retryAfterSeconds: retryAfter !== undefined && Number.isInteger(seconds) && seconds >= 0 ? seconds : 1,
    });
  }
  // A redirect is the operator's matter: engines send none, misdirected addresses of engines do.
  const isRedirect = status >= 300 && status < 400;
  if (status < 500 && !isRedirect && !NOT_THE_CLIENTS.has(status)) return null;
  const code = status === 504 || status === 408 ? "upstream_timeout" : "upstream_error";
  return new KedgeError(code, `The engine answered ${status}.`);
}

/** The same for a failure behind a 200. Null: the client's own fault, to be passed on. */
export function failureError(failure: Failure): KedgeError | null {
  if (failure.status !== null) {
    const error = statusError(failure.status, undefined);
    if (error === null || error.code === "upstream_busy") return error;
  }
  return new KedgeError("upstream_error", `The engine failed behind a 200: ${failure.message}`);
}
