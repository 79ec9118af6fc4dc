/** The bus inside workerd, over both ways to a WebSocket there: it connects, publishes, consumes and moves snapshots. */

import { afterAll, beforeAll, expect, it } from "vitest";
import { describeWithNats, type NatsServer, startNats } from "../support/servers.ts";
import { bundleWorker, type RunningWorker, runWorker } from "../support/worker-bundle.ts";
import { batch, closeAll, connected, KEY, until } from "./rig.ts";

describeWithNats("in workerd", () => {
  let server: NatsServer;
  let worker: RunningWorker;
  beforeAll(async () => {
    server = await startNats();
    worker = await runWorker(await bundleWorker("test/nats/bus-worker.ts"), {});
  });
  afterAll(async () => {
    await closeAll();
    await worker?.close();
    await server?.stop();
  });

  it("a Worker and a Node process hear each other", async () => {
    const { bus: indexer } = await connected(server.url, { role: "indexer" });
    const { bus: agent } = await connected(server.url, { role: "agent" });
    const heard: string[] = [];
    indexer.onKv(({ worker, sequence }, done) => {
      heard.push(`${worker} ${sequence}`);
      done();
    });
    agent.publishKv(batch(7, { ...KEY, worker: "node's" }));
    await agent.flush();
    const response = await fetch(`${worker.url}/?nats=${encodeURIComponent(server.url)}`);
    const answer = (await response.json()) as { heard: string[] };
    answer.heard.sort();
    expect(answer).toEqual({
      heard: ["n/engine 0 1", "node's 7"],
      keys: 60_000,
      errors: [],
      server: server.url,
    });
    await until(() => heard.length === 2, "both batches here");
    expect(heard.sort()).toEqual(["n/engine 0 1", "node's 7"]);
  });
});
