/** The indexer as a process: Redis and NATS from the settings, and a small HTTP server for probes and metrics. */

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { KedgeConfig } from "../config/index.ts";
import { connectNatsBus, natsOptions } from "../events/nats/index.ts";
import { IndexerService, type ServiceLog } from "../indexer/index.ts";
import { PROMETHEUS_CONTENT_TYPE } from "../telemetry/registry.ts";
import { monotonicClock } from "./clock.ts";
import { cannotListen, listenAt } from "./listen.ts";
import { nodeName } from "./node-engines.ts";
import { openStore } from "./redis-store.ts";
import { requireSettings } from "./required-settings.ts";

export interface IndexerHostOptions {
  readonly config: KedgeConfig;
  /** Where probes and metrics are served; port 0: any. */
  readonly host: string;
  readonly port: number;
  readonly log: ServiceLog;
  /** Life of the lease in the view; default 6 s. */
  readonly leaseTtlMs?: number;
}

export interface IndexerHost {
  readonly url: string;
  readonly service: IndexerService;
  /** Gives up the lease and ends. Safe to call twice. */
  close(): Promise<void>;
}

/**
 * Resolves when probes are served; Redis and NATS may come later. Errors: `config_invalid` for settings that are missing or an
 * address that cannot be listened on.
 */
export async function startIndexer(options: IndexerHostOptions): Promise<IndexerHost> {
  const { config, log, leaseTtlMs } = options;
  requireSettings(config, ["store.url", "store.token", "nats.url"], "An indexer");
  const node = nodeName(config);
  const name = `${node}-${process.pid}-${randomUUID().slice(0, 8)}`;
  const store = openStore(config);
  const nats = (hooks: Pick<Parameters<typeof natsOptions>[1], "onError" | "onStatus">) =>
    natsOptions(config, {
      ...hooks,
      role: "indexer",
      name,
      timers: monotonicClock,
      random: Math.random,
      hostName: node,
      readFile: (path) => readFileSync(path, "utf8"),
    });
  // Settings at fault are told before anything runs.
  nats({ onError: () => undefined });
  const server = createServer();
  const url = await listenAt(server, options.host, options.port).catch((thrown) => {
    throw cannotListen(thrown, options.host, options.port);
  });
  const service = new IndexerService({
    config,
    name,
    store,
    connect: (hooks) => connectNatsBus(nats(hooks)),
    timers: monotonicClock,
    now: () => performance.now(),
    log,
    ...(leaseTtlMs !== undefined && { leaseTtlMs }),
  });
  serveProbes(server, service);
  service.start();
  return {
    url,
    service,
    close: async () => {
      await service.stop();
      server.closeAllConnections();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

function serveProbes(server: Server, service: IndexerService): void {
  const routes: Readonly<Record<string, () => readonly [status: number, type: string, body: string]>> = {
    "/live": () => [200, "text/plain", "ok\n"],
    "/ready": () => {
      const { state, natsConnected, viewReachable } = service.status();
      const body = JSON.stringify({ ready: service.ready, state, natsConnected, viewReachable });
      return [service.ready ? 200 : 503, "application/json", `${body}\n`];
    },
    "/status": () => [200, "application/json", `${JSON.stringify(service.status())}\n`],
    "/metrics": () => [200, PROMETHEUS_CONTENT_TYPE, service.metrics()],
  };
  server.on("request", (request, response) => {
    const route = routes[(request.url ?? "").split("?")[0]!];
    const allowed = request.method === "GET" || request.method === "HEAD";
    const [status, type, body] =
      route === undefined
        ? ([404, "text/plain", "There are /live, /ready, /status and /metrics.\n"] as const)
        : allowed
          ? route()
          : ([405, "text/plain", "GET only.\n"] as const);
    response.writeHead(status, { "content-type": type, "cache-control": "no-store" });
    response.end(request.method === "HEAD" ? undefined : body);
  });
}
