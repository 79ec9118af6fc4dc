/** An engine's answer on its way to a gateway: bytes as they come; streams judged here, so that gateways need not (design D9). */

import type { IncomingMessage, ServerResponse } from "node:http";
import { KedgeError, openAiErrorBody } from "../../src/errors/index.ts";
import { DOOR_HEADER, DOOR_RESPONSE_HEADERS, ERROR_HEADER, VOUCHED_HEADER } from "../../src/plan/door.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { BodySink, BodySource, TransportResponse } from "../../src/plan/transport.ts";
import { errorEvent } from "../../src/stream/error-event.ts";
import { SseScanner } from "../../src/stream/sse.ts";
import { discardRest } from "./body.ts";

export interface DoorClock {
  /** Milliseconds, monotonic. */
  now(): number;
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

export interface AnswerOptions {
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
  readonly plan: Plan;
  readonly stallTimeoutMs: number;
  readonly clock: DoorClock;
}

const HEARTBEAT = new TextEncoder().encode(": keep-alive\n\n");
const COLON = 58;

/** Used once. */
export class Answer implements BodySink {
  private readonly options: AnswerOptions;
  private readonly outgoing: ServerResponse;
  private readonly out: Uint8Array[] = [];
  private source!: BodySource;
  private head: { readonly status: number; readonly headers: Record<string, string> } | null = null;
  /** Null: no event stream; its bytes pass unseen. */
  private scanner: SseScanner | null = null;
  private guard: unknown = null;
  private lastDataMs = 0;
  private held = false;
  private isOver = false;
  private settle!: (error: KedgeError | null) => void;

  constructor(options: AnswerOptions) {
    this.options = options;
    this.outgoing = options.outgoing;
  }

  /** Settles when the answer is over; with the error of one that was cut, stalled or left. Errors: those of a body that failed before any of it came. */
  pass(response: TransportResponse): Promise<KedgeError | null> {
    const over = new Promise<KedgeError | null>((resolve) => {
      this.settle = resolve;
    });
    this.source = response.body;
    this.head = headOf(response);
    if (this.outgoing.destroyed) {
      this.leave();
      return over;
    }
    this.outgoing.on("close", () => this.leave());
    this.outgoing.on("drain", () => this.drained());
    const isStream =
      response.status < 300 && response.headers["content-type"]?.startsWith("text/event-stream");
    if (isStream) {
      this.scanner = new SseScanner(this.options.plan.dropUsage);
      this.head.headers[VOUCHED_HEADER] = "1";
    }
    response.body.start(this);
    // A stream's headers go out at once: the gateway waits for comments meanwhile. Others wait for their first byte, for they may yet fail.
    if (isStream && !this.isOver && this.writeHead()) this.outgoing.flushHeaders();
    return over;
  }

  // BodySink

  data(chunk: Uint8Array): boolean {
    if (this.isOver) return true;
    const { scanner, out } = this;
    if (scanner === null) out.push(chunk);
    else {
      const isComment = chunk[0] === COLON && !scanner.holding;
      scanner.push(chunk, out);
      this.lastDataMs = this.options.clock.now();
      if (scanner.started || scanner.sawPreamble) {
        if (this.guard === null) this.armGuard();
      } else if (isComment && out.length === 0) out.push(HEARTBEAT);
    }
    return this.flush();
  }

  end(): void {
    if (this.isOver) return;
    const { scanner } = this;
    if (scanner !== null && !scanner.end(this.out)) {
      this.breakOff(new KedgeError("stream_interrupted", "The engine's stream ended without its end mark."));
      return;
    }
    this.flush();
    this.writeHead();
    this.outgoing.end();
    this.finish(null);
  }

  fail(error: KedgeError): void {
    if (this.isOver) return;
    if (this.scanner !== null) this.breakOff(error);
    else {
      // Nothing but a broken connection says of a whole answer that it is incomplete.
      if (this.outgoing.headersSent) this.outgoing.destroy();
      else sendError(this.options.incoming, this.outgoing, beforeData(error));
      this.finish(error);
    }
  }

