/** How a gateway reaches an agent's ingress: a call within the process, or a fetch to a node (design §2). */

import type { Plan } from "./index.ts";

export interface TransportRequest {
  /** Engine path, e.g. `/v1/chat/completions`. */
  readonly path: string;
  /** The client's body, edited by span (D9). */
  readonly body: Uint8Array;
  readonly headers: Readonly<Record<string, string>>;
}

export interface TransportResponse {
  readonly status: number;
  /** Lower-case names, allow-listed. */
  readonly headers: Readonly<Record<string, string>>;
  /** Bytes as the engine sent them; cancelling it aborts the engine's request. */
  readonly body: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;
}

export interface WorkerTransport {
  /** Resolves at response headers. Rejects with a KedgeError (`upstream_unreachable`, `upstream_timeout`, `client_closed`). */
  send(plan: Plan, request: TransportRequest, signal: AbortSignal): Promise<TransportResponse>;
}
