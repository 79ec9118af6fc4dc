/** What the mock engine's behaviour tests share: engines that close themselves, requests, open streams. */

import { request as httpRequest, type IncomingMessage } from "node:http";
import { afterEach } from "vitest";
import {
  type MockEngine,
  type MockEngineOptions,
  startMockEngine,
} from "../../gpu-agent/engines/mock/index.ts";
import { type RawResponse, send } from "./mock-engine-client.ts";

/** Run after each test, last first. */
export const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

export async function start(options: MockEngineOptions = {}): Promise<MockEngine> {
  const engine = await startMockEngine({ profile: "zero", ...options });
  cleanups.push(() => engine.close());
  return engine;
}

export const chat = (
  engine: MockEngine,
  body: object,
  headers: Record<string, string> = {},
): Promise<RawResponse> =>
  send(engine.url, {
    method: "POST",
    path: "/v1/chat/completions",
    headers,
    body: { messages: [{ role: "user", content: "Count the ships." }], max_tokens: 8, ...body },
  });

export async function openStream(
  engine: MockEngine,
  body: object,
): Promise<{ response: IncomingMessage; chunks: string[] }> {
  const text = JSON.stringify({
    messages: [{ role: "user", content: "x" }],
    stream: true,
    max_tokens: 4,
    ...body,
  });
  const response = await new Promise<IncomingMessage>((resolve, reject) => {
    const sent = httpRequest(
      `${engine.url}/v1/chat/completions`,
      { method: "POST", headers: { "content-type": "application/json" } },
      resolve,
    );
    cleanups.push(() => sent.destroy());
    sent.on("error", reject);
    sent.end(text);
  });
  const chunks: string[] = [];
  response.on("data", (chunk: Buffer) => chunks.push(chunk.toString()));
  response.on("error", () => undefined);
  return { response, chunks };
}
