/** Engines of scripted fates behind a gateway, and streams through it. */

import { request as httpRequest } from "node:http";
import { afterEach } from "vitest";
import type { KedgeConfigInput } from "../../src/config/index.ts";
import { type FleetOptions, MODEL, startFleet } from "./gateway-fleet.ts";
import { type Script, type ScriptedUpstream, startUpstream, streamAll } from "./gateway-upstream.ts";

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** One engine per script, `a`, `b`, …; the policy takes them in this order, since chance is fixed and all are idle. */
export async function setUp(scripts: readonly Script[], options: Partial<FleetOptions> = {}) {
  const engines: ScriptedUpstream[] = [];
  for (const script of scripts) {
    const engine = await startUpstream(script);
    closing.push(() => engine.close());
    engines.push(engine);
  }
  const names = Object.fromEntries(engines.map((engine, i) => [String.fromCharCode(97 + i), engine.url]));
  const fleet = await startFleet({
    engines: names,
    ...options,
    config: { router: { mode: "round-robin" }, ...options.config } as KedgeConfigInput,
  });
  closing.push(() => fleet.close());
  return { fleet, engines };
}

export const body = (extra: object = {}) =>
  JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "hello" }], ...extra });

export function post(url: string, payload: string, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: payload,
  });
}

export const stream = (url: string, extra: object = {}) => post(url, body({ stream: true, ...extra }));

export const whole = (content: string, usage = { prompt_tokens: 32, completion_tokens: 1 }) =>
  JSON.stringify({ choices: [{ index: 0, message: { content }, finish_reason: "stop" }], usage });

export const answerWhole: Script = (response) => {
  response.writeHead(200, { "content-type": "application/json" });
  response.end(whole("fine"));
};

export const status =
  (code: number, headers: Record<string, string> = {}): Script =>
  (response) => {
    response.writeHead(code, { "content-type": "application/json", ...headers });
    response.end(`{"error":{"message":"secret engine words","type":"E","param":null,"code":${code}}}`);
  };

export const good: Script = (response) => streamAll(response, ["a", "b"]);

/** A raw client that can leave at any time. */
export function open(url: string, payload: string) {
  const request = httpRequest(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
  });
  request.on("error", () => {});
  request.end(payload);
  return request;
}
