/** Kept-alive connections to one engine: a free list of undici clients, one request at a time on each. */

import { Client } from "undici";

/** Below uvicorn's 5 s, so that this side lets an idle connection go first. */
const KEEP_ALIVE_MS = 4_000;
const CONNECT_TIMEOUT_MS = 5_000;
/** Idle connections kept per engine. */
const MAX_IDLE = 256;

/** One connection with its history: whether it has carried an exchange decides if a reset may be retried. */
export class Connection {
  readonly client: Client;
  /** Exchanges completed since the socket was opened. */
  served = 0;

  constructor(origin: string) {
    this.client = new Client(origin, {
      pipelining: 1,
      allowH2: false,
      keepAliveTimeout: KEEP_ALIVE_MS,
      keepAliveMaxTimeout: KEEP_ALIVE_MS,
      // Deadlines are the ingress's own: a long prefill is silent for minutes.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: { timeout: CONNECT_TIMEOUT_MS, noDelay: true },
    });
    this.client.on("connect", () => {
      this.served = 0;
    });
  }
}

export class Connections {
  private readonly origin: string;
  /** Last used first, so that surplus ones fall idle and close. */
  private readonly idle: Connection[] = [];
  private closed = false;

  constructor(origin: string) {
    this.origin = origin;
  }

  take(): Connection {
    return this.idle.pop() ?? this.open();
  }

  /** A connection that has never carried anything. */
  open(): Connection {
    return new Connection(this.origin);
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
