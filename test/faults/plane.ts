/** A distributed plane of real processes on loopback, for tests that break it: Redis, NATS, redis-rest, indexers, agents, engines, gateways. */

import { onTestFinished } from "vitest";
import { defineConfig, type KedgeConfigInput } from "../../src/config/index.ts";
import type { FleetRow } from "../../src/fleet/types.ts";
import type { IndexerStatus } from "../../src/indexer/service.ts";
import { startGatewayHost } from "../../src/node/gateway-host.ts";
import { openStore } from "../../src/node/redis-store.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import type { RedisStore } from "../../src/store/redis/index.ts";
import { freePort, type NatsServer, type RunningServer, startNats, startRedis } from "../support/servers.ts";
import { type Answer, type AskOptions, ask, type Prompt } from "./load.ts";
import { KedgeProcess } from "./process.ts";
import { promptOf } from "./prompts.ts";
import { Truth } from "./truth.ts";

/** Parts take their time on a machine that others use too. */
const SOON = { timeout: 30_000, interval: 50 };
const TOKEN = "faults";
export const REGION = "eu";
/** Longer than the edge's 50 ms, for all parts share this machine's few cores. */
export const DEADLINE_MS = 150;
/** Small caches, so that they turn over under load. */
const BLOCKS = 160;
const EVENTS = { enable_kv_cache_events: true, publisher: "zmq", topic: "kv-events" };

export interface Engine {
  readonly worker: string;
  readonly url: string;
  readonly process: KedgeProcess;
  readonly agent: KedgeProcess;
}

export interface Gateway {
  readonly url: string;
  /** What it warned of. */
  readonly warnings: readonly string[];
  ask(prompt: Prompt, options?: AskOptions): Promise<Answer>;
  /** Sum of all series of a metric. */
  metric(name: string): Promise<number>;
  close(): Promise<void>;
}

export interface PlaneOptions {
  readonly engines?: number;
  /** Parts of the view's index; default 1. */
  readonly shards?: number;
  /** Further arguments of redis-server. */
  readonly redis?: readonly string[];
  /** Port by which redis-rest reaches Redis, given Redis' own; default: directly. */
  readonly lineToRedis?: (port: number) => Promise<number>;
  /** Flags of the mock engines that win over those they have anyway. */
  readonly engineFlags?: readonly string[];
}

export class Plane {
  redis!: RunningServer;
  nats!: NatsServer;
  rest!: KedgeProcess;
  readonly indexers: { readonly url: string; readonly process: KedgeProcess }[] = [];
  readonly engines: Engine[] = [];
  /** The view as tools see it. */
  store!: RedisStore;
  private truth!: Truth;
  /** Prompts that gateways were asked one by one. */
  private readonly asked = new Set<Prompt>();
  private restUrl = "";
  private shards = 1;
  private signingKey = "";
  private jwks = "";
  private readonly processes: KedgeProcess[] = [];
  private readonly closing: (() => Promise<unknown>)[] = [];

  /** Everything but gateways; ends with the test. Resolves when all workers are in the fleet. */
  static async start(options: PlaneOptions = {}): Promise<Plane> {
    const { engines = 2, shards = 1, redis = [], lineToRedis, engineFlags = [] } = options;
    const plane = new Plane();
    plane.shards = shards;
    onTestFinished(() => plane.close());
    const keys = await newPlanKeys();
    plane.signingKey = JSON.stringify(keys.privateJwks);
    plane.jwks = JSON.stringify(keys.publicJwks);
    [plane.redis, plane.nats] = await Promise.all([startRedis({ args: redis }), startNats()]);
    await plane.startRest((await lineToRedis?.(plane.redis.port)) ?? plane.redis.port);
    plane.store = openStore(plane.config());
    plane.truth = await Truth.of(plane.store);
    await Promise.all([
      plane.addIndexer(),
      ...Array.from({ length: engines }, (_, i) => plane.addEngine(i, engineFlags)),
    ]);
    await plane.until("all workers serve", async () => (await plane.fleet()).length === engines);
    return plane;
  }

  config(more: KedgeConfigInput = {}) {
    return defineConfig({
      port: 0,
      explain: true,
      plan: { signingKey: this.signingKey },
      limits: { drainTimeoutMs: 1_000 },
      ...more,
      store: {
        url: this.restUrl,
        token: TOKEN,
        shards: this.shards,
        deadlineMs: DEADLINE_MS,
        ...more.store,
      },
    });
  }

