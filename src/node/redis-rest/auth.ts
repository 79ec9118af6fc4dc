/** Who may do what: bearer tokens compared in constant time; without any token, callers of this machine only. */

import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { isLoopback } from "../../config/index.ts";

export type Access = "full" | "read-only";

export class Tokens {
  private readonly full: Buffer | null;
  private readonly readOnly: Buffer | null;

  constructor(token: string | null, readOnlyToken: string | null) {
    this.full = token === null ? null : digest(token);
    this.readOnly = readOnlyToken === null ? null : digest(readOnlyToken);
  }

  /** What the request's token allows; null: nothing. */
  access(request: IncomingMessage, query: string): Access | null {
    const given = presented(request, query);
    const hash = given === null ? null : digest(given);
    // Both compared whatever the first says: the time tells nothing.
    const isFull = matches(hash, this.full);
    const isReadOnly = matches(hash, this.readOnly);
    if (isFull) return "full";
    if (isReadOnly) return "read-only";
    return this.full === null && isLocalCaller(request) ? "full" : null;
  }
}

function matches(hash: Buffer | null, expected: Buffer | null): boolean {
  return hash !== null && expected !== null && timingSafeEqual(hash, expected);
}

function digest(token: string): Buffer {
  return createHash("sha256").update(token).digest();
}

function presented(request: IncomingMessage, query: string): string | null {
  const header = request.headers.authorization;
  if (header !== undefined) return /^bearer +(\S+) *$/i.exec(header)?.[1] ?? null;
  return query.includes("_token=") ? new URLSearchParams(query).get("_token") : null;
}

/** No web page: browsers say where a request comes from, and a rebound name is no loopback address. */
function isLocalCaller({ headers }: IncomingMessage): boolean {
  const site = headers["sec-fetch-site"];
  const fromPage = headers.origin !== undefined || (site !== undefined && site !== "none");
  const host = (headers.host ?? "").replace(/:\d+$/, "");
  return !fromPage && isLoopback(host);
}
