/** What the bus promises when servers stop, hang, come late or forget, and when messages are broken or too many. */

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, headers } from "nats.ws";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import { encodeKey, encodeSnapshot } from "../../src/events/codec.ts";
import type { IncarnationKey } from "../../src/fleet/types.ts";
import type { KvBatch } from "../../src/store/types.ts";
import { describeWithNats, freePort, type NatsServer, startNats } from "../support/servers.ts";
import { batch, closeAll, connected, KEY, load, registration, rig, snapshot, until } from "./rig.ts";

const sequences = (batches: readonly KvBatch[]) => batches.map(({ sequence }) => sequence);
const upTo = (count: number) => Array.from({ length: count }, (_, i) => i + 1);

describeWithNats("with one server that stays", () => {
  let server: NatsServer;
  beforeAll(async () => {
    server = await startNats();
  });
  afterEach(closeAll);
  afterAll(() => server?.stop());

  it("delivers again what nobody was done with, and only that", async () => {
    const stream = { stream: "AGAIN", prefix: "again" };
    const { bus: indexer } = await connected(server.url, { role: "indexer", ackWaitMs: 400, ...stream });
    const { bus: agent } = await connected(server.url, { role: "agent", ...stream });
    const heard: number[] = [];
    indexer.onKv(({ sequence }, done) => {
      heard.push(sequence);
      if (sequence !== 2 || heard.length > 3) done();
    });
    for (const sequence of upTo(3)) agent.publishKv(batch(sequence));
    await until(() => heard.length === 4, "a second delivery");
    expect(heard).toEqual([1, 2, 3, 2]);
    await until(() => indexer.status().pendingAcks === 0, "all done");
    expect(indexer.status()).toMatchObject({ received: 4, redelivered: 1 });
  });

  it("hands what an indexer was not done with to the next one when it closes", async () => {
    const stream = { stream: "HANDOVER", prefix: "handover" };
    const { bus: first } = await connected(server.url, { role: "indexer", ...stream });
    const { bus: agent } = await connected(server.url, { role: "agent", ...stream });
    const heard: number[] = [];
    first.onKv(({ sequence }) => heard.push(sequence));
    for (const sequence of upTo(3)) agent.publishKv(batch(sequence));
    await until(() => heard.length === 3, "three batches");
    await first.close();
    const { bus: second } = await connected(server.url, { role: "indexer", ...stream });
    const taken: number[] = [];
    second.onKv(({ sequence }, done) => {
      taken.push(sequence);
      done();
    });
    await until(
      () => taken.length === 3,
      "the same three",
      () => taken,
      5_000,
    );
    expect(taken.sort()).toEqual([1, 2, 3]);
  });

  it("goes on where it stopped when nobody listened for a while, as an indexer does that stood by", async () => {
    const stream = { stream: "STANDBY", prefix: "standby" };
    const { bus: indexer } = await connected(server.url, { role: "indexer", ...stream });
    const { bus: agent } = await connected(server.url, { role: "agent", ...stream });
    const heard: number[] = [];
    const listen = () =>
      indexer.onKv(({ sequence }, done) => {
        heard.push(sequence);
        done();
      });
    agent.publishKv(batch(1));
    expect(await agent.flush()).toBe(true);
    expect(indexer.status()).toMatchObject({ consumerLag: null, received: 0 });
    const leave = listen();
    await until(() => heard.length === 1 && indexer.status().pendingAcks === 0, "the first");
    leave();
    expect(indexer.status().consumerLag).toBeNull();
    for (const sequence of upTo(101)) agent.publishKv(batch(sequence));
    await agent.flush();
    // It leaves with the first; what was on its way to it is not held back until the acknowledgement time is over.
    const leaveAtOnce = indexer.onKv((_, done) => {
      leaveAtOnce();
      done();
    });
    await until(() => indexer.status().received > 1, "one more");
    const leaveAgain = listen();
    await until(
      () => heard.length === 100,
      "the others",
      () => heard,
    );
    expect(new Set(heard).size).toBe(100);
    leaveAgain();
  });

  it("stores a batch once that is published twice", async () => {
    const stream = { stream: "TWICE", prefix: "twice" };
    const { bus: indexer } = await connected(server.url, { role: "indexer", ...stream });
    const { bus: agent } = await connected(server.url, { role: "agent", ...stream });
    const heard: KvBatch[] = [];
    indexer.onKv((value, done) => {
      heard.push(value);
      done();
    });
    for (const sequence of [1, 1, 2, 1, 3]) agent.publishKv(batch(sequence));
    await until(() => heard.length === 3, "three batches");
    await agent.flush();
    expect(agent.status().published).toBe(5);
    expect(sequences(heard)).toEqual([1, 2, 3]);
  });

  it("counts and passes over what cannot be read, on every channel, and goes on", async () => {
    const stream = { stream: "BROKEN", prefix: "broken" };
    const { bus: indexer, errors } = await connected(server.url, {
      role: "indexer",
      ackWaitMs: 300,
      ...stream,
    });
    const { bus: agent } = await connected(server.url, { role: "agent", ...stream });
    const heard: unknown[] = [];
    indexer.onKv((value, done) => {
      heard.push(value.sequence);
      done();
    });
    indexer.onLoad((value) => heard.push(value.sequence));
    indexer.onRegistration((value) => heard.push(value.worker));
    await until(() => indexer.status().consumerLag !== null || indexer.connected, "consuming");
    agent.publishKv(batch(1));
    await until(() => heard.length === 1, "one batch");
    const stranger = await connect({ servers: server.url });
    const garbage = new Uint8Array([0x10, 1, 255, 255, 255, 255, 1]);
    for (const channel of ["kv", "reg", "gone", "load"]) {
      stranger.publish(`broken.${channel}.r.c.n.w`, channel === "gone" ? new Uint8Array() : garbage);
    }
    // Nobody hears of `gone` here: three are refused.
    await stranger.flush();
    await until(
      () => indexer.status().undecodable === 3,
      "all refused",
      () => errors,
    );
    agent.publishRegistration(registration());
    agent.publishLoad(load(9));
    agent.publishKv(batch(2));
    await until(() => heard.length === 4, "the bus goes on");
    expect(heard).toEqual([1, 2, 9, KEY.worker].sort((a, b) => heard.indexOf(a) - heard.indexOf(b)));
    expect(errors.map(([{ code }]) => code)).toEqual([
      "invalid_request",
      "invalid_request",
      "invalid_request",
    ]);
    await stranger.close();
    expect(indexer.status().redelivered).toBe(0);
  });

  it("refuses a batch that claims another worker than its subject", async () => {
    const stream = { stream: "CLAIMS", prefix: "claims" };
    const { bus: indexer, errors } = await connected(server.url, { role: "indexer", ...stream });
    const heard: KvBatch[] = [];
    indexer.onKv((value, done) => {
      heard.push(value);
      done();
    });
    const { bus: agent } = await connected(server.url, { role: "agent", ...stream });
    agent.publishKv(batch(1));
    await until(() => heard.length === 1, "one batch");
    const stranger = await connect({ servers: server.url });
    const raw = await stranger.jetstreamManager();
    const { data } = await raw.streams.getMessage("CLAIMS", { seq: 1 });
    stranger.publish("claims.kv.r.c.n.other", data, { headers: headers() });
    await until(() => indexer.status().undecodable === 1, "refused");
    expect(errors[0]?.[0].message).toContain("n/engine 0");
    await stranger.close();
  });

  it("isolates handlers that throw", async () => {
    const { bus: indexer, errors } = await connected(server.url, {
      role: "indexer",
      prefix: "throws",
      stream: "T",
    });
    const { bus: agent } = await connected(server.url, { role: "agent", prefix: "throws", stream: "T" });
    const heard: number[] = [];
    indexer.onLoad(() => {
      throw new Error("broken");
    });
    indexer.onLoad(({ sequence }) => heard.push(sequence));
    await indexer.flush();
    agent.publishLoad(load(1));
    await agent.flush();
    agent.publishLoad(load(2));
    await until(() => heard.length === 2, "both reports");
    expect(heard).toEqual([1, 2]);
    expect(errors.map(([{ cause }]) => String(cause))).toEqual(["Error: broken", "Error: broken"]);
  });

  it("brings snapshots of 200,000 keys whole, from the right agent among several", async () => {
    const { bus: indexer } = await connected(server.url, { role: "indexer", snapshotTimeoutMs: 1_500 });
    const mine = { ...KEY, worker: "two/engine" };
    const { bus: one } = await connected(server.url, { role: "agent" });
    const { bus: two } = await connected(server.url, {
      role: "agent",
      place: { region: "r", cluster: "c", node: "two" },
    });
    one.serveSnapshots(({ worker }) => (worker === KEY.worker ? snapshot(10) : null));
    two.serveSnapshots(async ({ worker }) => (worker === mine.worker ? snapshot(200_000, mine) : null));
    await Promise.all([one.flush(), two.flush()]);
    const expected = snapshot(200_000).ops[0]!.keys;
    const check = async () => {
      const whole = await indexer.requestSnapshot(mine);
      expect(whole).toMatchObject({ ...mine, model: "m", sequence: 42 });
      const keys = whole!.ops.flatMap((op) => [...op.keys]);
      expect(keys.length).toBe(200_000);
      expect(keys.every((key, i) => key === expected[i])).toBe(true);
      for (const [i, op] of whole!.ops.entries()) {
        expect(op.parent).toBe(i === 0 ? null : whole!.ops[i - 1]!.keys.at(-1));
      }
    };
    // By broadcast first, then at its own subject.
    await check();
    two.publishRegistration(registration(mine));
    await two.flush();
    await indexer.flush();
    await check();
    expect(await indexer.requestSnapshot({ ...mine, worker: "two/other" })).toBeNull();
  });

  it.each([
    ["garbage", (key: IncarnationKey) => [encodeKey(key)]],
    [
      "another incarnation",
      (key: IncarnationKey) => [...encodeSnapshot(snapshot(5, { ...key, rank: 7 }), 8_192)],
    ],
    ["no beginning", (key: IncarnationKey) => [...encodeSnapshot(snapshot(5_000, key), 8_192)].slice(1)],
    [
      "a hole",
      (key: IncarnationKey) => [...encodeSnapshot(snapshot(5_000, key), 8_192)].filter((_, i) => i !== 2),
    ],
    ["no end", (key: IncarnationKey) => [...encodeSnapshot(snapshot(5_000, key), 8_192)].slice(0, -1)],
  ])("an answer with %s is no snapshot, and nothing waits for ever", async (_, answer) => {
    const { bus: indexer } = await connected(server.url, { role: "indexer", snapshotTimeoutMs: 300 });
    const stranger = await connect({ servers: server.url });
    stranger.subscribe("kedge.snap", {
      callback: (_error, message) => {
        for (const part of answer(KEY)) message.respond(part);
      },
    });
    await stranger.flush();
    expect(await indexer.requestSnapshot(KEY)).toBeNull();
    await stranger.close();
  });

  it("says nobody at once where a worker's own agent does not have the incarnation", async () => {
    const { bus: indexer } = await connected(server.url, { role: "indexer", snapshotTimeoutMs: 60_000 });
    await indexer.flush();
    const { bus: agent } = await connected(server.url, { role: "agent" });
    agent.serveSnapshots(() => null);
    agent.publishRegistration(registration());
    await agent.flush();
    await indexer.flush();
    expect(await indexer.requestSnapshot({ ...KEY, incarnation: "earlier" })).toBeNull();
  });

  it("says nobody at once where there is no agent at all", async () => {
    const { bus: indexer } = await connected(server.url, {
      role: "indexer",
      prefix: "empty",
      stream: "EMPTY",
      snapshotTimeoutMs: 60_000,
    });
    expect(await indexer.requestSnapshot(KEY)).toBeNull();
  });
});

