/** The indexer between a real NATS and a real Redis: whatever is killed, stopped or emptied, the view becomes what agents published. */

import { type ChildProcess, spawn } from "node:child_process";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { connectNatsBus, natsOptions } from "../../src/events/nats/index.ts";
import { Indexer } from "../../src/indexer/index.ts";
import { monotonicClock } from "../../src/node/clock.ts";
import { type IndexerHost, startIndexer } from "../../src/node/indexer.ts";
import { openStore } from "../../src/node/redis-store.ts";
import { describeWithServers, startRedis } from "../support/servers.ts";
import { Site } from "./site.ts";

/** The machine may be busy with other suites. */
vi.setConfig({ testTimeout: 60_000 });
const SOON = { timeout: 15_000, interval: 50 };

let site: Site;
beforeEach(async () => {
  // An index in several parts has more that may be torn apart.
  site = await Site.start({ shards: 3 });
});
afterEach(() => site.close());

async function startHost(): Promise<IndexerHost & { lines: string[] }> {
  const lines: string[] = [];
  const host = await startIndexer({
    config: site.config,
    host: "127.0.0.1",
    port: 0,
    log: (level, message) => lines.push(`${level} ${message}`),
  });
  site.closeAtEnd(() => host.close());
  return { ...host, lines };
}

interface Process {
  readonly child: ChildProcess;
  readonly url: string;
  state(): Promise<string>;
  kill(signal: NodeJS.Signals): Promise<number | null>;
}

