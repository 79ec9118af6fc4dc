/** The agent's door: HTTP on the node, where gateways of other processes hand in signed plans; everything else is refused (design D12). */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { KedgeError, toKedgeError } from "../../src/errors/index.ts";
import { DOOR_REQUEST_HEADERS } from "../../src/plan/door.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { WorkerTransport } from "../../src/plan/transport.ts";
import type { PlanVerifier } from "../../src/plan/verify.ts";
import { PROMETHEUS_CONTENT_TYPE, type Registry } from "../../src/telemetry/registry.ts";
import type { AgentStatus, Log, PlanStanding } from "../agent.ts";
import { Answer, type DoorClock, sendError, sendText } from "./answer.ts";
import { BodyBudget, readBody } from "./body.ts";
import { isFromPrivateNetwork, isFromThisMachine } from "./callers.ts";
import { DoorMetrics } from "./metrics.ts";

export type { DoorClock } from "./answer.ts";

export interface DoorOptions {
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly verifier: PlanVerifier;
  /** Carries plans out: the node's ingress. */
  readonly transport: WorkerTransport;
  /** What the rank of a plan is now. */
  readonly standing: (plan: Plan) => PlanStanding;
  readonly status: () => AgentStatus;
  readonly clock: DoorClock;
  readonly limits: {
    /** Largest request body. */
    readonly bodyBytes: number;
    /** Bodies of all requests under way together. */
    readonly inflightBodyBytes: number;
    /** Silence that ends a running stream with an in-band error. */
    readonly stallTimeoutMs: number;
  };
  readonly registry: Registry;
  readonly log: Log;
}

export interface Door {
  /** Where it listens. */
  readonly url: string;
  /** Answers new requests with `shutting_down` from now on, and `/ready` with 503. */
  refuse(): void;
  /** Lets answers that are complete go out, then closes all connections. Safe to call twice. */
  close(): Promise<void>;
}

const ENGINE_PATHS = ["/v1/chat/completions", "/v1/completions"];

/** Above the time after which gateways let an idle connection go. */
const KEEP_ALIVE_MS = 75_000;
const HEADERS_TIMEOUT_MS = 10_000;
const MAX_HEADER_BYTES = 32 * 1024;
const CLOSE_POLL_MS = 20;
const CLOSE_TIMEOUT_MS = 1_000;
/** Refusals are told to the log so often, however many there are. */
const REFUSAL_LOG_MS = 1_000;

/** Errors: what listening gives, e.g. EADDRINUSE. */
export async function startDoor(options: DoorOptions): Promise<Door> {
  const handler = new DoorHandler(options);
  const server = createServer(
    { noDelay: true, keepAlive: true, keepAliveTimeout: KEEP_ALIVE_MS, maxHeaderSize: MAX_HEADER_BYTES },
    (incoming, outgoing) => handler.take(incoming, outgoing),
  );
  server.headersTimeout = HEADERS_TIMEOUT_MS;
  // Requests that a gateway sends ahead each listen for the end of its one connection.
  server.on("connection", (socket) => socket.setMaxListeners(0));
  await listen(server, options);
  const { address, family, port } = server.address() as AddressInfo;
  let closing: Promise<void> | null = null;
  return {
    url: `http://${family === "IPv6" ? `[${address}]` : address}:${port}`,
    refuse: () => handler.refuse(),
    close: () => {
      handler.refuse();
      closing ??= closeServer(server);
      return closing;
    },
  };
}

class DoorHandler {
  private readonly options: DoorOptions;
  private readonly metrics: DoorMetrics;
  private readonly bodies: BodyBudget;
  private refusing = false;
  private refusals = 0;
  private refusalsToldMs = Number.NEGATIVE_INFINITY;

  constructor(options: DoorOptions) {
    this.options = options;
    this.metrics = new DoorMetrics(options.registry);
    this.bodies = new BodyBudget(options.limits.inflightBodyBytes);
  }

  refuse(): void {
    this.refusing = true;
  }

  take(incoming: IncomingMessage, outgoing: ServerResponse): void {
    // A write that meets a closed socket is no news: the close event tells.
    outgoing.on("error", () => {});
    const [path = "/"] = (incoming.url ?? "/").split("?", 1);
    if (incoming.method === "GET" && this.tell(path, incoming, outgoing)) return;
    this.serve(path, incoming, outgoing).catch((thrown) => {
      const error = toKedgeError(thrown);
      if (error.code === "plan_rejected") this.noteRefusal(error);
      else if (error.code === "internal_error") {
        this.options.log("error", "a request failed inside the agent", { error: String(error.cause) });
      }
      this.metrics.requests.labels(error.code).inc();
      sendError(incoming, outgoing, error);
    });
  }