  /** In this process, where the test hears all that it says. */
  async gateway(more: KedgeConfigInput = {}): Promise<Gateway> {
    const warnings: string[] = [];
    const host = await startGatewayHost({
      config: this.config(more),
      log: (level, message, fields) => warnings.push(`${level} ${message} ${JSON.stringify(fields ?? {})}`),
    });
    this.closing.push(() => host.close());
    return {
      url: host.url,
      warnings,
      ask: (prompt, options) => {
        this.asked.add(prompt);
        return ask(host.url, prompt, options);
      },
      metric: async (name) => sumOf(await (await fetch(`${host.url}/metrics`)).text(), name),
      close: () => host.close(),
    };
  }

  /** Settings of a gateway Worker. */
  get workerSettings(): Readonly<Record<string, string>> {
    return {
      ...this.storeSettings,
      KEDGE_STORE_DEADLINE_MS: `${DEADLINE_MS}`,
      KEDGE_PLAN_KEY: this.signingKey,
      KEDGE_EXPLAIN: "true",
    };
  }

  closeAtEnd(close: () => Promise<unknown>): void {
    this.closing.push(close);
  }

  async addIndexer(): Promise<void> {
    const port = await freePort();
    const process = this.process(`indexer-${this.indexers.length}`, ["indexer", "--port", `${port}`], {
      ...this.storeSettings,
      ...this.busSettings,
      KEDGE_REGION: REGION,
    });
    this.indexers.push({ url: `http://127.0.0.1:${port}`, process });
    await process.start();
  }

  /** At the same place; empty unless the arguments name a folder with a dump. */
  async restartRedis(args: readonly string[] = []): Promise<void> {
    this.redis = await startRedis({ port: this.redis.port, args });
  }

  /** At the same place, with the streams it had or with none. */
  async restartNats(streams: "kept" | "lost"): Promise<void> {
    const { port, storeDir } = this.nats;
    this.nats = await startNats({ port, ...(streams === "kept" && { storeDir }) });
  }

  async fleet(): Promise<readonly FleetRow[]> {
    return this.store.fleet(0);
  }

  incarnationOf(rows: readonly FleetRow[], worker: string): string | null {
    return rows.find((row) => row.worker === worker)?.incarnation ?? null;
  }

  async indexer(index: number): Promise<IndexerStatus> {
    const response = await fetch(`${this.indexers[index]!.url}/status`);
    return (await response.json()) as IndexerStatus;
  }

  /** Where the view differs from the engines' block tables. `prompts`: all that were sent besides by `ask` of a gateway. */
  differences(prompts: readonly Prompt[], engines: readonly Engine[] = this.engines): Promise<string[]> {
    return this.truth.differences(engines, [...this.asked, ...prompts]);
  }

  /** Resolves when the view says of every worker exactly what its engine's block table says. */
  async indexIsTrue(
    prompts: readonly Prompt[],
    engines: readonly Engine[] = this.engines,
    withinMs: number = SOON.timeout,
  ): Promise<void> {
    let found: string[] = [];
    await this.until(
      () => `the index equals the block tables: ${found.join("; ")}`,
      async () => {
        found = await this.differences(prompts, engines);
        return found.length === 0;
      },
      withinMs,
    );
  }

  /** Once nothing else is asked: what gateways promise of a prompt is what its engine has, short by at most a chunk and a block. */
  async promisesAreKept(gateways: readonly Gateway[]): Promise<void> {
    for (const gateway of gateways) {
      let last: Answer | null = null;
      await this.until(
        () => `a promise that is kept: ${JSON.stringify(last)}`,
        async () => {
          last = await gateway.ask(promptOf(9, 9));
          const { wrong, claimed, cached } = last;
          return wrong === null && cached > 64 && claimed <= cached && claimed > cached - 64;
        },
      );
    }
  }

  /** Prompts to these gateways are routed by a view that hears every worker. */
  async isExact(gateways: readonly Gateway[], withinMs = SOON.timeout): Promise<void> {
    for (const gateway of gateways) {
      let said = "";
      await this.until(
        () => `rung exact instead of ${said}`,
        async () => {
          const answers = await Promise.all([1, 2, 3, 4].map((i) => gateway.ask(promptOf(i, i))));
          const other = answers.find((answer) => answer.wrong !== null || answer.rung !== "exact");
          said = other?.wrong ?? other?.rung ?? "nothing";
          return other === undefined;
        },
        withinMs,
      );
    }
  }

