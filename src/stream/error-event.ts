/** The event that ends a stream which did not end by itself (design D9). */

import { type KedgeError, openAiErrorBody } from "../errors/index.ts";

/** `insideEvent`: half of another one has been sent. */
export function errorEvent(error: KedgeError, insideEvent: boolean): Uint8Array {
  return new TextEncoder().encode(
    `${insideEvent ? "\n\n" : ""}data: ${JSON.stringify(openAiErrorBody(error))}\n\n`,
  );
}
