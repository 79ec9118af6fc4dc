/** A raw HTTP client that shows what libraries hide: header order, chunk boundaries, broken ends. */

import { connect } from "node:net";

export interface RawResponse {
  readonly status: number;
  /** Lower-case names, in order. */
  readonly headers: readonly (readonly [string, string])[];
  readonly body: string;
  /** Sizes of the HTTP chunks; null if the body was not chunked. */
  readonly chunkSizes: readonly number[] | null;
  /** The body ended as HTTP says it must. */
  readonly complete: boolean;
}

export interface RawRequest {
  readonly method: string;
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  readonly raw_body?: string;
}

/** Sends one request on a connection of its own and reads until the other side closes. */
export async function send(url: string, request: RawRequest): Promise<RawResponse> {
  const { hostname, port } = new URL(url);
  const body = request.raw_body ?? (request.body === undefined ? null : JSON.stringify(request.body));
  const headers: Record<string, string> = {
    host: `${hostname}:${port}`,
    connection: "close",
    ...(body === null
      ? {}
      : { "content-type": "application/json", "content-length": String(Buffer.byteLength(body)) }),
    ...request.headers,
  };
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  const socket = connect(Number(port), hostname);
  socket.write(`${request.method} ${request.path} HTTP/1.1\r\n${head.join("\r\n")}\r\n\r\n${body ?? ""}`);
  const parts: Buffer[] = [];
  await new Promise<void>((resolve) => {
    socket.on("data", (part: Buffer) => parts.push(part));
    socket.on("error", () => undefined);
    socket.on("close", () => resolve());
  });
  return parseResponse(Buffer.concat(parts));
}

function parseResponse(bytes: Buffer): RawResponse {
  const split = bytes.indexOf("\r\n\r\n");
  if (split < 0) return { status: 0, headers: [], body: "", chunkSizes: null, complete: false };
  const [statusLine = "", ...lines] = bytes.subarray(0, split).toString("latin1").split("\r\n");
  const headers = lines.map((line): [string, string] => {
    const colon = line.indexOf(":");
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
  });
  const status = Number(statusLine.split(" ")[1]);
  const rest = bytes.subarray(split + 4);
  const chunked = headers.some(([name, value]) => name === "transfer-encoding" && value === "chunked");
  if (!chunked) {
    const length = Number(headers.find(([name]) => name === "content-length")?.[1] ?? 0);
    return {
      status,
      headers,
      body: rest.toString("utf8"),
      chunkSizes: null,
      complete: rest.length >= length,
    };
  }
  const chunks: Buffer[] = [];
  let complete = false;
  for (let at = 0; at < rest.length; ) {
    const line = rest.indexOf("\r\n", at);
    const size = line < 0 ? Number.NaN : Number.parseInt(rest.subarray(at, line).toString("latin1"), 16);
    if (Number.isNaN(size)) break;
    if (size === 0) complete = true;
    else chunks.push(rest.subarray(line + 2, line + 2 + size));
    at = line + 2 + size + 2;
  }
  const sizes = chunks.map((chunk) => chunk.length);
  return { status, headers, body: Buffer.concat(chunks).toString("utf8"), chunkSizes: sizes, complete };
}

/** The events' payloads of a stream. */
export function eventsOf(body: string): string[] {
  return body
    .split("\n\n")
    .filter((event) => event !== "")
    .map((event) => event.replace(/^data: /, ""));
}

/** Polls until `done`, at most `withinMs`. */
export async function until(done: () => boolean | Promise<boolean>, withinMs = 5000): Promise<void> {
  const end = performance.now() + withinMs;
  while (!(await done())) {
    if (performance.now() > end) throw new Error("the condition did not come true in time");
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
