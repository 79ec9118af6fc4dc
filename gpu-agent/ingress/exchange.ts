/** One request to an engine and its answer, pushed on as it arrives; aborts, heartbeats and the ledger's entries along the way. */

import type { Dispatcher } from "undici";
import { KedgeError } from "../../src/errors/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { BodySink, BodySource, TransportResponse } from "../../src/plan/transport.ts";
import type { RequestLedger } from "../load/types.ts";
import type { Connection, Connections } from "./connections.ts";

/** One-shot timers; injected so that tests own time. */
export interface Timers {
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

export interface ExchangeOptions {
  readonly connections: Connections;
  readonly ledger: RequestLedger;
  readonly timers: Timers;
  readonly heartbeatMs: number;
  readonly plan: Plan;
  readonly path: string;
  readonly headers: string[];
  readonly body: Uint8Array;
  readonly signal: AbortSignal;
  readonly onFinished: (exchange: Exchange) => void;
}

const HEARTBEAT = new TextEncoder().encode(": keep-alive\n\n");
/** Headers of an engine that pass on. */
const RESPONSE_HEADERS = ["content-type", "retry-after"] as const;
/** Body bytes kept for a sink that has not started yet. */
const MAX_PENDING_BYTES = 256 * 1024;
const LF = 10;
/** Silence of a lost engine after which its requests are given up. */
const LOST_SILENCE_MS = 5_000;

/** Socket errors that a kept-alive connection gives when the engine closed it while it lay idle. */
const RESET_CODES = new Set(["ECONNRESET", "EPIPE", "UND_ERR_SOCKET", "UND_ERR_CLOSED", "UND_ERR_DESTROYED"]);

type Phase = "waiting" | "body" | "finished";

export class Exchange implements Dispatcher.DispatchHandler, BodySource {
  readonly response: Promise<TransportResponse>;
  private readonly options: ExchangeOptions;
  private readonly connections: Connections;
  private connection: Connection;
  private controller: Dispatcher.DispatchController | null = null;
  private phase: Phase = "waiting";
  private retried = false;
  private settle!: { resolve: (response: TransportResponse) => void; reject: (error: KedgeError) => void };

  private sink: BodySink | null = null;
  private pending: Uint8Array[] = [];
  private pendingBytes = 0;
  /** How the body ended while no sink was there to hear it; undefined: it has not. */
  private pendingEnd: KedgeError | null | undefined;

  private isEventStream = false;
  private gotData = false;
  private lineFeeds = 0;
  private heartbeat: unknown = null;
  private deadline: unknown = null;
  private doubts: unknown = null;
  /** Something came since the engine was last doubted. */
  private heard = false;

  constructor(options: ExchangeOptions) {
    this.options = options;
    this.connections = options.connections;
    this.connection = options.connections.take();
    this.response = new Promise((resolve, reject) => {
      this.settle = { resolve, reject };
    });
    const { plan, signal, timers } = options;
    if (plan.deadlineMs !== null) {
      this.deadline = timers.setTimeout(() => this.abort(deadlineError()), plan.deadlineMs);
    }
    signal.addEventListener("abort", () => {
      if (this.phase === "waiting") this.abort(clientClosed());
    });
  }

  /** Hands the request to the engine. To be called once. */
  begin(): void {
    this.options.ledger.admitted(this.options.plan);
    this.dispatch();
  }

  /** Ends the exchange from this side, whatever its phase; the engine sees its client leave. */
  abort(error: KedgeError): void {
    if (this.phase === "finished") return;
    const phase = this.phase;
    this.finish();
    this.hangUp(error);
    if (phase === "waiting") this.settle.reject(error);
    else this.deliverEnd(error);
  }

  get worker(): string {
    return this.options.plan.worker;
  }

  /**
   * The engine is lost to those who watch it. While it still sends it may finish; silent, it is given up: a vLLM that was told to end
   * computes nothing more and waits for its clients to leave, for ever.
   */
  doubt(): void {
    if (this.doubts !== null || this.phase === "finished") return;
    this.heard = false;
    this.doubts = this.options.timers.setTimeout(() => {
      this.doubts = null;
      if (this.heard || this.controller?.paused) this.doubt();
      else this.abort(this.phase === "waiting" ? unreachable(this.worker) : interrupted());
    }, LOST_SILENCE_MS);
  }

  /** The engine is back. */
  trust(): void {
    if (this.doubts === null) return;
    this.options.timers.clearTimeout(this.doubts);
    this.doubts = null;
  }

  // BodySource

  start(sink: BodySink): void {
    this.sink = sink;
    const pending = this.pending;
    this.pending = [];
    const wasHeld = this.pendingBytes > MAX_PENDING_BYTES;
    let more = true;
    for (const chunk of pending) {
      if (!sink.data(chunk)) more = false;
      // The sink may have cancelled.
      if (this.sink === null) return;
    }
    if (this.pendingEnd !== undefined) this.deliverEnd(this.pendingEnd);
    else if (!more) this.controller?.pause();
    else if (wasHeld) this.controller?.resume();
  }

