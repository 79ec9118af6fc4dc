/** How a gateway reaches an agent's ingress: a call within the process, or a fetch to a node (design §2). */

import type { KedgeError } from "../errors/index.ts";
import type { Plan } from "./index.ts";

export interface TransportRequest {
  /** Engine path, e.g. `/v1/chat/completions`. */
  readonly path: string;
  /** The client's body, edited by span (D9). */
  readonly body: Uint8Array;
  /** Lower-case names, allow-listed. */
  readonly headers: Readonly<Record<string, string>>;
}

/** Takes a body as it arrives. Pushed, not pulled: web streams cost several times more per chunk than all else on this path. */
export interface BodySink {
  /** The chunk is the sink's from now on. Answer false to have no more of them until `resume()`; one or two may still come. */
  data(chunk: Uint8Array): boolean;
  /** The body is complete. Nothing follows. */
  end(): void;
  /** The body was cut (`stream_interrupted`) or its request ran out of time. Nothing follows. */
  fail(error: KedgeError): void;
}

export interface BodySource {
  /** Begins delivery, perhaps within the call. To be called once, soon after the headers: until then a bounded amount is kept. */
  start(sink: BodySink): void;
  resume(): void;
  /** Stops delivery and aborts the engine's request at once. May be called at any time, also twice; nothing reaches the sink after it. */
  cancel(): void;
  /**
   * Hands over what has not been delivered yet as a web stream, once, from within `data`; nothing reaches the sink after it, and `cancel`
   * cuts that stream. Only sources that are web streams underneath have it: piping those on costs an edge host a tenth of passing every
   * chunk through.
   */
  rest?(): ReadableStream<Uint8Array>;
}

export interface TransportResponse {
  readonly status: number;
  /** Lower-case names, allow-listed. */
  readonly headers: Readonly<Record<string, string>>;
  /** Bytes as the engine sent them, save comments that an ingress puts before the first data of an event stream. */
  readonly body: BodySource;
  /**
   * The sender has judged the stream as a gateway would: the usage chunk is left out as planned, silence and cuts end it with an in-band
   * error event. A clean end can be trusted without looking inside.
   */
  readonly vouched?: boolean;
}

export interface WorkerTransport {
  /**
   * Resolves at response headers. The signal aborts the engine's request until then; afterwards `body.cancel()` does.
   * Rejects with a KedgeError (`upstream_unreachable`, `upstream_timeout`, `client_closed`, `shutting_down`).
   */
  send(plan: Plan, request: TransportRequest, signal: AbortSignal): Promise<TransportResponse>;
}