  /**
   * Polls until it holds; a part that does not answer counts as no, an assertion that fails ends it. Errors: when it does not hold within
   * the time, what is not so and what the parts said last.
   */
  async until(
    what: string | (() => string),
    holds: () => boolean | Promise<boolean>,
    withinMs = SOON.timeout,
  ): Promise<void> {
    const endMs = performance.now() + withinMs;
    let thrown: unknown = null;
    const isSo = async (): Promise<boolean> => {
      try {
        thrown = null;
        return await holds();
      } catch (error) {
        if ((error as Error).name === "AssertionError") throw error;
        thrown = error;
        return false;
      }
    };
    while (!(await isSo())) {
      if (performance.now() < endMs) {
        await new Promise((resolve) => setTimeout(resolve, SOON.interval));
        continue;
      }
      const words = this.processes.map(({ name, lines }) => `${name}:\n  ${lines.slice(-8).join("\n  ")}`);
      const why = thrown === null ? "" : ` (${thrown})`;
      throw new Error(`still not: ${typeof what === "string" ? what : what()}${why}\n${words.join("\n")}`);
    }
  }

  private get storeSettings(): Record<string, string> {
    return {
      KEDGE_REDIS_URL: this.restUrl,
      KEDGE_REDIS_TOKEN: TOKEN,
      KEDGE_VIEW_SHARDS: `${this.shards}`,
    };
  }

  private get busSettings(): Record<string, string> {
    return { KEDGE_NATS_URL: this.nats.url };
  }

  private async startRest(redisPort: number): Promise<void> {
    const port = await freePort();
    const flags = ["--port", `${port}`, "--redis", `redis://127.0.0.1:${redisPort}`];
    this.restUrl = `http://127.0.0.1:${port}`;
    this.rest = this.process("redis-rest", ["redis-rest", ...flags], { KEDGE_REST_TOKEN: TOKEN });
    await this.rest.start();
  }

  /** An engine and the agent of its node. */
  private async addEngine(i: number, flags: readonly string[]): Promise<void> {
    const worker = `w${i}`;
    const ports = await Promise.all([freePort(), freePort(), freePort(), freePort()]);
    const [port, events, replay, door] = ports as [number, number, number, number];
    const config = { ...EVENTS, endpoint: `tcp://*:${events}`, replay_endpoint: `tcp://*:${replay}` };
    const process = this.process(`engine-${i}`, [
      ...["mock-engine", "--port", `${port}`, "--profile", "zero", "--seed", `${i}`],
      ...["--num-gpu-blocks-override", `${BLOCKS}`, "--kv-events-config", JSON.stringify(config)],
      ...flags,
    ]);
    const url = `http://127.0.0.1:${port}`;
    const sockets = `events=tcp://127.0.0.1:${events},replay=tcp://127.0.0.1:${replay}`;
    const agent = this.process(
      `agent-${i}`,
      [
        ...["agent", "--port", `${door}`, "--json"],
        ...["--engine", `${url},id=${worker},${sockets},model=gpu-agent/engines/mock/model`],
      ],
      {
        ...this.busSettings,
        KEDGE_REGION: REGION,
        KEDGE_NODE: `node-${i}`,
        KEDGE_PLAN_JWKS: this.jwks,
      },
    );
    this.engines.push({ worker, url, process, agent });
    await process.start();
    await agent.start();
  }

  private process(name: string, args: readonly string[], env?: Readonly<Record<string, string>>) {
    const process = new KedgeProcess(name, args, env);
    this.processes.push(process);
    return process;
  }

  /** Whoever speaks to another ends before it. */
  private async close(): Promise<void> {
    for (const close of this.closing.splice(0).reverse()) await close();
    await Promise.all(this.processes.map((process) => process.stop()));
    await Promise.all([this.nats?.stop("SIGKILL"), this.redis?.stop("SIGKILL")]);
  }
}

function sumOf(metrics: string, name: string): number {
  const lines = metrics
    .split("\n")
    .filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
  return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" ") + 1)), 0);
}
