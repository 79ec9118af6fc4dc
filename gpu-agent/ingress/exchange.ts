/** One request to an engine and its answer; aborts, heartbeats, doubts about a lost engine and the ledger's entries along the way. */

import { KedgeError } from "../../src/errors/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { TransportResponse } from "../../src/plan/transport.ts";
import type { RequestLedger } from "../load/types.ts";
import type { Connections } from "./connections.ts";
import { clientClosed, type HeadersOfAnswer, PushedCall, passed } from "./pushed-call.ts";

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
const LF = 10;
/** Silence of a lost engine after which its requests are given up. */
const LOST_SILENCE_MS = 5_000;

export class Exchange extends PushedCall {
  readonly response: Promise<TransportResponse>;
  private readonly options: ExchangeOptions;
  private settle!: { resolve: (response: TransportResponse) => void; reject: (error: KedgeError) => void };

  private isEventStream = false;
  private gotData = false;
  private lineFeeds = 0;
  private heartbeat: unknown = null;
  private deadline: unknown = null;
  private doubts: unknown = null;
  /** Something came since the engine was last doubted. */
  private heard = false;

  constructor(options: ExchangeOptions) {
    super(options);
    this.options = options;
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
      if (this.heard || this.paused) this.doubt();
      else this.abort(this.phase === "waiting" ? unreachable(this.worker) : interrupted());
    }, LOST_SILENCE_MS);
  }

  /** The engine is back. */
  trust(): void {
    if (this.doubts === null) return;
    this.options.timers.clearTimeout(this.doubts);
    this.doubts = null;
  }

  protected override answered(status: number, given: HeadersOfAnswer): void {
    this.heard = true;
    const headers = passed(given, RESPONSE_HEADERS);
    this.isEventStream = headers["content-type"]?.startsWith("text/event-stream") ?? false;
    if (this.isEventStream) this.armHeartbeat();
    this.settle.resolve({ status, headers, body: this });
  }

  protected override failed(error: Error): void {
    this.settle.reject(error instanceof KedgeError ? error : unreachable(this.worker, error));
  }

  protected override cut(cause: Error): KedgeError {
    return interrupted(cause);
  }

  protected override received(chunk: Uint8Array): void {
    const { ledger, plan } = this.options;
    this.heard = true;
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

  protected override over(): void {
    this.trust();
    this.disarmHeartbeat();
    if (this.deadline !== null) this.options.timers.clearTimeout(this.deadline);
    this.options.ledger.finished(this.options.plan.requestId);
    this.options.onFinished(this);
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
}

const deadlineError = () => new KedgeError("upstream_timeout", "The request ran out of time at its engine.");

function interrupted(cause?: Error): KedgeError {
  return new KedgeError("stream_interrupted", "The engine's answer was cut off before its end.", { cause });
}

function unreachable(worker: string, cause?: Error): KedgeError {
  return new KedgeError("upstream_unreachable", `Worker ${worker} cannot be reached.`, { cause });
}
