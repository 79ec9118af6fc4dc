/** Redis subscriptions as server-sent events, each on a Redis connection of its own that ends with its client. */

import type { ServerResponse } from "node:http";
import type { Redis } from "ioredis";
import type { Backend } from "./backend.ts";
import type { RestMetrics } from "./metrics.ts";

/** Comments that tell proxies, and us, that the other side is still there. */
const HEARTBEAT_MS = 15_000;
/** What a slow client may leave unread before it is let go. */
const MAX_UNREAD_BYTES = 8 * 1024 * 1024;

export interface Subscription {
  readonly kind: "subscribe" | "psubscribe";
  readonly channel: string | Buffer;
}

export class Subscriptions {
  private readonly backend: Backend;
  private readonly metrics: RestMetrics;
  private readonly maxOpen: number;
  private readonly open = new Set<ServerResponse>();

  constructor(backend: Backend, metrics: RestMetrics, maxOpen: number) {
    this.backend = backend;
    this.metrics = metrics;
    this.maxOpen = maxOpen;
  }

  get full(): boolean {
    return this.open.size >= this.maxOpen;
  }

  /** Answers with the stream. Rejects, with nothing sent, if Redis refuses or is out of reach. */
  async start(response: ServerResponse, { kind, channel }: Subscription): Promise<void> {
    this.open.add(response);
    const redis = this.backend.subscriber();
    redis.on("error", () => undefined);
    response.on("close", () => {
      this.open.delete(response);
      this.metrics.subscribers.set(this.open.size);
      redis.disconnect();
    });
    try {
      await redis.connect();
      forward(redis, response, this.metrics);
      await (kind === "subscribe" ? redis.subscribe(channel) : redis.psubscribe(channel as string));
    } catch (error) {
      redis.disconnect();
      this.open.delete(response);
      throw error;
    }
    if (response.destroyed) return redis.disconnect();
    this.metrics.subscribers.set(this.open.size);
    response.writeHead(200, {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-cache",
      "x-accel-buffering": "no",
    });
    write(response, event([kind, channel, "1"]), this.metrics);
    const heartbeat = setInterval(() => write(response, ": \n\n", this.metrics), HEARTBEAT_MS);
    response.on("close", () => clearInterval(heartbeat));
    // Without Redis the client is to notice and come back.
    redis.on("end", () => response.end());
  }

  close(): void {
    for (const response of this.open) response.end();
  }
}

function forward(redis: Redis, response: ServerResponse, metrics: RestMetrics): void {
  redis.on("messageBuffer", (channel: Buffer, message: Buffer) => {
    write(response, event(["message", channel, message]), metrics);
  });
  redis.on("pmessageBuffer", (pattern: string | Buffer, channel: Buffer, message: Buffer) => {
    write(response, event(["pmessage", pattern, channel, message]), metrics);
  });
}

/** Line breaks in a message become further `data:` lines of the same event. */
function event(words: readonly (string | Buffer)[]): string {
  const lines = words
    .map(String)
    .join(",")
    .split(/\r\n|\r|\n/);
  return `${lines.map((line) => `data: ${line}\n`).join("")}\n`;
}

function write(response: ServerResponse, text: string, metrics: RestMetrics): void {
  if (response.writableLength > MAX_UNREAD_BYTES) response.destroy();
  if (response.destroyed || !response.headersSent) return;
  metrics.sent(Buffer.byteLength(text));
  response.write(text);
}