  /** The stream has failed: say so in it, and end it without an end mark. */
  private breakOff(error: KedgeError): void {
    this.out.push(errorEvent(error, this.scanner!.insideEvent));
    this.flush();
    this.outgoing.end();
    this.finish(error);
    this.source.cancel();
  }

  private flush(): boolean {
    const { out, outgoing } = this;
    if (out.length === 0) return true;
    this.writeHead();
    let more = true;
    for (const piece of out) if (!outgoing.write(piece)) more = false;
    out.length = 0;
    if (!more) this.held = true;
    return more;
  }

  /** True if it had not been written yet. */
  private writeHead(): boolean {
    if (this.head === null) return false;
    this.outgoing.writeHead(this.head.status, this.head.headers);
    this.head = null;
    return true;
  }

  private drained(): void {
    if (!this.held || this.isOver) return;
    this.held = false;
    this.lastDataMs = this.options.clock.now();
    this.source.resume();
  }

  /** The gateway has left: the engine is aborted at once. */
  private leave(): void {
    if (this.isOver) return;
    this.finish(new KedgeError("client_closed", "The gateway closed the request."));
    this.source.cancel();
  }

  private finish(error: KedgeError | null): void {
    this.isOver = true;
    if (this.guard !== null) this.options.clock.clearTimeout(this.guard);
    this.settle(error);
  }

  /** One timer for the whole stream, moved on when it fires: cheaper than one per chunk. */
  private armGuard(): void {
    const { clock, stallTimeoutMs } = this.options;
    const nowMs = clock.now();
    const sinceMs = this.held ? nowMs : this.lastDataMs;
    this.guard = clock.setTimeout(
      () => {
        const silentMs = clock.now() - this.lastDataMs;
        if (this.held || silentMs < stallTimeoutMs) this.armGuard();
        else this.breakOff(stalled(stallTimeoutMs));
      },
      Math.max(1, sinceMs + stallTimeoutMs - nowMs),
    );
  }
}

function headOf({ status, headers }: TransportResponse): { status: number; headers: Record<string, string> } {
  const passed: Record<string, string> = { [DOOR_HEADER]: "1" };
  for (const name of DOOR_RESPONSE_HEADERS) {
    const value = headers[name];
    if (value !== undefined) passed[name] = value;
  }
  return { status, headers: passed };
}

/** Cut before anything was sent: what is final inside a stream is curable here. */
function beforeData(error: KedgeError): KedgeError {
  return error.code === "stream_interrupted"
    ? new KedgeError("upstream_error", error.message, { cause: error })
    : error;
}

function stalled(stallTimeoutMs: number): KedgeError {
  return new KedgeError("stream_stalled", `No data for ${stallTimeoutMs} ms; what was sent is incomplete.`);
}

/** In OpenAI's form, with its code as a header, so that the gateway has the same error. Nothing happens if an answer was begun. */
export function sendError(incoming: IncomingMessage, outgoing: ServerResponse, error: KedgeError): void {
  if (outgoing.destroyed || outgoing.headersSent) return;
  const body = JSON.stringify(openAiErrorBody(error));
  outgoing.writeHead(error.kind.status, {
    "content-type": "application/json",
    "content-length": Buffer.byteLength(body),
    [DOOR_HEADER]: "1",
    [ERROR_HEADER]: error.code,
    ...(error.retryAfterSeconds !== null && { "retry-after": String(error.retryAfterSeconds) }),
    // A body that was refused unread cannot be followed by another request on this connection.
    ...(!incoming.complete && { connection: "close" }),
  });
  if (incoming.complete) outgoing.end(body);
  else {
    outgoing.write(body);
    discardRest(incoming, () => outgoing.end());
  }
}

export function sendText(outgoing: ServerResponse, status: number, contentType: string, body: string): void {
  outgoing.writeHead(status, {
    "content-type": contentType,
    "content-length": Buffer.byteLength(body),
    [DOOR_HEADER]: "1",
  });
  outgoing.end(body);
}
