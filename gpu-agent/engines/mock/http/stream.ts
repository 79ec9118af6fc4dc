/** Writes responses: server-sent events one per HTTP chunk, JSON bodies, and the faults that delay or mangle either. */

import type { ServerResponse } from "node:http";
import type { Clock } from "../clock.ts";
import type { RequestFaults } from "../misbehaviour.ts";

/** In the order uvicorn sends them; Node adds the date. */
function baseHeaders(
  contentType: string | null,
  length: number | null,
  extra: Readonly<Record<string, string>> = {},
): [string, string][] {
  const headers: [string, string][] = [["server", "uvicorn"], ...Object.entries(extra)];
  if (length !== null) headers.push(["content-length", String(length)]);
  if (contentType !== null) headers.push(["content-type", contentType]);
  headers.push(["vary", "Origin"]);
  return headers;
}

/** A whole response. `body` null: no body and no content type. */
export function sendBody(
  response: ServerResponse,
  status: number,
  body: string | null,
  options: { readonly contentType?: string; readonly headers?: Readonly<Record<string, string>> } = {},
): void {
  if (response.destroyed || response.headersSent) return;
  const bytes = Buffer.from(body ?? "");
  const contentType = body === null ? null : (options.contentType ?? "application/json");
  for (const [name, value] of baseHeaders(contentType, bytes.length, options.headers)) {
    response.setHeader(name, value);
  }
  response.writeHead(status);
  response.end(bytes);
}

export function sendJson(
  response: ServerResponse,
  status: number,
  body: object,
  headers: Readonly<Record<string, string>> = {},
): void {
  sendBody(response, status, JSON.stringify(body), { headers });
}

const DONE = "data: [DONE]\n\n";

/** A stream of events. Headers go out at once; the first data waits if the fault says so. */
export class EventStream {
  readonly #response: ServerResponse;
  readonly #split: boolean;
  /** Writes that wait for the first byte's delay; null once it has passed. */
  #held: string[] | null;
  #ended = false;
  #silent = false;
  #random = 0x2545f491;

  constructor(response: ServerResponse, faults: RequestFaults, clock: Clock) {
    this.#response = response;
    this.#split = faults.splitChunks;
    this.#held = null;
    for (const [name, value] of baseHeaders("text/event-stream; charset=utf-8", null)) {
      response.setHeader(name, value);
    }
    response.writeHead(200);
    response.flushHeaders();
    if (faults.firstByteDelayMs > 0) {
      this.#held = [];
      clock.at(clock.nowMs() + faults.firstByteDelayMs, () => this.#release());
    }
  }

  /** One event with a JSON payload. */
  send(json: string): void {
    this.#write(`data: ${json}\n\n`);
  }

  /** The end marker and the end. */
  end(): void {
    this.#write(DONE);
    this.#ended = true;
    if (this.#held === null && !this.#silent) this.#response.end();
  }

  /** Nothing is written any more; the connection stays open. */
  silence(): void {
    this.#silent = true;
  }

  /** The connection breaks, in the middle of the chunked body. */
  cut(): void {
    this.#silent = true;
    this.#response.destroy();
  }

  #release(): void {
    const held = this.#held ?? [];
    this.#held = null;
    for (const text of held) this.#write(text);
    if (this.#ended && !this.#silent) this.#response.end();
  }

  #write(text: string): void {
    if (this.#silent || this.#response.destroyed) return;
    if (this.#held !== null) this.#held.push(text);
    else if (this.#split) this.#writeSplit(Buffer.from(text));
    else this.#response.write(text);
  }

  /** Pieces of 1 to 64 bytes: boundaries fall inside lines, JSON and characters. */
  #writeSplit(bytes: Buffer): void {
    for (let at = 0; at < bytes.length; ) {
      this.#random = (Math.imul(this.#random, 1_664_525) + 1_013_904_223) >>> 0;
      const size = 1 + (this.#random >>> 26);
      this.#response.write(bytes.subarray(at, at + size));
      at += size;
    }
  }
}
