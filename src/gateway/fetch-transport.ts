/** Reaches agents by fetch: a signed plan as bearer token, the answer's web stream pushed to its sink or handed on whole (design D12). */

import { KedgeError } from "../errors/index.ts";
import type { AgentAddress } from "../fleet/types.ts";
import {
  DOOR_HEADER,
  DOOR_REQUEST_HEADERS,
  DOOR_RESPONSE_HEADERS,
  doorError,
  ERROR_HEADER,
  MAX_ERROR_BYTES,
  VOUCHED_HEADER,
} from "../plan/door.ts";
import type { Plan } from "../plan/index.ts";
import type { PlanSigner } from "../plan/sign.ts";
import type {
  BodySink,
  BodySource,
  TransportRequest,
  TransportResponse,
  WorkerTransport,
} from "../plan/transport.ts";
import { clientClosed } from "./client.ts";

/** Whatever can fetch: the platform, a private network's binding, a client certificate's. */
export interface Fetcher {
  fetch(url: string, init: RequestInit): Promise<Response>;
}

export interface FetchTransportOptions {
  readonly signer: PlanSigner;
  /** Chosen per agent; default: the platform's own fetch. */
  readonly fetcherFor?: (agent: AgentAddress) => Fetcher;
  /**
   * Asked per request; true: its stream is not taken as vouched for and keeps its usage, so that the gateway looks inside and learns from
   * it. Default: never.
   */
  readonly looksInside?: () => boolean;
}

/** Errors of `send`: those of the contract, and the code that an agent's door names for a request that it refused. */
export function createFetchTransport(options: FetchTransportOptions): WorkerTransport {
  const platform: Fetcher = { fetch: (url, init) => fetch(url, init) };
  const { signer, fetcherFor = () => platform, looksInside = () => false } = options;
  return {
    async send(plan, request, signal) {
      const { agent } = plan;
      if (agent === null) throw unreachable(plan, "it has no agent that can be reached over the network");
      const looking = looksInside();
      const token = await signer.sign(looking ? { ...plan, dropUsage: false } : plan);
      const abort = new AbortController();
      const onAbort = () => abort.abort();
      if (signal.aborted) throw clientClosed();
      signal.addEventListener("abort", onAbort, { once: true });
      try {
        const answer = await fetcherFor(agent).fetch(
          agent.url.replace(/\/+$/, "") + request.path,
          initOf(token, request, abort.signal),
        );
        const refusal = await refusalOf(agent, answer);
        if (refusal !== null) throw refusal;
        return responseOf(answer, abort, looking);
      } catch (error) {
        if (signal.aborted) throw clientClosed(error);
        throw error instanceof KedgeError ? error : unreachable(plan, "its agent cannot be reached", error);
      } finally {
        signal.removeEventListener("abort", onAbort);
      }
    },
  };
}

function initOf(token: string, { body, headers }: TransportRequest, signal: AbortSignal): RequestInit {
  const sent: Record<string, string> = {
    authorization: `Bearer ${token}`,
    "content-type": "application/json",
  };
  for (const name of DOOR_REQUEST_HEADERS) {
    const value = headers[name];
    if (value !== undefined) sent[name] = value;
  }
  // A view's type parameter says nothing of where it came from; bodies here never lie in shared memory.
  return { method: "POST", headers: sent, body: body as Uint8Array<ArrayBuffer>, signal, redirect: "manual" };
}

function responseOf(answer: Response, abort: AbortController, looking: boolean): TransportResponse {
  const headers: Record<string, string> = {};
  for (const name of DOOR_RESPONSE_HEADERS) {
    const value = answer.headers.get(name);
    if (value !== null) headers[name] = value;
  }
  const vouched = !looking && answer.headers.get(VOUCHED_HEADER) === "1";
  return { status: answer.status, headers, body: new WebBody(answer.body, abort), vouched };
}

/** What the door itself says when no engine answered, as the error that it was there. */
async function refusalOf({ id }: AgentAddress, answer: Response): Promise<KedgeError | null> {
  const header = (name: string) => answer.headers.get(name);
  if (header(DOOR_HEADER) !== null && header(ERROR_HEADER) === null) return null;
  return doorError(id, header, new TextDecoder().decode(await readStart(answer)));
}

/** A body that is longer than an error may be is read no further: the rest is not needed. */
async function readStart(answer: Response): Promise<Uint8Array> {
  const reader = answer.body?.getReader();
  const start = new Uint8Array(MAX_ERROR_BYTES);
  let length = 0;
  while (reader !== undefined) {
    const { done, value } = await reader.read();
    if (done) break;
    const fits = value.subarray(0, start.length - length);
    start.set(fits, length);
    length += fits.length;
    if (length < start.length) continue;
    reader.cancel().catch(ignore);
    break;
  }
  return start.subarray(0, length);
}

/** A response's stream, read one chunk ahead of nobody: the next is asked for when the sink has taken this one. */
class WebBody implements BodySource {
  private stream: ReadableStream<Uint8Array> | null;
  private readonly abort: AbortController;
  private reader: ReadableStreamDefaultReader<Uint8Array> | null = null;
  private sink: BodySink | null = null;
  private held = false;
  private reading = false;

  constructor(stream: ReadableStream<Uint8Array> | null, abort: AbortController) {
    this.stream = stream;
    this.abort = abort;
  }

  start(sink: BodySink): void {
    if (this.stream === null) {
      sink.end();
      return;
    }
    this.sink = sink;
    this.reader = this.stream.getReader();
    void this.deliver();
  }

  resume(): void {
    this.held = false;
    if (!this.reading) void this.deliver();
  }

  cancel(): void {
    this.sink = null;
    const { reader, stream } = this;
    this.reader = null;
    this.stream = null;
    this.abort.abort();
    // The abort ends the exchange; the stream is told as well, for a body that has come already would keep its buffers.
    const ended = reader?.cancel() ?? (stream?.locked === false ? stream.cancel() : undefined);
    ended?.catch(ignore);
  }

  rest(): ReadableStream<Uint8Array> {
    const stream = this.stream!;
    this.sink = null;
    this.reader!.releaseLock();
    this.reader = null;
    return stream;
  }

  private async deliver(): Promise<void> {
    this.reading = true;
    while (!this.held && this.sink !== null && this.reader !== null) {
      const chunk = await this.reader.read().catch((error: unknown) => interrupted(error));
      // The sink may have cancelled meanwhile; read errors that come of it are no news.
      if (this.sink === null) break;
      if (chunk instanceof KedgeError) this.close().fail(chunk);
      else if (chunk.done) this.close().end();
      else if (!this.sink.data(chunk.value)) this.held = true;
    }
    this.reading = false;
  }

  /** The body is over: nothing reaches the sink after what it is told now. */
  private close(): BodySink {
    const sink = this.sink!;
    this.sink = null;
    this.reader = null;
    this.stream = null;
    return sink;
  }
}

const ignore = () => {};

function interrupted(cause: unknown): KedgeError {
  return new KedgeError("stream_interrupted", "The agent's answer was cut off before its end.", { cause });
}

function unreachable(plan: Plan, why: string, cause?: unknown): KedgeError {
  return new KedgeError("upstream_unreachable", `Worker ${plan.worker}: ${why}.`, { cause });
}
