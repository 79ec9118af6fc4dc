/** The HTTP server: routes, keys, admission, and how it goes down. */

import { randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Engine } from "../engine.ts";
import { chatCompletions } from "./chat.ts";
import { completions } from "./completions.ts";
import {
  busyError,
  HttpError,
  internalError,
  methodNotAllowed,
  routeNotFound,
  scaleOutDisabled,
  shutDownError,
  unauthorized,
} from "./errors.ts";
import * as routes from "./routes.ts";
import type { Exchange } from "./serve.ts";
import { sendJson } from "./stream.ts";

type Methods = Readonly<Record<string, routes.Handler>>;

const refuseScaleOut: routes.Handler = () => {
  throw scaleOutDisabled();
};

const ROUTES: Readonly<Record<string, Methods>> = {
  "/v1/chat/completions": { POST: generation(chatCompletions) },
  "/v1/completions": { POST: generation(completions) },
  "/v1/models": { GET: routes.models },
  "/health": { GET: routes.health },
  "/ping": { GET: routes.health, POST: routes.health },
  "/version": { GET: routes.version },
  "/load": { GET: (exchange) => sendJson(exchange.response, 200, { server_load: exchange.engine.load }) },
  "/metrics": { GET: routes.metrics },
  "/kv_event_sources": { GET: routes.kvEventSources },
  "/tokenize": { POST: routes.tokenize },
  "/detokenize": { POST: routes.detokenize },
  "/is_paused": { GET: routes.isPaused },
  "/v1/chat/completions/render": { POST: refuseScaleOut },
  "/v1/completions/render": { POST: refuseScaleOut },
  "/inference/v1/generate": { POST: refuseScaleOut },
  "/inference/v1/abort_requests": { POST: refuseScaleOut },
  "/mock/misbehave": { POST: routes.misbehave, GET: routes.misbehaviour },
  "/mock/blocks": { GET: routes.blocks },
  "/mock/stats": { GET: routes.stats },
};

/** Routes of `VLLM_SERVER_DEV_MODE` and run-time LoRA loading. */
const DEV_ROUTES: Readonly<Record<string, Methods>> = {
  "/reset_prefix_cache": { POST: routes.resetPrefixCache },
  "/is_sleeping": { GET: routes.isSleeping },
  "/v1/load_lora_adapter": { POST: routes.loadAdapter },
  "/v1/unload_lora_adapter": { POST: routes.unloadAdapter },
};

/** Wraps a route that makes the engine work: shut-down, admission, load counting, delayed headers. */
function generation(handler: (exchange: Exchange) => void): routes.Handler {
  return (exchange) => {
    const { engine, response, faults } = exchange;
    if (engine.halted) throw shutDownError();
    if (faults.busy || engine.queueFull()) {
      engine.admissionRejections++;
      throw busyError();
    }
    engine.load++;
    response.once("close", () => engine.load--);
    if (faults.headerDelayMs === 0) return handler(exchange);
    const { clock } = engine.config;
    clock.at(clock.nowMs() + faults.headerDelayMs, () => {
      if (!response.destroyed) guard(exchange, handler);
    });
  };
}

function guard(exchange: Exchange, handler: routes.Handler): void {
  const fail = (error: unknown): void => answerError(exchange.response, error);
  try {
    Promise.resolve(handler(exchange)).catch(fail);
  } catch (error) {
    fail(error);
  }
}

function answerError(response: ServerResponse, error: unknown): void {
  const known = error instanceof HttpError ? error : internalError("Internal server error");
  if (known !== error) console.error("mock engine:", error);
  sendJson(response, known.status, known.body, known.headers);
}

/** Keep-alive of idle connections, as uvicorn's. */
const KEEP_ALIVE_MS = 5000;
/** How long new requests still get their 500 before the port closes. */
const CLOSING_MS = 100;

