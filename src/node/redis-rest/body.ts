/** Reads a request's body into memory, up to a limit. */

import type { IncomingMessage } from "node:http";
import { KedgeError } from "../../errors/index.ts";

/** What is read and thrown away of a body that is too large, in bodies of full size, so that its sender hears the answer. */
const DRAINED_BODIES = 4;

/** Bytes of bodies that all requests hold together. */
export class BodyBudget {
  private readonly maxBytes: number;
  private usedBytes = 0;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  take(bytes: number): boolean {
    if (this.usedBytes + bytes > this.maxBytes) return false;
    this.usedBytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.usedBytes -= bytes;
  }
}

/**
 * The whole body; null if the client left before its end. The caller gives its length back to the budget.
 * Errors: `payload_too_large`, `overloaded` (no budget left).
 */
export function readBody(
  request: IncomingMessage,
  maxBytes: number,
  budget: BodyBudget,
): Promise<Buffer | null> {
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let heldBytes = 0;
    let seenBytes = 0;
    let failure: KedgeError | null = null;
    const drop = (error: KedgeError | null): void => {
      failure ??= error;
      budget.give(heldBytes);
      heldBytes = 0;
      chunks.length = 0;
    };
    request.on("data", (chunk: Buffer) => {
      seenBytes += chunk.length;
      if (failure !== null) {
        if (seenBytes > maxBytes * DRAINED_BODIES) reject(failure);
      } else if (seenBytes > maxBytes) {
        drop(new KedgeError("payload_too_large", `ERR max request size exceeded: at most ${maxBytes} bytes`));
      } else if (!budget.take(chunk.length)) {
        drop(new KedgeError("overloaded", "ERR too many request bytes under way; try again later"));
      } else {
        heldBytes += chunk.length;
        chunks.push(chunk);
      }
    });
    request.on("end", () => {
      if (failure !== null) reject(failure);
      else resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks));
    });
    request.on("error", () => undefined);
    request.on("close", () => {
      if (request.complete) return;
      drop(null);
      resolve(null);
    });
  });
}
