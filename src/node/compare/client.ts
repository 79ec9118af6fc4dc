/** One chat request over a kept-alive connection, timed: undici's dispatcher directly, for the client shares its cores with what it measures. */

import type { IncomingHttpHeaders } from "node:http";
import { type Dispatcher, Pool } from "undici";
import { type ChatStream, chatStream, errorName } from "./chat-stream.ts";
import type { ChatRequest } from "./workload.ts";

/** What came of one request. Times in ms of the client's clock. */
export interface Exchange {
  readonly startMs: number;
  /** First chunk with text; null if none came. */
  readonly firstTextMs: number | null;
  readonly lastTextMs: number | null;
  readonly endMs: number;
  readonly text: string;
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Reported by the engine in its usage. */
  readonly cachedTokens: number | null;
  /** Predicted by the gateway when it chose (`x-kedge-overlap-tokens`). */
  readonly predictedTokens: number | null;
  readonly worker: string | null;
  readonly rung: string | null;
  /** Null: a whole answer. Else a short stable name: code, `http_<status>`, `cut_stream`, `timeout`, `aborted` or a socket error. */
  readonly error: string | null;
}

export interface ChatClient {
  /** Never rejects; what goes wrong is in the exchange. */
  chat(request: ChatRequest, signal: AbortSignal): Promise<Exchange>;
  close(): Promise<void>;
}

export interface ChatClientOptions {
  /** Origin of the gateway. */
  readonly url: string;
  readonly model: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Silence after which a request counts as failed. */
  readonly timeoutMs: number;
  readonly now: () => number;
}

export function chatClient(options: ChatClientOptions): ChatClient {
  const pool = new Pool(options.url, {
    connections: null,
    pipelining: 1,
    headersTimeout: options.timeoutMs,
    bodyTimeout: options.timeoutMs,
    keepAliveTimeout: 60_000,
  });
  const headers = { "content-type": "application/json", accept: "text/event-stream", ...options.headers };
  return {
    chat: (request, signal) =>
      new Promise((resolve) => {
        const body = JSON.stringify({
          ...request,
          model: options.model,
          stream: true,
          stream_options: { include_usage: true },
        });
        pool.dispatch(
          { path: "/v1/chat/completions", method: "POST", headers, body },
          exchange(options.now, signal, resolve),
        );
      }),
    close: () => pool.destroy(),
  };
}

/** The dispatch handler that fills in one exchange. */
function exchange(
  now: () => number,
  signal: AbortSignal,
  resolve: (exchange: Exchange) => void,
): Dispatcher.DispatchHandler {
  const startMs = now();
  let firstTextMs: number | null = null;
  let lastTextMs: number | null = null;
  let status = 0;
  let headers: IncomingHttpHeaders = {};
  let failedBody = "";
  let abort = (): void => {};
  const stream = chatStream(() => {
    lastTextMs = now();
    firstTextMs ??= lastTextMs;
  });

  const finish = (error: string | null): void => {
    signal.removeEventListener("abort", onAbort);
    resolve({
      startMs,
      firstTextMs,
      lastTextMs,
      endMs: now(),
      text: stream.text,
      promptTokens: stream.usage?.promptTokens ?? 0,
      completionTokens: stream.usage?.completionTokens ?? 0,
      cachedTokens: stream.usage?.cachedTokens ?? null,
      predictedTokens: numeric(headers["x-kedge-overlap-tokens"]),
      worker: single(headers["x-kedge-worker"]),
      rung: single(headers["x-kedge-rung"]),
      error,
    });
  };
  const onAbort = (): void => abort();
  signal.addEventListener("abort", onAbort, { once: true });

  return {
    onRequestStart: (controller) => {
      abort = () => controller.abort(new Error("aborted"));
      if (signal.aborted) abort();
    },
    onResponseStart: (_controller, statusCode, responseHeaders) => {
      status = statusCode;
      headers = responseHeaders;
    },
    onResponseData: (_controller, chunk) => {
      if (status === 200) stream.push(chunk);
      else if (failedBody.length < 65_536) failedBody += chunk.toString("utf8");
    },
    onResponseEnd: () => finish(status === 200 ? streamError(stream) : statusError(status, failedBody)),
    onResponseError: (_controller, error) => finish(signal.aborted ? "aborted" : socketError(error)),
  };
}

function streamError(stream: ChatStream): string | null {
  if (stream.error !== null) return stream.error;
  if (!stream.done) return "cut_stream";
  return stream.usage === null ? "no_usage" : null;
}

function statusError(status: number, body: string): string {
  try {
    const { error } = JSON.parse(body) as { error?: unknown };
    if (error !== undefined) return `http_${status}: ${errorName(error)}`;
  } catch {
    // A body that is not JSON adds nothing to its status.
  }
  return `http_${status}`;
}

function socketError(error: Error): string {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "UND_ERR_HEADERS_TIMEOUT" || code === "UND_ERR_BODY_TIMEOUT") return "timeout";
  return code ?? error.name;
}

function single(value: string | string[] | undefined): string | null {
  return (Array.isArray(value) ? value[0] : value) ?? null;
}

function numeric(value: string | string[] | undefined): number | null {
  const text = single(value);
  if (text === null || text.trim() === "") return null;
  const number = Number(text);
  return Number.isFinite(number) ? number : null;
}
