/** One POST over a kept-alive connection and its answer, pushed on as it arrives: retry of a stale connection, back pressure, abort. */

import type { Dispatcher } from "undici";
import { KedgeError } from "../../src/errors/index.ts";
import type { BodySink, BodySource } from "../../src/plan/transport.ts";
import type { Connection, Connections } from "./connections.ts";

export interface PushedCallOptions {
  readonly connections: Connections;
  readonly path: string;
  /** Names and values in turn. */
  readonly headers: string[];
  readonly body: Uint8Array;
}

/** Body bytes kept for a sink that has not started yet. */
const MAX_PENDING_BYTES = 256 * 1024;

/** Socket errors that a kept-alive connection gives when its other end closed it while it lay idle. */
const RESET_CODES = new Set(["ECONNRESET", "EPIPE", "UND_ERR_SOCKET", "UND_ERR_CLOSED", "UND_ERR_DESTROYED"]);

export type HeadersOfAnswer = Readonly<Record<string, string | string[] | undefined>>;

/** Who calls what at the other end is its heirs' business. */
export abstract class PushedCall implements Dispatcher.DispatchHandler, BodySource {
  protected phase: "waiting" | "body" | "finished" = "waiting";
  /** It was sent a second time, for the first connection had been closed at its other end. */
  protected retried = false;
  private readonly call: PushedCallOptions;
  private connection: Connection;
  private controller: Dispatcher.DispatchController | null = null;
  private sink: BodySink | null = null;
  private pending: Uint8Array[] = [];
  private pendingBytes = 0;
  /** How the body ended while no sink was there to hear it; undefined: it has not. */
  private pendingEnd: KedgeError | null | undefined;

  constructor(call: PushedCallOptions) {
    this.call = call;
    this.connection = call.connections.take();
  }

  /** Headers have come. */
  protected abstract answered(status: number, headers: HeadersOfAnswer): void;
  /** It failed before headers; `error` is undici's own, or what `abort` was given. */
  protected abstract failed(error: Error): void;
  /** The error of a body that was cut. */
  protected abstract cut(cause: Error): KedgeError;
  /** A part of the body has come, before it is delivered. */
  protected received(_chunk: Uint8Array): void {}
  /** Over, whichever way; called once, before the sink or the caller hears of it. */
  protected over(): void {}

  /** Ends it from this side, whatever its phase; the other end sees its client leave. */
  abort(error: KedgeError): void {
    if (this.phase === "finished") return;
    const { phase } = this;
    this.finish();
    this.hangUp(error);
    if (phase === "waiting") this.failed(error);
    else this.deliverEnd(error);
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
    headers: HeadersOfAnswer,
  ): void {
    if (status < 200 || this.phase !== "waiting") return;
    this.phase = "body";
    this.answered(status, headers);
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Uint8Array): void {
    if (this.phase !== "body") return;
    this.received(chunk);
    if (!this.deliver(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    if (this.phase !== "body") return;
    this.connection.served++;
    this.finish();
    this.call.connections.giveBack(this.connection);
    this.deliverEnd(null);
  }

  onResponseError(_controller: Dispatcher.DispatchController | null, error: Error): void {
    if (this.phase === "finished") return;
    if (this.phase === "waiting" && this.mayRetry(error)) {
      this.retry();
      return;
    }
    const { phase } = this;
    this.finish();
    this.hangUp(error);
    if (phase === "waiting") this.failed(error);
    else this.deliverEnd(this.cut(error));
  }

  protected dispatch(): void {
    const { path, headers, body } = this.call;
    this.connection.client.dispatch({ path, method: "POST", headers, body }, this);
  }

  /** The reader takes no more for now. */
  protected get paused(): boolean {
    return this.controller?.paused ?? false;
  }

  protected deliver(chunk: Uint8Array): boolean {
    if (this.sink !== null) return this.sink.data(chunk);
    this.pending.push(chunk);
    this.pendingBytes += chunk.length;
    return this.pendingBytes <= MAX_PENDING_BYTES;
  }

  /** The other end may close an idle connection at the very moment it is used; nothing of the request was answered, so once more. */
  private mayRetry(error: Error): boolean {
    const { code } = error as { code?: string };
    return !this.retried && this.connection.served > 0 && code !== undefined && RESET_CODES.has(code);
  }

  private retry(): void {
    this.retried = true;
    void this.connection.client.destroy();
    this.connection = this.call.connections.open();
    this.dispatch();
  }

  /** Closes the connection: the other end sees that its client left. */
  private hangUp(reason: Error): void {
    this.controller?.abort(reason);
    void this.connection.client.destroy();
  }

  private deliverEnd(error: KedgeError | null): void {
    if (this.sink === null) this.pendingEnd = error;
    else if (error === null) this.sink.end();
    else this.sink.fail(error);
  }

  private finish(): void {
    this.phase = "finished";
    this.over();
  }
}

export const clientClosed = () => new KedgeError("client_closed", "The client closed the request.");

/** Those of the named headers that an answer has once. */
export function passed(headers: HeadersOfAnswer, names: readonly string[]): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of names) {
    const value = headers[name];
    if (typeof value === "string") found[name] = value;
  }
  return found;
}
