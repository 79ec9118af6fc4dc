/** How a Node gateway reaches agents: a signed POST to the agent's door over kept-alive connections (design D12). */

import { Connections } from "../../gpu-agent/ingress/connections.ts";
import {
  clientClosed,
  type HeadersOfAnswer,
  PushedCall,
  type PushedCallOptions,
  passed,
} from "../../gpu-agent/ingress/pushed-call.ts";
import { KedgeError } from "../errors/index.ts";
import {
  DOOR_REQUEST_HEADERS,
  DOOR_RESPONSE_HEADERS,
  doorError,
  ERROR_HEADER,
  MAX_ERROR_BYTES,
  VOUCHED_HEADER,
} from "../plan/door.ts";
import type { Plan } from "../plan/index.ts";
import type { PlanSigner } from "../plan/sign.ts";
import type { BodySink, TransportRequest, TransportResponse, WorkerTransport } from "../plan/transport.ts";

export interface AgentTransportOptions {
  readonly signer: PlanSigner;
  /** A node that does not answer a connection within this is out of reach, in milliseconds; default 2 s. */
  readonly connectTimeoutMs?: number;
}

export interface AgentTransport extends WorkerTransport {
  /** Closes idle connections; requests under way go on. */
  close(): void;
}

const CONNECT_TIMEOUT_MS = 2_000;
/** Below the door's 75 s and what tunnels and load balancers usually keep. */
const KEEP_ALIVE_MS = 20_000;
/** Agents come and go under new addresses; the connections of this many are kept. */
const MAX_AGENTS = 4_096;

/** Plans without an agent are `upstream_unreachable` here. */
export function createAgentTransport({
  signer,
  connectTimeoutMs = CONNECT_TIMEOUT_MS,
}: AgentTransportOptions): AgentTransport {
  const times = { keepAliveMs: KEEP_ALIVE_MS, connectTimeoutMs };
  const pools = new Map<string, Connections>();
  const poolOf = (origin: string): Connections => {
    const known = pools.get(origin);
    if (known !== undefined) return known;
    const [oldest] = pools;
    if (pools.size >= MAX_AGENTS && oldest !== undefined) {
      oldest[1].close();
      pools.delete(oldest[0]);
    }
    const pool = new Connections(origin, times);
    pools.set(origin, pool);
    return pool;
  };
  return {
    send: async (plan, request, signal) => {
      const { agent } = plan;
      // A registration may hold any text.
      if (agent === null || !/^https?:\/\//i.test(agent.url) || !URL.canParse(agent.url)) {
        throw new KedgeError(
          "upstream_unreachable",
          `Worker ${plan.worker} has no agent that can be reached over the network.`,
        );
      }
      // The door leaves out a usage chunk for those who do not look into streams; this gateway learns from it.
      const token = await signer.sign({ ...plan, dropUsage: false });
      if (signal.aborted) throw clientClosed();
      const { origin, pathname } = new URL(agent.url);
      const call = new DoorCall(
        {
          connections: poolOf(origin),
          path: pathname.replace(/\/+$/, "") + request.path,
          headers: headersOf(token, request),
          body: request.body,
        },
        plan,
        agent.id,
      );
      return call.answerTo(signal);
    },
    close: () => {
      for (const pool of pools.values()) pool.close();
      pools.clear();
    },
  };
}

/** Plans for agents of other processes go to `remote`, those of this process to `local`. */
export function compositeTransport(local: WorkerTransport, remote: WorkerTransport): WorkerTransport {
  return {
    send: (plan, request, signal) => (plan.agent === null ? local : remote).send(plan, request, signal),
  };
}

function headersOf(token: string, { headers }: TransportRequest): string[] {
  const sent = ["authorization", `Bearer ${token}`, "content-type", "application/json"];
  for (const name of DOOR_REQUEST_HEADERS) {
    const value = headers[name];
    if (value !== undefined) sent.push(name, value);
  }
  return sent;
}

class DoorCall extends PushedCall {
  private readonly plan: Plan;
  private readonly agentId: string;
  private readonly response: Promise<TransportResponse>;
  private settle!: { resolve: (response: TransportResponse) => void; reject: (error: KedgeError) => void };

  constructor(call: PushedCallOptions, plan: Plan, agentId: string) {
    super(call);
    this.plan = plan;
    this.agentId = agentId;
    this.response = new Promise((resolve, reject) => {
      this.settle = { resolve, reject };
    });
  }

  /** To be called once. */
  answerTo(signal: AbortSignal): Promise<TransportResponse> {
    // Also while an error's body is awaited: an agent may hang in the middle of one.
    const leave = () => this.abort(clientClosed());
    signal.addEventListener("abort", leave, { once: true });
    this.dispatch();
    return this.response.finally(() => signal.removeEventListener("abort", leave));
  }

  protected override answered(status: number, given: HeadersOfAnswer): void {
    const header = (name: string) => (typeof given[name] === "string" ? given[name] : null);
    if (doorError(this.agentId, header, "") !== null) {
      this.start(new ErrorBody((text) => this.refused(header, text)));
      return;
    }
    const vouched = header(VOUCHED_HEADER) === "1" && !this.plan.dropUsage;
    this.settle.resolve({ status, headers: passed(given, DOOR_RESPONSE_HEADERS), body: this, vouched });
  }

  protected override failed(error: Error): void {
    if (error instanceof KedgeError) this.settle.reject(error);
    else this.settle.reject(this.unreachable(error));
  }

  /** Goes into the client's stream as it is, and so names nobody. */
  protected override cut(cause: Error): KedgeError {
    return new KedgeError("stream_interrupted", "The agent's answer was cut off before its end.", { cause });
  }

  private refused(header: (name: string) => string | null, body: string): void {
    const error = doorError(this.agentId, header, body)!;
    // The first connection broke after the door had taken the plan, which is good for one use.
    const wasUsed = this.retried && header(ERROR_HEADER) === "plan_rejected";
    this.settle.reject(wasUsed ? this.unreachable(error) : error);
    this.cancel();
  }

  private unreachable(cause: Error): KedgeError {
    return new KedgeError(
      "upstream_unreachable",
      `Worker ${this.plan.worker}: agent ${this.agentId} cannot be reached.`,
      { cause },
    );
  }
}

/** Reads as much of an error's body as may matter. */
class ErrorBody implements BodySink {
  private readonly done: (text: string) => void;
  private readonly decoder = new TextDecoder();
  private text = "";
  private isDone = false;

  constructor(done: (text: string) => void) {
    this.done = done;
  }

  data(chunk: Uint8Array): boolean {
    this.text += this.decoder.decode(chunk, { stream: true });
    if (this.text.length > MAX_ERROR_BYTES) this.end();
    return true;
  }

  end(): void {
    if (this.isDone) return;
    this.isDone = true;
    this.done(this.text);
  }

  fail(): void {
    this.end();
  }
}
