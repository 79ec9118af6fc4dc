/** A scripted engine for tests: real sockets, and each request's fate decided by the test. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export interface Received {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
  readonly socket: Socket;
  /** Resolves when the caller closes the connection before the answer is complete. */
  readonly abandoned: Promise<void>;
}

export type Script = (response: ServerResponse, request: Received) => void | Promise<void>;

export interface ScriptedUpstream {
  readonly url: string;
  /** In order of arrival. */
  readonly requests: Received[];
  /** Sockets accepted so far. */
  readonly connections: number;
  /** Resolves with the request of that index once it has arrived. */
  arrival(index: number): Promise<Received>;
  close(): Promise<void>;
}

export async function startUpstream(script: Script): Promise<ScriptedUpstream> {
  const requests: Received[] = [];
  const waiting = new Map<number, (request: Received) => void>();
  let connections = 0;
  const server = createServer({ noDelay: true, keepAlive: true }, async (incoming, response) => {
    const abandoned = new Promise<void>((resolve) => {
      response.on("close", () => {
        if (!response.writableFinished) resolve();
      });
    });
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of incoming) chunks.push(chunk);
    } catch {
      return;
    }
    const { method = "", url: path = "", headers, socket } = incoming;
    const request = { method, path, headers, socket, abandoned, body: Buffer.concat(chunks).toString() };
    requests.push(request);
    waiting.get(requests.length - 1)?.(request);
    await script(response, request);
  });
  server.keepAliveTimeout = 60_000;
  server.on("connection", () => {
    connections++;
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    get connections() {
      return connections;
    },
    arrival: (index) =>
      new Promise((resolve) => {
        const there = requests[index];
        if (there === undefined) waiting.set(index, resolve);
        else resolve(there);
      }),
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

export const chatChunk = (content: string): string =>
  `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":${JSON.stringify(content)}}}]}\n\n`;

export const usageChunk = (promptTokens: number, cachedTokens: number): string =>
  `data: {"id":"c","choices":[],"usage":{"prompt_tokens":${promptTokens},"completion_tokens":1,"total_tokens":${promptTokens + 1},"prompt_tokens_details":{"cached_tokens":${cachedTokens}}}}\n\n`;

export const DONE = "data: [DONE]\n\n";

export function openStream(response: ServerResponse): void {
  response.writeHead(200, {
    "content-type": "text/event-stream; charset=utf-8",
    "x-internal": "engine-secret",
  });
  response.flushHeaders();
}

/** A whole good stream: the parts, usage, end. */
export function streamAll(response: ServerResponse, contents: readonly string[]): void {
  openStream(response);
  for (const content of contents) response.write(chatChunk(content));
  response.write(usageChunk(32, 16));
  response.end(DONE);
}
