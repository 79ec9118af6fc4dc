/** The agent's front door for requests: plan → engine, rank pinned, salt set, kept-alive connections, clean drain (design D10, D12). */

import { KedgeError } from "../../src/errors/index.ts";
import { editJson, parseJson } from "../../src/json/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { TransportRequest, TransportResponse, WorkerTransport } from "../../src/plan/transport.ts";
import type { RequestLedger } from "../load/types.ts";
import { Connections } from "./connections.ts";
import { Exchange, type Timers } from "./exchange.ts";

export type { Timers } from "./exchange.ts";

export interface IngressEngine {
  readonly worker: string;
  /** Origin, e.g. `http://127.0.0.1:8000`, with an optional path before `/v1`. */
  readonly url: string;
  /** Number of data-parallel ranks; above 1 the plan's rank is pinned. */
  readonly dpSize: number;
  /** The engine's own `--api-key`; never the client's. */
  readonly apiKey?: string;
}

export interface IngressOptions {
  readonly ledger: RequestLedger;
  readonly timers: Timers;
  /** Silence before the first data of an event stream after which a comment is sent, in milliseconds. */
  readonly heartbeatMs: number;
}

interface Engine extends IngressEngine {
  readonly connections: Connections;
  readonly basePath: string;
}

/** Headers of a request that pass to the engine; all others, the client's rank and credentials among them, do not. */
const REQUEST_HEADERS = ["x-request-id", "traceparent", "tracestate"] as const;

/** Engines may come and go while requests run. */
export class Ingress implements WorkerTransport {
  private readonly options: IngressOptions;
  private readonly engines = new Map<string, Engine>();
  private readonly active = new Set<Exchange>();
  /** Workers whose engine is lost now. */
  private readonly lost = new Set<string>();
  private draining = false;
  private drained: (() => void) | null = null;

  constructor(options: IngressOptions) {
    this.options = options;
  }

  /** Adds an engine or replaces the one of that worker name; requests under way at the old one go on. */
  addEngine(engine: IngressEngine): void {
    this.removeEngine(engine.worker);
    const { origin, pathname } = new URL(engine.url);
    this.engines.set(engine.worker, {
      ...engine,
      connections: new Connections(origin),
      basePath: pathname.replace(/\/+$/, ""),
    });
  }

  removeEngine(worker: string): void {
    this.engines.get(worker)?.connections.close();
    this.engines.delete(worker);
  }

  /** The agent has lost sight of the engine, or found it again: its silent requests are not waited for meanwhile. */
  watched(worker: string, isLost: boolean): void {
    if (isLost) this.lost.add(worker);
    else this.lost.delete(worker);
    for (const exchange of this.active) {
      if (exchange.worker !== worker) continue;
      if (isLost) exchange.doubt();
      else exchange.trust();
    }
  }

  /** Requests under way. */
  get activeRequests(): number {
    return this.active.size;
  }

  async send(plan: Plan, request: TransportRequest, signal: AbortSignal): Promise<TransportResponse> {
    if (this.draining) throw new KedgeError("shutting_down", "This node is shutting down.");
    if (signal.aborted) throw new KedgeError("client_closed", "The client closed the request.");
    const engine = this.engines.get(plan.worker);
    if (engine === undefined) {
      throw new KedgeError("upstream_unreachable", `Worker ${plan.worker} is not at this node.`);
    }
    const exchange = new Exchange({
      ...this.options,
      connections: engine.connections,
      plan,
      path: engine.basePath + request.path,
      headers: engineHeaders(engine, plan, request.headers),
      body: plan.cacheSalt === null ? request.body : withSalt(request.body, plan.cacheSalt),
      signal,
      onFinished: (finished) => this.forget(finished),
    });
    this.active.add(exchange);
    exchange.begin();
    if (this.lost.has(plan.worker)) exchange.doubt();
    return exchange.response;
  }

  /** Refuses new requests, waits up to `timeoutMs` for those under way, ends what is left, closes all connections. */
  async drain(timeoutMs: number): Promise<void> {
    this.draining = true;
    if (this.active.size > 0) await this.idleOrTimeout(timeoutMs);
    for (const exchange of [...this.active]) {
      exchange.abort(new KedgeError("shutting_down", "This node is shutting down."));
    }
    for (const worker of [...this.engines.keys()]) this.removeEngine(worker);
  }

  private idleOrTimeout(timeoutMs: number): Promise<void> {
    const { timers } = this.options;
    return new Promise((resolve) => {
      const timer = timers.setTimeout(resolve, timeoutMs);
      this.drained = () => {
        timers.clearTimeout(timer);
        resolve();
      };
    });
  }

  private forget(exchange: Exchange): void {
    this.active.delete(exchange);
    if (this.active.size === 0) this.drained?.();
  }
}

function engineHeaders(engine: Engine, plan: Plan, given: Readonly<Record<string, string>>): string[] {
  const headers = ["content-type", "application/json"];
  for (const name of REQUEST_HEADERS) {
    const value = given[name];
    if (value !== undefined) headers.push(name, value);
  }
  if (engine.dpSize > 1) headers.push("x-data-parallel-rank", String(plan.rank));
  if (engine.apiKey !== undefined) headers.push("authorization", `Bearer ${engine.apiKey}`);
  return headers;
}

function withSalt(body: Uint8Array, salt: string): Uint8Array {
  const text = new TextDecoder().decode(body);
  const edit = { op: "set", path: ["cache_salt"], json: JSON.stringify(salt) } as const;
  return new TextEncoder().encode(editJson(text, parseJson(text, { nonFinite: true }), [edit]));
}