  resume(): void {
    if (this.phase === "body") this.controller?.resume();
  }

  cancel(): void {
    this.sink = null;
    this.pending = [];
    if (this.phase === "finished") return;
    this.finish();
    this.hangUp(clientClosed());
  }

  // Dispatcher.DispatchHandler

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.controller = controller;
    if (this.phase === "finished") controller.abort(clientClosed());
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Readonly<Record<string, string | string[] | undefined>>,
  ): void {
    if (status < 200 || this.phase !== "waiting") return;
    this.phase = "body";
    this.heard = true;
    const passed: Record<string, string> = {};
    for (const name of RESPONSE_HEADERS) {
      const value = headers[name];
      if (typeof value === "string") passed[name] = value;
    }
    this.isEventStream = passed["content-type"]?.startsWith("text/event-stream") ?? false;
    if (this.isEventStream) this.armHeartbeat();
    this.settle.resolve({ status, headers: passed, body: this });
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Uint8Array): void {
    if (this.phase !== "body") return;
    this.heard = true;
    this.account(chunk);
    if (!this.deliver(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    if (this.phase !== "body") return;
    this.connection.served++;
    this.finish();
    this.connections.giveBack(this.connection);
    this.deliverEnd(null);
  }

  onResponseError(_controller: Dispatcher.DispatchController | null, error: Error): void {
    if (this.phase === "finished") return;
    if (this.phase === "waiting") {
      if (this.mayRetry(error)) this.retry();
      else {
        this.finish();
        this.hangUp(error);
        this.settle.reject(unreachable(this.worker, error));
      }
      return;
    }
    this.finish();
    this.hangUp(error);
    this.deliverEnd(interrupted(error));
  }

  private dispatch(): void {
    const { path, headers, body } = this.options;
    this.connection.client.dispatch({ path, method: "POST", headers, body }, this);
  }

  /** An engine may close an idle connection at the very moment it is used; nothing of the request was answered, so once more. */
  private mayRetry(error: Error): boolean {
    const { code } = error as { code?: string };
    return !this.retried && this.connection.served > 0 && code !== undefined && RESET_CODES.has(code);
  }

  private retry(): void {
    this.retried = true;
    void this.connection.client.destroy();
    this.connection = this.connections.open();
    this.dispatch();
  }

  /** Closes the connection: the engine sees that its client left. */
  private hangUp(reason: Error): void {
    this.controller?.abort(reason);
    void this.connection.client.destroy();
  }

  private account(chunk: Uint8Array): void {
    const { ledger, plan } = this.options;
    if (!this.gotData) {
      this.gotData = true;
      this.disarmHeartbeat();
      ledger.firstData(plan.requestId);
    }
    if (!this.isEventStream) return;
    for (let at = chunk.indexOf(LF); at >= 0; at = chunk.indexOf(LF, at + 1)) this.lineFeeds++;
    // An event is a line and a blank line, and engines send one event per token.
    ledger.progressed(plan.requestId, this.lineFeeds >> 1);
  }

  private deliver(chunk: Uint8Array): boolean {
    if (this.sink !== null) return this.sink.data(chunk);
    this.pending.push(chunk);
    this.pendingBytes += chunk.length;
    return this.pendingBytes <= MAX_PENDING_BYTES;
  }

  private deliverEnd(error: KedgeError | null): void {
    if (this.sink === null) this.pendingEnd = error;
    else if (error === null) this.sink.end();
    else this.sink.fail(error);
  }

  private armHeartbeat(): void {
    const { timers, heartbeatMs } = this.options;
    this.heartbeat = timers.setTimeout(() => {
      this.deliver(HEARTBEAT);
      this.armHeartbeat();
    }, heartbeatMs);
  }

  private disarmHeartbeat(): void {
    if (this.heartbeat === null) return;
    this.options.timers.clearTimeout(this.heartbeat);
    this.heartbeat = null;
  }

  private finish(): void {
    this.phase = "finished";
    this.trust();
    this.disarmHeartbeat();
    if (this.deadline !== null) this.options.timers.clearTimeout(this.deadline);
    this.options.ledger.finished(this.options.plan.requestId);
    this.options.onFinished(this);
  }
}

const clientClosed = () => new KedgeError("client_closed", "The client closed the request.");
const deadlineError = () => new KedgeError("upstream_timeout", "The request ran out of time at its engine.");

function interrupted(cause?: Error): KedgeError {
  return new KedgeError("stream_interrupted", "The engine's answer was cut off before its end.", { cause });
}

function unreachable(worker: string, cause?: Error): KedgeError {
  return new KedgeError("upstream_unreachable", `Worker ${worker} cannot be reached.`, { cause });
}
