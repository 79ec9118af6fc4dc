/** The client's side of a request on Node's own HTTP streams: no web streams between socket and socket. */

import type { IncomingMessage, ServerResponse } from "node:http";
import {
  type AnswerWriter,
  type ClientConnection,
  clientClosed,
  payloadTooLarge,
} from "../../gateway/index.ts";

/** Tells @hono/node-server that the answer has been written already. */
const ALREADY_SENT = new Response(null, { headers: { "x-hono-already-sent": "true" } });

/** Of a refused body so much is still read. */
const DISCARDED_BYTES = 64 * 1024 * 1024;

export class NodeClient implements ClientConnection {
  private readonly incoming: IncomingMessage;
  private readonly outgoing: ServerResponse;
  private goneCallback: (() => void) | null = null;
  private settle: (response: Response) => void = () => {};
  private responsePromise: Promise<Response> | null = null;
  private answered = false;
  private gone = false;

  constructor(incoming: IncomingMessage, outgoing: ServerResponse) {
    this.incoming = incoming;
    this.outgoing = outgoing;
    // A write that meets a closed socket is no news: the close event tells.
    outgoing.on("error", () => {});
    // The answer to a pipelined request has no socket before its turn, and does not hear of its end.
    const { socket } = incoming;
    const leave = () => this.leave();
    socket.once("close", leave);
    outgoing.on("close", () => {
      socket.off("close", leave);
      this.leave();
    });
  }

  get response(): Promise<Response> {
    this.responsePromise ??= new Promise((resolve) => {
      if (this.answered) resolve(ALREADY_SENT);
      else this.settle = resolve;
    });
    return this.responsePromise;
  }

  readBody(limitBytes: number): Promise<Uint8Array> {
    const { incoming } = this;
    const announced = Number(incoming.headers["content-length"] ?? 0);
    if (announced > limitBytes) return Promise.reject(payloadTooLarge(limitBytes));
    return new Promise((resolve, reject) => {
      const chunks: Buffer[] = [];
      let length = 0;
      incoming.on("data", (chunk: Buffer) => {
        length += chunk.length;
        if (length > limitBytes) reject(payloadTooLarge(limitBytes));
        else chunks.push(chunk);
      });
      incoming.on("end", () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, length)));
      incoming.on("error", (error) => reject(clientClosed(error)));
      incoming.on("close", () => {
        if (!incoming.complete) reject(clientClosed());
      });
    });
  }

  send(status: number, headers: Readonly<Record<string, string>>, body: Uint8Array | string): void {
    if (this.outgoing.destroyed || this.outgoing.headersSent) return;
    const { incoming, outgoing } = this;
    const length = typeof body === "string" ? Buffer.byteLength(body) : body.length;
    // A body that was refused unread cannot be followed by another request on this connection.
    const closing = incoming.complete ? {} : { connection: "close" };
    outgoing.writeHead(status, { ...headers, "content-length": length, ...closing });
    if (incoming.complete) outgoing.end(body);
    else {
      outgoing.write(body);
      this.discardRest(() => outgoing.end());
    }
    this.markAnswered();
  }

  /** Closing upon unread bytes resets the connection, and many clients read no answer before they have sent all. */
  private discardRest(done: () => void): void {
    const { incoming } = this;
    let left = DISCARDED_BYTES;
    incoming.on("data", (chunk: Buffer) => {
      left -= chunk.length;
      if (left < 0) done();
    });
    incoming.once("close", done);
  }

  begin(status: number, headers: Readonly<Record<string, string>>, onDrain: () => void): AnswerWriter {
    const { outgoing } = this;
    outgoing.writeHead(status, headers);
    outgoing.on("drain", onDrain);
    this.markAnswered();
    return {
      write: (chunk) => outgoing.destroyed || outgoing.write(chunk),
      end: () => {
        outgoing.end();
      },
    };
  }

  onGone(callback: () => void): void {
    this.goneCallback = callback;
    if (this.gone) callback();
  }

  private leave(): void {
    if (this.gone || this.outgoing.writableFinished) return;
    this.gone = true;
    this.goneCallback?.();
    this.markAnswered();
  }

  private markAnswered(): void {
    if (this.answered) return;
    this.answered = true;
    this.settle(ALREADY_SENT);
  }
}
