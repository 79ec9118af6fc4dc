/** The client's side of one request: its body, its answer, its leaving. Hosts may bring a faster one than web streams. */

import { KedgeError } from "../errors/index.ts";

export interface AnswerWriter {
  /** False: write no more until the `onDrain` given to `begin` is called; one or two further writes do no harm. */
  write(chunk: Uint8Array): boolean;
  end(): void;
  /**
   * Sends a stream as the host does it most cheaply, after all that was written; what is written meanwhile, and the end, come after it.
   * `cut`: the stream failed; `gone`: the client left. Absent where passing chunks is as cheap.
   */
  pipe?(stream: ReadableStream<Uint8Array>): Promise<PipeEnd>;
}

export type PipeEnd = "end" | "cut" | "gone";

/** One request's client. Exactly one of `send` and `begin` is called, once. */
export interface ClientConnection {
  /** Errors: `payload_too_large`, `client_closed`. */
  readBody(limitBytes: number): Promise<Uint8Array>;
  send(status: number, headers: Readonly<Record<string, string>>, body: Uint8Array | string): void;
  begin(status: number, headers: Readonly<Record<string, string>>, onDrain: () => void): AnswerWriter;
  /** Called once if the client leaves before its answer is complete; at once if it has left. */
  onGone(callback: () => void): void;
  /** Keeps the host from ending work that outlives the answer; absent where nothing ends it. */
  waitUntil?(work: Promise<unknown>): void;
  /** What the Hono handler returns; settled by `send`, `begin` or the client's leaving. */
  readonly response: Promise<Response>;
}

/** Bytes that may wait for a slow reader before the upstream is held. */
const ANSWER_BUFFER_BYTES = 64 * 1024;

export function payloadTooLarge(limitBytes: number): KedgeError {
  return new KedgeError("payload_too_large", `The request body is larger than ${limitBytes} bytes.`);
}

export function clientClosed(cause?: unknown): KedgeError {
  return new KedgeError("client_closed", "The client closed the request.", { cause });
}

/** What a host of web requests adds to them. */
export interface WebHost {
  /** Keeps the host from ending work that outlives the handler. */
  waitUntil?(work: Promise<unknown>): void;
  /** Told of each answer whose rest goes by `pipe`. */
  onPipe?(): void;
}

/** Works wherever fetch's Request and Response do. */
export class WebClient implements ClientConnection {
  readonly response: Promise<Response>;
  private readonly request: Request;
  private readonly host: WebHost;
  private answer: (response: Response) => void = () => {};
  private goneCallback: (() => void) | null = null;
  private gone = false;
  private complete = false;
  private writer: StreamWriter | null = null;
  private over: () => void = () => {};

  constructor(request: Request, host: WebHost = {}) {
    this.request = request;
    this.host = host;
    this.response = new Promise((resolve) => {
      this.answer = resolve;
    });
    if (request.signal.aborted) this.leave();
    else request.signal.addEventListener("abort", () => this.leave(), { once: true });
  }

  async readBody(limitBytes: number): Promise<Uint8Array> {
    if (Number(this.request.headers.get("content-length") ?? 0) > limitBytes)
      throw payloadTooLarge(limitBytes);
    const chunks: Uint8Array[] = [];
    let length = 0;
    try {
      for await (const chunk of this.request.body ?? []) {
        length += chunk.length;
        if (length > limitBytes) throw payloadTooLarge(limitBytes);
        chunks.push(chunk);
      }
    } catch (error) {
      throw error instanceof KedgeError ? error : clientClosed(error);
    }
    return concatBytes(chunks, length);
  }

  send(status: number, headers: Readonly<Record<string, string>>, body: Uint8Array | string): void {
    this.complete = true;
    this.over();
    // A view's type parameter says nothing of where it came from; bodies here never lie in shared memory.
    this.answer(new Response(body as Uint8Array<ArrayBuffer> | string, { status, headers }));
  }

  begin(status: number, headers: Readonly<Record<string, string>>, onDrain: () => void): AnswerWriter {
    const { readable, writable } = identityStream();
    this.answer(new Response(readable, { status, headers }));
    this.writer = new StreamWriter(writable, {
      onDrain,
      onPipe: () => this.host.onPipe?.(),
      onEnd: () => {
        this.complete = true;
      },
      onFlushed: () => this.over(),
      onLost: () => this.leave(),
    });
    if (this.gone) this.writer.abort();
    return this.writer;
  }

  /** From here on there is work that must see its end, whatever becomes of the client. */
  onGone(callback: () => void): void {
    this.waitUntil(
      new Promise<void>((resolve) => {
        this.over = resolve;
      }),
    );
    this.goneCallback = callback;
    if (this.gone) this.tellGone();
    else if (this.complete) this.over();
  }

  waitUntil(work: Promise<unknown>): void {
    this.host.waitUntil?.(work);
  }