describeWithNats("servers that go and come back", () => {
  const folders: string[] = [];
  const servers: NatsServer[] = [];
  const start = async (options: Parameters<typeof startNats>[0] = {}) => {
    const server = await startNats(options);
    servers.push(server);
    return server;
  };
  const folder = () => {
    const path = mkdtempSync(join(tmpdir(), "kedge-js-"));
    folders.push(path);
    return path;
  };
  afterEach(async () => {
    await closeAll();
    await Promise.all(servers.splice(0).map((server) => server.stop("SIGKILL")));
    for (const path of folders.splice(0)) rmSync(path, { recursive: true, force: true });
  });

  it.each(["the same store", "an empty store"])("all goes on after a restart with %s", async (which) => {
    const storeDir = folder();
    const first = await start({ storeDir });
    const { bus: indexer, errors } = await connected(first.url, { role: "indexer" });
    const { bus: agent, errors: agentErrors } = await connected(first.url, { role: "agent" });
    const heard: KvBatch[] = [];
    const registered: string[] = [];
    const loads: string[] = [];
    indexer.onKv((value, done) => {
      heard.push(value);
      done();
    });
    indexer.onRegistration(({ incarnation }) => registered.push(incarnation));
    indexer.onLoad(({ admitted }) => loads.push(...admitted));
    agent.onRollCall(() => agent.publishRegistration(registration()));
    agent.serveSnapshots(() => snapshot(5));
    for (const sequence of upTo(5)) agent.publishKv(batch(sequence));
    await until(() => heard.length === 5 && indexer.status().pendingAcks === 0, "five batches");
    await indexer.flush();
    await first.stop();
    await until(() => !agent.connected && !indexer.connected, "both notice");
    expect(await indexer.requestSnapshot(KEY)).toBeNull();
    for (const sequence of [6, 7, 8]) agent.publishKv(batch(sequence));
    agent.publishLoad(load(1, ["a"]));
    await agent.flush(10);
    agent.publishLoad(load(2, ["b"]));
    expect(agent.status().buffered).toBe(3);
    const before = registered.length;

    await start({ port: first.port, storeDir: which === "the same store" ? storeDir : folder() });
    await until(
      () => heard.length >= 8 && registered.length > before,
      "the rest arrives",
      () => JSON.stringify([sequences(heard), errors.map(String), agentErrors.map(String)]),
    );
    for (const sequence of [9, 10]) agent.publishKv(batch(sequence));
    await until(() => heard.length >= 10, "later ones too");
    expect(sequences(heard)).toEqual(upTo(10));
    await until(() => loads.length === 2, "joined load reports");
    expect(loads).toEqual(["a", "b"]);
    expect((await indexer.requestSnapshot(KEY))?.sequence).toBe(42);
  });

  it("a hanging server is noticed within seconds, and left", async () => {
    const server = await start();
    const changes: boolean[] = [];
    const { bus } = await connected(server.url, {
      role: "agent",
      pingMs: 300,
      onStatus: (status) => changes.push(status.connected),
    });
    const pausedAt = performance.now();
    server.pause();
    for (const sequence of upTo(200)) bus.publishKv(batch(sequence));
    await until(() => !bus.connected, "it is noticed", undefined, 4_000);
    expect(performance.now() - pausedAt).toBeLessThan(3_000);
    server.resume();
    await until(() => bus.connected, "it is back");
    expect(changes).toEqual([true, false, true]);
  });

  it("who waits for a hanging server is let go when it is given up", async () => {
    const server = await start();
    const { bus } = await connected(server.url, { role: "agent", pingMs: 200 });
    server.pause();
    expect(await bus.flush(60_000)).toBe(false);
    server.resume();
  });

  it("a server that hangs while there is another is replaced by it", async () => {
    const [one, two] = [await start(), await start()];
    const { bus } = await connected(one.url, {
      role: "agent",
      servers: [one.url, two.url],
      random: () => 0,
      pingMs: 300,
    });
    expect(bus.status().server).toBe(one.url);
    one.pause();
    await until(() => bus.status().server === two.url, "the other one");
    one.resume();
  });

  it("begins without a server, and sends what was said before there was one", async () => {
    const port = await freePort();
    const url = `ws://127.0.0.1:${port}`;
    const { bus: agent, errors } = rig(url, { role: "agent" });
    const { bus: indexer } = rig(url, { role: "indexer" });
    expect(agent.connected).toBe(false);
    const heard: unknown[] = [];
    indexer.onKv(({ sequence }, done) => {
      heard.push(sequence);
      done();
    });
    agent.publishKv(batch(1));
    agent.publishKv(batch(2));
    await until(() => errors.length >= 2, "it has tried");
    expect(errors[0]?.[0]).toMatchObject({ code: "view_unavailable" });
    await start({ port });
    await until(() => heard.length === 2, "both batches");
    expect(heard).toEqual([1, 2]);
  });

  it("what does not fit its buffer is dropped, counted and told once", async () => {
    const url = `ws://127.0.0.1:${await freePort()}`;
    const { bus, errors } = rig(url, { role: "agent", bufferBytes: 10_000 });
    for (const sequence of upTo(100)) bus.publishKv(batch(sequence));
    const { buffered, bufferedBytes, dropped } = bus.status();
    expect(buffered + dropped).toBe(100);
    expect(buffered).toBeGreaterThan(10);
    expect(bufferedBytes).toBeLessThanOrEqual(10_000);
    expect(errors.filter(([{ code }]) => code === "overloaded")).toHaveLength(1);
  });

  it("a stream that is deleted is made again, and what was buffered arrives", async () => {
    const server = await start();
    const { bus: indexer } = await connected(server.url, { role: "indexer" });
    const { bus: agent } = await connected(server.url, { role: "agent" });
    const heard: number[] = [];
    indexer.onKv(({ sequence }, done) => {
      heard.push(sequence);
      done();
    });
    agent.publishKv(batch(1));
    await until(() => heard.length === 1, "one batch");
    const operator = await connect({ servers: server.url });
    const manager = await operator.jetstreamManager();
    await manager.streams.delete("KEDGE_KV");
    agent.publishKv(batch(2));
    await until(() => heard.length === 2, "the second");
    await manager.consumers.delete("KEDGE_KV", "indexer-r");
    agent.publishKv(batch(3));
    await until(() => heard.at(-1) === 3, "the third");
    await operator.close();
  });

  it("closes in bounded time while the server hangs", async () => {
    const server = await start();
    const { bus } = await connected(server.url, { role: "agent", pingMs: 60_000 });
    server.pause();
    bus.publishKv(batch(1));
    const from = performance.now();
    await bus.close();
    expect(performance.now() - from).toBeLessThan(6_000);
    expect(bus.connected).toBe(false);
    server.resume();
  });
});
