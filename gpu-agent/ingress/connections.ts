/** Kept-alive connections to one engine or door: a free list of undici clients, one request at a time on each. */

import { Client } from "undici";

export interface ConnectionTimes {
  /** An idle connection is let go after so long; below the other end's own time, so that this side goes first. */
  readonly keepAliveMs: number;
  readonly connectTimeoutMs: number;
}

/** uvicorn lets an idle connection go after 5 s. */
const ENGINE_TIMES: ConnectionTimes = { keepAliveMs: 4_000, connectTimeoutMs: 5_000 };
/** Idle connections kept per address. */
const MAX_IDLE = 256;

/** One connection with its history: whether it has carried an exchange decides if a reset may be retried. */
export class Connection {
  readonly client: Client;
  /** Exchanges completed since the socket was opened. */
  served = 0;

  constructor(origin: string, { keepAliveMs, connectTimeoutMs }: ConnectionTimes) {
    this.client = new Client(origin, {
      pipelining: 1,
      allowH2: false,
      keepAliveTimeout: keepAliveMs,
      keepAliveMaxTimeout: keepAliveMs,
      // Deadlines are the ingress's own: a long prefill is silent for minutes.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: { timeout: connectTimeoutMs, noDelay: true },
    });
    this.client.on("connect", () => {
      this.served = 0;
    });
  }
}

export class Connections {
  private readonly origin: string;
  private readonly times: ConnectionTimes;
  /** Last used first, so that surplus ones fall idle and close. */
  private readonly idle: Connection[] = [];
  private closed = false;

  constructor(origin: string, times: ConnectionTimes = ENGINE_TIMES) {
    this.origin = origin;
    this.times = times;
  }

  take(): Connection {
    return this.idle.pop() ?? this.open();
  }

  /** A connection that has never carried anything. */
  open(): Connection {
    return new Connection(this.origin, this.times);
  }

  giveBack(connection: Connection): void {
    if (this.closed || this.idle.length >= MAX_IDLE) void connection.client.destroy();
    else this.idle.push(connection);
  }

  close(): void {
    this.closed = true;
    for (const connection of this.idle.splice(0)) void connection.client.destroy();
  }
}
