/** The client's side of one request: its body, its answer, its leaving. Hosts may bring a faster one than web streams. */

import { KedgeError } from "../errors/index.ts";

export interface AnswerWriter {
  /** False: write no more until the `onDrain` given to `begin` is called; one or two further writes do no harm. */
  write(chunk: Uint8Array): boolean;
  end(): void;
}

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

/** Works wherever fetch's Request and Response do. */
export class WebClient implements ClientConnection {
  readonly response: Promise<Response>;
  private readonly request: Request;
  private answer: (response: Response) => void = () => {};
  private goneCallback: (() => void) | null = null;
  private gone = false;
  private complete = false;

  constructor(request: Request) {
    this.request = request;
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
    // A view's type parameter says nothing of where it came from; bodies here never lie in shared memory.
    this.answer(new Response(body as Uint8Array<ArrayBuffer> | string, { status, headers }));
  }

  begin(status: number, headers: Readonly<Record<string, string>>, onDrain: () => void): AnswerWriter {
    let controller: ReadableStreamDefaultController<Uint8Array> | null = null;
    const body = new ReadableStream<Uint8Array>(
      {
        start: (given) => {
          controller = given;
        },
        pull: onDrain,
        cancel: () => this.leave(),
      },
      new ByteLengthQueuingStrategy({ highWaterMark: ANSWER_BUFFER_BYTES }),
    );
    this.answer(new Response(body, { status, headers }));
    return {
      write: (chunk) => {
        if (this.gone) return true;
        controller!.enqueue(chunk);
        return controller!.desiredSize! > 0;
      },
      end: () => {
        if (this.gone || this.complete) return;
        this.complete = true;
        controller!.close();
      },
    };
  }

  onGone(callback: () => void): void {
    if (this.gone) callback();
    else this.goneCallback = callback;
  }

  private leave(): void {
    if (this.gone || this.complete) return;
    this.gone = true;
    this.answer(new Response(null, { status: 499 }));
    this.goneCallback?.();
  }
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