  /** What operators and their machines ask; true if it was that. */
  private tell(path: string, incoming: IncomingMessage, outgoing: ServerResponse): boolean {
    if (path === "/live") sendText(outgoing, 200, "application/json", '{"status":"live"}');
    else if (path === "/ready") this.tellReady(outgoing);
    else if (path === "/metrics" && isFromPrivateNetwork(incoming)) {
      this.metrics.scrape(this.options.status());
      sendText(outgoing, 200, PROMETHEUS_CONTENT_TYPE, this.options.registry.encode());
    } else if (path === "/status" && isFromThisMachine(incoming)) {
      sendText(outgoing, 200, "application/json", JSON.stringify(this.options.status()));
    } else return false;
    return true;
  }

  private tellReady(outgoing: ServerResponse): void {
    const serves = this.options.status().workers.some(({ state }) => state === "serving");
    const reason = this.refusing ? "shutting down" : serves ? null : "no engine serves";
    const body = reason === null ? { status: "ready" } : { status: "not_ready", reason };
    sendText(outgoing, reason === null ? 200 : 503, "application/json", JSON.stringify(body));
  }

  private async serve(path: string, incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    if (this.refusing) throw new KedgeError("shutting_down", "This node is shutting down.");
    const gone = new AbortController();
    outgoing.once("close", () => {
      if (!outgoing.writableFinished) gone.abort();
    });
    const plan = await this.planOf(incoming);
    if (incoming.method !== "POST" || !ENGINE_PATHS.includes(path)) {
      throw new KedgeError("not_found", `There is no ${incoming.method} ${path} here.`);
    }
    this.checkStanding(plan);
    const { bodyBytes, stallTimeoutMs } = this.options.limits;
    const lease = this.bodies.take(incoming, bodyBytes);
    this.metrics.inflight.add(1);
    try {
      const body = await readBody(incoming, bodyBytes);
      lease.resize(body.length);
      const request = { path, body, headers: headersOf(incoming) };
      const response = await this.options.transport.send(plan, request, gone.signal);
      const answer = new Answer({ incoming, outgoing, plan, stallTimeoutMs, clock: this.options.clock });
      const error = await answer.pass(response);
      this.metrics.requests.labels(error === null ? String(response.status) : error.code).inc();
      if (error !== null) this.noteBroken(plan, error);
    } finally {
      lease.release();
      this.metrics.inflight.add(-1);
    }
  }

  private planOf({ headers }: IncomingMessage): Promise<Plan> {
    const [, token] = /^Bearer ([\w.-]+)$/i.exec(headers.authorization ?? "") ?? [];
    if (token === undefined) {
      const cause = new Error("it came without a plan");
      throw new KedgeError("plan_rejected", "This node takes signed plans only.", { cause });
    }
    const requestId = headers["x-request-id"];
    return this.options.verifier.verify(token, typeof requestId === "string" ? requestId : undefined);
  }

  private checkStanding(plan: Plan): void {
    const standing = this.options.standing(plan);
    if (standing === "absent") {
      throw new KedgeError("upstream_unreachable", `Worker ${plan.worker} does not serve at this node.`);
    }
    if (standing === "void") {
      // As busy ones do, it goes elsewhere, and says nothing of the worker's health.
      throw new KedgeError("upstream_busy", `Worker ${plan.worker} was restarted since this was planned.`);
    }
  }

  private noteRefusal(error: KedgeError): void {
    this.metrics.refused.inc();
    this.refusals++;
    const nowMs = this.options.clock.now();
    if (nowMs - this.refusalsToldMs < REFUSAL_LOG_MS) return;
    const reason = error.cause instanceof Error ? error.cause.message : error.message;
    this.options.log("warn", "a request was refused at the door", { reason, refusals: this.refusals });
    this.refusalsToldMs = nowMs;
    this.refusals = 0;
  }

  private noteBroken({ requestId, worker, rank }: Plan, { code, message }: KedgeError): void {
    if (code === "client_closed") return;
    this.options.log("warn", message, { requestId, worker, rank, code });
  }
}

function headersOf({ headers }: IncomingMessage): Record<string, string> {
  const passed: Record<string, string> = {};
  for (const name of DOOR_REQUEST_HEADERS) {
    const value = headers[name];
    if (typeof value === "string") passed[name] = value;
  }
  return passed;
}

function listen(server: Server, { host, port }: DoorOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, () => {
      server.off("error", reject);
      resolve();
    });
  });
}

function closeServer(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const force = setTimeout(() => server.closeAllConnections(), CLOSE_TIMEOUT_MS);
    const idle = setInterval(() => server.closeIdleConnections(), CLOSE_POLL_MS);
    server.close(() => {
      clearTimeout(force);
      clearInterval(idle);
      resolve();
    });
  });
}