export class MockServer {
  readonly #engine: Engine;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  private constructor(engine: Engine) {
    this.#engine = engine;
    this.#server = createServer({ keepAliveTimeout: KEEP_ALIVE_MS, noDelay: true }, (request, response) =>
      this.#receive(request, response),
    );
    this.#server.requestTimeout = 0;
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.once("close", () => this.#sockets.delete(socket));
    });
  }

  /** Errors: Node's own if the port is taken. */
  static async listen(engine: Engine): Promise<MockServer> {
    const server = new MockServer(engine);
    await new Promise<void>((resolve, reject) => {
      server.#server.once("error", reject);
      server.#server.listen(engine.config.port, engine.config.host, resolve);
    });
    return server;
  }

  get url(): string {
    const { address, port, family } = this.#server.address() as AddressInfo;
    return `http://${family === "IPv6" ? `[${address}]` : address}:${port}`;
  }

  #receive(request: IncomingMessage, response: ServerResponse): void {
    const engine = this.#engine;
    const arrivalMs = engine.config.clock.nowMs();
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("error", () => undefined);
    request.on("end", () => {
      const text = Buffer.concat(chunks).toString("utf8");
      this.#echoId(request, response);
      const handler = (exchange: Exchange): void | Promise<void> => this.#route(request)(exchange);
      const isGeneration = /^\/v1\/(chat\/)?completions$/.test(pathOf(request));
      const faults = isGeneration ? engine.misbehaviour.nextRequest() : engine.misbehaviour.noFaults;
      guard({ engine, request, response, text, faults, arrivalMs }, handler);
    });
  }

  #echoId(request: IncomingMessage, response: ServerResponse): void {
    if (!this.#engine.config.enableRequestIdHeaders) return;
    response.setHeader("x-request-id", request.headers["x-request-id"] ?? randomBytes(16).toString("hex"));
  }

  /** Errors: 401, 404, 405. */
  #route(request: IncomingMessage): routes.Handler {
    const path = pathOf(request);
    if (/^\/(v1|v2|inference)(\/|$)/.test(path) && !this.#authorized(request)) throw unauthorized();
    if (path === "/mock/restart" && request.method === "POST") return (exchange) => this.#restart(exchange);
    const methods = ROUTES[path] ?? (this.#engine.config.devMode ? DEV_ROUTES[path] : undefined);
    if (methods === undefined) throw routeNotFound();
    const handler = methods[request.method ?? "GET"];
    if (handler === undefined) throw methodNotAllowed(Object.keys(methods).join(", "));
    return handler;
  }

  /** The mock's own: dies and comes back; only the connection that asked for it survives. */
  async #restart({ engine, request, response }: Exchange): Promise<void> {
    this.destroyConnections(request.socket);
    await engine.restart();
    sendJson(response, 200, { fingerprint: engine.life.fingerprint });
  }

  #authorized(request: IncomingMessage): boolean {
    const { apiKeys } = this.#engine.config;
    if (apiKeys.length === 0) return true;
    const [scheme, key] = (request.headers.authorization ?? "").split(" ");
    return scheme?.toLowerCase() === "bearer" && apiKeys.includes(key ?? "");
  }

  /**
   * What vLLM does on SIGTERM. With a timeout, running requests finish; without, they fall silent and their connections
   * stay open until the clients leave. New requests get 500, then the port closes. Resolves when all is over.
   */
  async terminate(timeoutSeconds: number): Promise<void> {
    const engine = this.#engine;
    engine.halt();
    if (timeoutSeconds === 0) engine.stop();
    else await this.#until(() => engine.load === 0, timeoutSeconds * 1000);
    await new Promise((resolve) => setTimeout(resolve, CLOSING_MS));
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeIdleConnections();
    if (timeoutSeconds > 0) this.destroyConnections();
    await closed;
  }

  async #until(done: () => boolean, withinMs: number): Promise<void> {
    const end = Date.now() + withinMs;
    while (!done() && Date.now() < end) await new Promise((resolve) => setTimeout(resolve, 20));
  }

  /** Breaks every connection (but one), as the death of the process does. */
  destroyConnections(except?: Socket): void {
    for (const socket of this.#sockets) if (socket !== except) socket.destroy();
  }

  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.destroyConnections();
    await closed;
  }
}

function pathOf(request: IncomingMessage): string {
  const url = request.url ?? "/";
  const query = url.indexOf("?");
  return query < 0 ? url : url.slice(0, query);
}
