/** Bounds the request bodies held at once: overload is answered, never died of. */

import { KedgeError } from "../errors/index.ts";

export interface BodyLease {
  /** Changes what is held to the body's true length. */
  resize(bytes: number): void;
  /** Safe to call twice. */
  release(): void;
}

export class BodyBudget {
  private readonly limitBytes: number;
  private heldBytes = 0;

  constructor(limitBytes: number) {
    this.limitBytes = limitBytes;
  }

  /** Before a body is read, for its announced length, or the most it may have. Errors: `overloaded`. */
  take(bytes: number): BodyLease {
    if (this.heldBytes + bytes > this.limitBytes) {
      throw new KedgeError("overloaded", "Too many large requests are under way; retry shortly.", {
        retryAfterSeconds: 1,
      });
    }
    let held = 0;
    const resize = (to: number): void => {
      this.heldBytes += to - held;
      held = to;
    };
    resize(bytes);
    return { resize, release: () => resize(0) };
  }
}
