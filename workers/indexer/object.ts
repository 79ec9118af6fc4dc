/** The indexer as a Durable Object, one per region: woken by its alarm for ever, made anew from nothing whenever it was evicted. */

import { DurableObject } from "cloudflare:workers";
import type { KedgeConfig } from "../../src/config/index.ts";
import { connectNatsBus, natsOptions } from "../../src/events/nats/index.ts";
import { IndexerService, type ServiceLog, type Timers } from "../../src/indexer/index.ts";
import { RedisStore, redisStoreOptions } from "../../src/store/redis/index.ts";
import { PROMETHEUS_CONTENT_TYPE } from "../../src/telemetry/registry.ts";
import { type IndexerBindings, readConfig } from "./environment.ts";

/** Sockets keep an object in memory for 15 minutes at most, idle ones are evicted after 70 s. */
const ALARM_EVERY_MS = 30_000;
/** Alarms in a row that may find no connection before everything is made anew. */
const PATIENCE_ALARMS = 4;
/** Nobody waits for these reads as a request does. */
const DEADLINE_MS = 2_000;

const timers: Timers = {
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as number),
};

const log: ServiceLog = (level, message, fields) => {
  const line = JSON.stringify({ level, message, ...fields });
  if (level === "info") console.log(line);
  else console.warn(line);
};

/** What it knows is in the view, watermarks included; nothing is kept in the object's own storage but its alarm. */
export class IndexerObject extends DurableObject<IndexerBindings> {
  protected readonly alarmEveryMs: number = ALARM_EVERY_MS;
  #service: IndexerService | null = null;
  #unconnectedAlarms = 0;

  /** `POST /start`, `GET /status`, `GET /metrics`: each starts it if it does not run. Errors: `config_invalid`. */
  async fetch(request: Request): Promise<Response> {
    const service = await this.#running();
    if (new URL(request.url).pathname !== "/metrics") return Response.json(service.status());
    return new Response(service.metrics(), { headers: { "content-type": PROMETHEUS_CONTENT_TYPE } });
  }

  async alarm(): Promise<void> {
    // First of all, so that no failure is the last.
    await this.ctx.storage.setAlarm(Date.now() + this.alarmEveryMs);
    const service = await this.#running();
    this.#unconnectedAlarms = service.status().natsConnected ? 0 : this.#unconnectedAlarms + 1;
    if (this.#unconnectedAlarms < PATIENCE_ALARMS) return;
    this.#unconnectedAlarms = 0;
    this.#service = null;
    await service.stop();
    await this.#running();
  }

  async #running(): Promise<IndexerService> {
    if (this.#service === null) {
      this.#service = startService(readConfig(this.env));
      if ((await this.ctx.storage.getAlarm()) === null)
        await this.ctx.storage.setAlarm(Date.now() + this.alarmEveryMs);
    }
    return this.#service;
  }
}

function startService(config: KedgeConfig): IndexerService {
  // Of one object there is one at a time: after an eviction it keeps its own lease.
  const name = `durable-object-${config.place.region}`;
  const options = redisStoreOptions(config);
  const service = new IndexerService({
    config,
    name,
    store: new RedisStore({
      ...options,
      deadlineMs: Math.max(options.deadlineMs, DEADLINE_MS),
      clock: { now: () => performance.now(), ...timers },
      random: Math.random,
    }),
    connect: (hooks) =>
      connectNatsBus(natsOptions(config, { ...hooks, role: "indexer", name, timers, random: Math.random })),
    timers,
    now: () => performance.now(),
    log,
  });
  service.start();
  return service;
}