/** `kedge indexer` as a process of its own. */
async function spawnIndexer(): Promise<Process> {
  const child = spawn(process.execPath, ["src/node/cli/main.ts", "indexer", "--port", "0", "--json"], {
    env: { PATH: process.env.PATH, ...site.environment },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const exited = new Promise<number | null>((resolve) => child.once("exit", resolve));
  const kill = (signal: NodeJS.Signals): Promise<number | null> => {
    child.kill(signal);
    return exited;
  };
  site.closeAtEnd(() => kill("SIGKILL"));
  const line = await new Promise<string>((resolve, reject) => {
    let heard = "";
    child.stdout!.on("data", (chunk: Buffer) => {
      heard += chunk.toString();
      if (heard.includes("\n")) resolve(heard);
    });
    child.once("exit", (code) => reject(new Error(`it ended with ${code}`)));
  });
  const { url } = JSON.parse(line) as { url: string };
  const state = async (): Promise<string> =>
    ((await (await fetch(`${url}/status`)).json()) as { state: string }).state;
  return { child, url, state, kill };
}

describeWithServers("the view becomes what agents published", () => {
  it("through a single indexer, restarts of engines included", async () => {
    const host = await startHost();
    site.addAgent("a", 4, 1);
    site.addAgent("b", 4, 2);
    await site.publish(100, (round) => {
      if (round === 50) site.agents[0]!.restartFirst();
    });
    await site.converged();
    expect(host.service.status()).toMatchObject({
      state: "leading",
      natsConnected: true,
      viewReachable: true,
    });
    expect(await (await fetch(`${host.url}/ready`)).json()).toMatchObject({ ready: true });
    const metrics = await (await fetch(`${host.url}/metrics`)).text();
    expect(metrics).toContain('kedge_indexer_lag_events{worker="a-0",rank="0"} 0');
    expect((await fetch(`${host.url}/nothing`)).status).toBe(404);
  });

  it("when the indexer is killed in the middle of its writes and another takes over", async () => {
    const first = await spawnIndexer();
    site.addAgent("a", 6, 3);
    await expect.poll(() => first.state(), SOON).toBe("leading");
    const second = await spawnIndexer();
    await expect.poll(() => second.state(), SOON).toBe("standby");
    let killedAtMs = 0;
    await site.publish(200, async (round) => {
      if (round !== 100) return;
      await first.kill("SIGKILL");
      killedAtMs = performance.now();
    });
    await expect.poll(() => second.state(), SOON).toBe("leading");
    console.log(`standby led ${Math.round(performance.now() - killedAtMs)} ms after the kill`);
    await site.converged();
    // A clean stop leaves the lease to whoever comes.
    expect(await second.kill("SIGTERM")).toBe(0);
    const third = await startHost();
    await expect.poll(() => third.service.status().state, SOON).toBe("leading");
    await site.publish(10);
    await site.converged();
  });

  it("when Redis is emptied, and when it is stopped and started empty", async () => {
    await startHost();
    site.addAgent("a", 8, 4);
    await site.publish(100);
    await site.converged();
    await site.emptyRedis();
    expect(await site.differences()).not.toEqual([]);
    const emptiedAtMs = performance.now();
    await site.converged();
    console.log(`idle fleet of 8 refilled ${Math.round(performance.now() - emptiedAtMs)} ms after FLUSHALL`);
    const { port } = site.redis;
    await site.publish(100, async (round) => {
      if (round === 20) await site.redis.stop("SIGKILL");
      if (round === 80) site.redis = await startRedis({ port });
    });
    await site.converged();
  });

  it("when NATS is stopped and started again", async () => {
    const { service } = await startHost();
    site.addAgent("a", 6, 5);
    await site.publish(50);
    await site.converged();
    await site.stopNats();
    await site.publish(50);
    await expect.poll(() => service.status().natsConnected, SOON).toBe(false);
    expect(service.ready).toBe(false);
    // The feed is seen to lag, and nobody is expired: all are silent, and so is the indexer's own heartbeat.
    const lagging = async (): Promise<number> =>
      (await site.store.fleet(0)).filter(({ feed }) => feed.lagMs > 2_000).length;
    await expect.poll(lagging, { timeout: 3_500 }).toBe(6);
    await site.startNatsAgain();
    await site.publish(50, async () => expect(await site.store.fleet(0)).toHaveLength(6));
    await site.converged();
    expect(service.ready).toBe(true);
  });

  it("when two indexers believe to lead and share the log", async () => {
    for (const name of ["one", "two"]) {
      const bus = connectNatsBus(
        natsOptions(site.config, {
          role: "indexer",
          name,
          timers: monotonicClock,
          random: Math.random,
          onError: () => undefined,
        }),
      );
      const indexer = new Indexer({
        bus,
        store: openStore(site.config),
        now: () => performance.now(),
        name,
        remote: { timers: monotonicClock },
        onError: () => undefined,
      });
      indexer.start();
      const ticking = setInterval(() => indexer.tick(), 1_000);
      site.closeAtEnd(async () => {
        clearInterval(ticking);
        await indexer.stop();
        await bus.close();
      });
    }
    site.addAgent("a", 4, 6);
    await site.publish(150);
    await site.converged();
  });
});

describeWithServers("an idle fleet", () => {
  it("costs at most five commands a second; the workers of an agent that dies leave within five seconds and a fold", async () => {
    await startHost();
    site.addAgent("a", 16, 7);
    site.addAgent("b", 16, 8);
    await site.publish(3);
    await site.converged();
    const before = site.rest.stats().commands;
    const seconds = 6;
    await new Promise((resolve) => setTimeout(resolve, seconds * 1_000));
    const perSecond = (site.rest.stats().commands - before) / seconds;
    console.log(`${perSecond.toFixed(2)} commands per second for 32 idle ranks`);
    expect(perSecond).toBeLessThanOrEqual(5);

    const [killed] = site.agents.splice(1, 1);
    const lastWordAtMs = performance.now();
    await killed!.close();
    const left = async (): Promise<number> => (await site.store.fleet(0)).length;
    await expect.poll(left, { timeout: 6_500, interval: 50 }).toBe(16);
    console.log(`a dead agent's workers left ${Math.round(performance.now() - lastWordAtMs)} ms after it`);
  });
});
