/** Request bodies at the door: bounded one by one and together, and read only of those who hold a plan. */

import type { IncomingMessage } from "node:http";
import { KedgeError } from "../../src/errors/index.ts";

export interface BodyLease {
  resize(bytes: number): void;
  release(): void;
}

/** Bytes of all bodies that are held at once. */
export class BodyBudget {
  private readonly maxBytes: number;
  private heldBytes = 0;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  /** Room for a body of the announced length, else for the longest. Errors: `payload_too_large`, `upstream_busy`. */
  take(incoming: IncomingMessage, limitBytes: number): BodyLease {
    const announced = Number(incoming.headers["content-length"] ?? Number.NaN);
    if (announced > limitBytes) throw tooLarge(limitBytes);
    let bytes = announced >= 0 ? announced : limitBytes;
    // One body alone always has room, whatever the two limits are.
    if (this.heldBytes > 0 && this.heldBytes + bytes > this.maxBytes) {
      throw new KedgeError("upstream_busy", "This node holds too many request bodies.", {
        retryAfterSeconds: 1,
      });
    }
    this.heldBytes += bytes;
    const resize = (next: number) => {
      this.heldBytes += next - bytes;
      bytes = next;
    };
    return { resize, release: () => resize(0) };
  }
}

/** Errors: `payload_too_large`, `client_closed`. */
export function readBody(incoming: IncomingMessage, limitBytes: number): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    // Who left while the plan was looked at is heard of no more.
    if (incoming.destroyed) reject(clientClosed());
    const chunks: Buffer[] = [];
    let length = 0;
    incoming.on("data", (chunk: Buffer) => {
      length += chunk.length;
      if (length > limitBytes) reject(tooLarge(limitBytes));
      else chunks.push(chunk);
    });
    incoming.on("end", () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, length)));
    incoming.on("error", () => reject(clientClosed()));
    incoming.on("close", () => reject(clientClosed()));
  });
}

/**
 * Reads on and forgets, then calls `done`: closing upon unread bytes resets the connection, and many clients read no answer before they
 * have sent all.
 */
export function discardRest(incoming: IncomingMessage, done: () => void): void {
  let left = DISCARDED_BYTES;
  incoming.on("data", (chunk: Buffer) => {
    left -= chunk.length;
    if (left < 0) done();
  });
  incoming.once("close", done);
  incoming.once("end", done);
}

const DISCARDED_BYTES = 32 * 1024 * 1024;

const clientClosed = () => new KedgeError("client_closed", "The gateway closed the request.");

function tooLarge(limitBytes: number): KedgeError {
  return new KedgeError("payload_too_large", `The request body is larger than ${limitBytes} bytes.`);
}