  private leave(): void {
    if (this.gone || this.complete) return;
    this.gone = true;
    this.answer(new Response(null, { status: 499 }));
    this.tellGone();
    this.writer?.abort();
  }

  private tellGone(): void {
    this.goneCallback?.();
    this.over();
  }
}

type Identity = new () => TransformStream<Uint8Array, Uint8Array>;

/** Bytes in, the same bytes out. workerd has one that costs no JavaScript per chunk where it is piped into. */
function identityStream(): TransformStream<Uint8Array, Uint8Array> {
  const { IdentityTransformStream = TransformStream } = globalThis as { IdentityTransformStream?: Identity };
  return new IdentityTransformStream();
}

interface WriterEvents {
  onDrain(): void;
  onPipe(): void;
  /** Nothing more will be written. */
  onEnd(): void;
  /** All that was written has gone out, or never will. */
  onFlushed(): void;
  /** Nobody reads any more. */
  onLost(): void;
}

/** The writing end of an answer's stream. */
class StreamWriter implements AnswerWriter {
  private readonly writable: WritableStream<Uint8Array>;
  private readonly events: WriterEvents;
  /** Null while the stream is piped into. */
  private writer: WritableStreamDefaultWriter<Uint8Array> | null;
  private waitingBytes = 0;
  private lastWrite: Promise<void> = Promise.resolve();
  /** Written while the stream was piped into. */
  private readonly afterPipe: Uint8Array[] = [];
  private ended = false;
  private aborted = false;

  constructor(writable: WritableStream<Uint8Array>, events: WriterEvents) {
    this.writable = writable;
    this.events = events;
    this.writer = this.lock();
  }

  write(chunk: Uint8Array): boolean {
    if (this.ended || this.aborted) return true;
    if (this.writer === null) {
      this.afterPipe.push(chunk);
      return true;
    }
    this.send(this.writer, chunk);
    return this.waitingBytes <= ANSWER_BUFFER_BYTES;
  }

  end(): void {
    if (this.ended || this.aborted) return;
    this.ended = true;
    this.events.onEnd();
    if (this.writer !== null) this.close(this.writer);
  }

  async pipe(stream: ReadableStream<Uint8Array>): Promise<PipeEnd> {
    this.events.onPipe();
    await this.lastWrite;
    const { writer, writable } = this;
    if (this.aborted) {
      stream.cancel().catch(() => {});
      return "gone";
    }
    this.writer = null;
    writer!.releaseLock();
    const isWhole = await stream.pipeTo(writable, { preventClose: true, preventAbort: true }).then(
      () => true,
      () => false,
    );
    const next = this.lock();
    this.writer = next;
    if (this.aborted) next.abort().catch(() => {});
    else if (!isWhole && (await hasFailed(next))) this.events.onLost();
    if (this.aborted) return "gone";
    for (const chunk of this.afterPipe.splice(0)) this.send(next, chunk);
    if (this.ended) this.close(next);
    return isWhole ? "end" : "cut";
  }

  /** The client has left: what waits is dropped. */
  abort(): void {
    if (this.ended || this.aborted) return;
    this.aborted = true;
    this.writer?.abort().catch(() => {});
    this.events.onFlushed();
  }

  private send(writer: WritableStreamDefaultWriter<Uint8Array>, chunk: Uint8Array): void {
    this.waitingBytes += chunk.length;
    this.lastWrite = writer.write(chunk).then(
      () => this.written(chunk.length),
      () => this.events.onLost(),
    );
  }

  private close(writer: WritableStreamDefaultWriter<Uint8Array>): void {
    const flushed = () => this.events.onFlushed();
    writer.close().then(flushed, flushed);
  }

  private lock(): WritableStreamDefaultWriter<Uint8Array> {
    const writer = this.writable.getWriter();
    writer.closed.catch(() => {
      // Letting go of the lock fails this promise as well.
      if (this.writer === writer) this.events.onLost();
    });
    return writer;
  }

  private written(bytes: number): void {
    const wasFull = this.waitingBytes > ANSWER_BUFFER_BYTES;
    this.waitingBytes -= bytes;
    if (wasFull && this.waitingBytes <= ANSWER_BUFFER_BYTES) this.events.onDrain();
  }
}

/** A pipe that failed does not say at which end; a stream that nobody reads any more has failed. */
async function hasFailed(writer: WritableStreamDefaultWriter<Uint8Array>): Promise<boolean> {
  return Promise.race([
    writer.closed.then(
      () => false,
      () => true,
    ),
    writer.ready.then(
      () => false,
      () => true,
    ),
  ]);
}

export function concatBytes(chunks: readonly Uint8Array[], length: number): Uint8Array {
  if (chunks.length === 1) return chunks[0]!;
  const all = new Uint8Array(length);
  let offset = 0;
  for (const chunk of chunks) {
    all.set(chunk, offset);
    offset += chunk.length;
  }
  return all;
}
