/** Serves a gateway on node:http: no Nagle, streams written straight to the socket, a clean end. */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { getRequestListener } from "@hono/node-server";
import type { Hono } from "hono";
import type { GatewayEnv } from "../gateway/index.ts";
import { NodeClient } from "./http/node-client.ts";
import { listenAt } from "./listen.ts";

export interface ServeOptions {
  readonly app: Hono<GatewayEnv>;
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  /** How long `close` waits for requests under way before it breaks their connections. */
  readonly drainTimeoutMs?: number;
}

export interface ServedGateway {
  readonly url: string;
  /** Accepts no more, lets requests under way finish, then breaks what is left. Safe to call twice. */
  close(): Promise<void>;
}

const DEFAULT_DRAIN_MS = 30_000;
/** Above the usual idle time of load balancers, so that they close first. */
const KEEP_ALIVE_MS = 75_000;
/** How often a closing server looks for connections that have nothing more to do. */
const CLOSE_POLL_MS = 20;
const MAX_HEADER_BYTES = 32 * 1024;

/** Errors: what listening gives, e.g. EADDRINUSE. */
export async function serveGateway(options: ServeOptions): Promise<ServedGateway> {
  const { app, host, port, drainTimeoutMs = DEFAULT_DRAIN_MS } = options;
  const listener = getRequestListener(
    (request, env) => {
      const incoming = env.incoming as IncomingMessage;
      return app.fetch(request, { client: new NodeClient(incoming, env.outgoing as ServerResponse) });
    },
    { overrideGlobalObjects: false },
  );
  const server = createServer(
    { noDelay: true, keepAlive: true, keepAliveTimeout: KEEP_ALIVE_MS, maxHeaderSize: MAX_HEADER_BYTES },
    listener,
  );
  // Requests that a client sends ahead each listen for the end of its one connection.
  server.on("connection", (socket) => socket.setMaxListeners(0));
  const answers = countAnswers(server);
  const url = await listenAt(server, host, port);
  let closing: Promise<void> | null = null;
  return {
    url,
    close: () => {
      closing ??= closeServer(server, answers, drainTimeoutMs);
      return closing;
    },
  };
}

interface Answers {
  /** Requests whose answer has not left yet. */
  open: number;
}

function countAnswers(server: Server): Answers {
  const answers: Answers = { open: 0 };
  server.on("request", (_request, response) => {
    answers.open++;
    response.once("close", () => answers.open--);
  });
  return answers;
}

/** `closeIdleConnections` spares connections that never carried a request, and clients keep such in reserve. */
function closeServer(server: Server, answers: Answers, drainTimeoutMs: number): Promise<void> {
  return new Promise((resolve) => {
    const force = setTimeout(() => server.closeAllConnections(), drainTimeoutMs);
    const idle = setInterval(() => {
      if (answers.open === 0) server.closeAllConnections();
      else server.closeIdleConnections();
    }, CLOSE_POLL_MS);
    server.close(() => {
      clearTimeout(force);
      clearInterval(idle);
      resolve();
    });
  });
}
