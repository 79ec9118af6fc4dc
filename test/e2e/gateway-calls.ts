/** A fleet of scripted workers behind a gateway, and calls to it, for tests of its HTTP face. */

import { afterEach } from "vitest";
import { type FleetOptions, MODEL, startFleet } from "./gateway-fleet.ts";
import { type Script, startUpstream } from "./gateway-upstream.ts";

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** A good whole answer, with headers that no client may ever see. */
export const whole: Script = (response) => {
  response.writeHead(200, {
    "content-type": "application/json",
    "x-internal": "engine-canary",
    "set-cookie": "engine-canary=1",
    server: "engine-canary",
  });
  response.end(
    '{"choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"completion_tokens":1}}',
  );
};

/** One engine behind all workers; everything is closed after the test. */
export async function setUp(
  workers: readonly string[] = ["a"],
  options: Partial<FleetOptions> = {},
  script: Script = whole,
) {
  const engine = await startUpstream(script);
  closing.push(() => engine.close());
  const engines = Object.fromEntries(workers.map((worker) => [worker, engine.url]));
  const fleet = await startFleet({ engines, ...options });
  closing.push(() => fleet.close());
  const call = (
    path: string,
    init: { body?: unknown; headers?: Record<string, string>; method?: string } = {},
  ) =>
    fetch(fleet.url + path, {
      method: init.method ?? (init.body === undefined ? "GET" : "POST"),
      headers: { ...(init.body !== undefined && { "content-type": "application/json" }), ...init.headers },
      ...(init.body !== undefined && {
        body: typeof init.body === "string" ? init.body : JSON.stringify(init.body),
      }),
    });
  return { fleet, engine, call };
}

export const chat = (content: string, extra: object = {}) => ({
  model: MODEL,
  messages: [{ role: "user", content }],
  ...extra,
});
/** About 1,800 bytes. */
export const LONG = "The quick brown fox jumps over the lazy dog. ".repeat(40);
