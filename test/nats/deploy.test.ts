/** The server configurations of deploy/nats, run as they are but for addresses and certificates: who may do what, and two sites that see each other. */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, type NatsConnection } from "nats.ws";
import { afterAll, afterEach, beforeAll, expect, it } from "vitest";
import type { NatsBusOptions, Place } from "../../src/events/nats/index.ts";
import type { KvBatch } from "../../src/store/types.ts";
import { describeWithNats, freePort, NATS_SERVERS } from "../support/servers.ts";
import {
  batch,
  closeAll,
  connected,
  DISTINCT_SERVERS,
  KEY,
  load,
  type Rig,
  registration,
  rig,
  snapshot,
  until,
} from "./rig.ts";

const PASSWORDS = {
  NATS_PASSWORD: "pw-kedge",
  NATS_PASSWORD_NODE_1: "pw-node-1",
  NATS_PASSWORD_NODE_2: "pw-node-2",
  NATS_PASSWORD_INDEXER: "pw-indexer",
  NATS_PASSWORD_SYS: "pw-sys",
  NATS_PASSWORD_LEAF_SITE_1: "pw-leaf",
};

const folders: string[] = [];
const children: ChildProcess[] = [];

/** Starts a server with a file of deploy/nats, its listeners moved to free ports of loopback and TLS left out. */
async function start(
  file: string,
  { leafPort, hubUrl, binary }: { leafPort?: number; hubUrl?: string; binary?: string } = {},
): Promise<{ url: string }> {
  const folder = mkdtempSync(join(tmpdir(), "kedge-deploy-"));
  folders.push(folder);
  const [port, clientPort, httpPort] = [await freePort(), await freePort(), await freePort()];
  const text = readFileSync(new URL(`../../deploy/nats/${file}`, import.meta.url), "utf8")
    .replace(/(websocket \{[^}]*?)tls \{[^}]*\}/, "$1no_tls: true")
    .replace(/^\s*tls \{[^}]*\}\n/m, "")
    .replace("0.0.0.0:8443", `127.0.0.1:${port}`)
    .replace("127.0.0.1:4222", `127.0.0.1:${clientPort}`)
    .replace("127.0.0.1:8222", `127.0.0.1:${httpPort}`)
    .replace("0.0.0.0:7422", `127.0.0.1:${leafPort ?? 0}`)
    .replace("/var/lib/nats/jetstream", join(folder, "jetstream"));
  const path = join(folder, file);
  writeFileSync(path, text);
  const env = { ...PASSWORDS, ...(hubUrl !== undefined && { NATS_HUB_URL: hubUrl }) };
  const child = spawn(binary ?? NATS_SERVERS[0]!, ["-c", path], { env, stdio: ["ignore", "ignore", "pipe"] });
  children.push(child);
  let told = "";
  child.stderr.on("data", (chunk) => {
    told += chunk;
  });
  await until(
    () => told.includes("Server is ready") || child.exitCode !== null,
    "the server starts",
    () => told,
  );
  if (child.exitCode !== null) throw new Error(told);
  return { url: `ws://127.0.0.1:${port}` };
}

process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
});

function clean(): void {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
}

it.each(["site.conf", "hub.conf", "leaf.conf"])(
  "%s reads no variable that kedge, started in the same shell, would refuse as a setting",
  (file) => {
    const text = readFileSync(new URL(`../../deploy/nats/${file}`, import.meta.url), "utf8");
    const names = [...text.matchAll(/\$([A-Z][A-Z_0-9]*[A-Z0-9])\b(?!\.)/g)].map(([, name]) => name!);
    expect(names).toContain("NATS_PASSWORD_SYS");
    expect(names.filter((name) => /^(KEDGE|DYN)_/.test(name))).toEqual([]);
  },
);

describeWithNats.each(DISTINCT_SERVERS)("site.conf with %s", (binary) => {
  let url: string;
  beforeAll(async () => {
    ({ url } = await start("site.conf", { binary }));
  });
  afterEach(closeAll);
  afterAll(clean);

  const AGENT_1: Partial<NatsBusOptions> & { role: "agent" } = {
    role: "agent",
    place: { region: "eu", cluster: "a", node: "node-1" },
    credentials: { user: "agent-node-1", password: "pw-node-1" },
  };
  const AGENT_2: typeof AGENT_1 = {
    role: "agent",
    place: { region: "eu", cluster: "a", node: "node-2" },
    credentials: { user: "agent-node-2", password: "pw-node-2" },
  };
  const INDEXER: Partial<NatsBusOptions> & { role: "indexer" } = {
    role: "indexer",
    place: { region: "eu", cluster: "a", node: "indexer-host" },
    credentials: { user: "indexer", password: "pw-indexer" },
    snapshotTimeoutMs: 2_000,
  };

  it("lets agents and an indexer do all that they do, and refuses nothing of it", async () => {
    const { bus: indexer, errors } = await connected(url, INDEXER);
    const heard: string[] = [];
    indexer.onRegistration(({ worker }) => heard.push(`reg ${worker}`));
    indexer.onRetirement(({ worker }) => heard.push(`gone ${worker}`));
    indexer.onLoad(({ worker }) => heard.push(`load ${worker}`));
    indexer.onHeartbeat((name) => heard.push(`beat ${name}`));
    indexer.onKv(({ worker }, done) => {
      heard.push(`kv ${worker}`);
      done();
    });
    await indexer.flush();
    const agents: Rig[] = [];
    for (const [i, options] of [AGENT_1, AGENT_2].entries()) {
      const agent = await connected(url, options);
      agents.push(agent);
      const key = { ...KEY, worker: `node-${i + 1}/gpu` };
      agent.bus.serveSnapshots(({ worker }) => (worker === key.worker ? snapshot(100_000, key) : null));
      agent.bus.onRollCall(() => heard.push(`roll ${i + 1}`));
      agent.bus.publishRegistration(registration(key));
      agent.bus.publishKv(batch(1, key));
      agent.bus.publishLoad(load(1, [], key));
      await agent.bus.flush();
    }
    indexer.callRoll();
    indexer.publishHeartbeat("indexer-eu-1");
    await until(
      () => heard.length === 9,
      "all of it",
      () => `${heard} ${errors.map(String)} ${agents.map(({ errors }) => errors.map(String))}`,
    );
    expect(heard.sort()).toEqual(
      [1, 2]
        .flatMap((i) => [`kv node-${i}/gpu`, `load node-${i}/gpu`, `reg node-${i}/gpu`, `roll ${i}`])
        .concat("beat indexer-eu-1")
        .sort(),
    );
    for (const i of [1, 2]) {
      const key = { ...KEY, worker: `node-${i}/gpu` };
      expect((await indexer.requestSnapshot(key))?.ops.length).toBeGreaterThan(1);
      agents[i - 1]!.bus.publishRetirement(key);
    }
    await until(() => heard.length === 11, "retirements");
    expect([errors, ...agents.map(({ errors }) => errors)]).toEqual([[], [], []]);
  });

  it("keeps an agent from speaking as another, and from hearing others", async () => {
    const { bus: indexer } = await connected(url, INDEXER);
    const heard: string[] = [];
    indexer.onKv(({ worker }, done) => {
      heard.push(`kv ${worker}`);
      done();
    });
    indexer.onRegistration(({ worker }) => heard.push(`reg ${worker}`));
    indexer.onLoad(({ worker }) => heard.push(`load ${worker}`));
    await indexer.flush();
    // It has node 1's password and says that it is node 2.
    const { bus: liar, errors } = await connected(url, { ...AGENT_1, place: AGENT_2.place! });
    const forged = { ...KEY, worker: "node-2/forged" };
    liar.publishKv(batch(1, forged));
    liar.publishRegistration(registration(forged));
    liar.publishLoad(load(1, [], forged));
    await until(
      () => errors.length >= 3,
      "refusals",
      () => errors.map(String),
    );
    expect(errors.every(([{ code }]) => code === "config_invalid" || code === "internal_error")).toBe(true);
    expect(errors.some(([{ message }]) => message.includes("kedge.reg.eu.a.node-2.node-2=2Fforged"))).toBe(
      true,
    );

    const { bus: honest } = await connected(url, AGENT_1);
    honest.publishLoad(load(1, [], { ...KEY, worker: "node-1/gpu" }));
    await until(() => heard.includes("load node-1/gpu"), "the honest one");
    expect(heard.filter((what) => what.includes("forged"))).toEqual([]);
  });

  it.each([
    "kedge.kv.>",
    "kedge.snap.>",
    "kedge.snap.eu.a.node-2.*",
    "kedge.reg.>",
    "_INBOX.>",
    "_INBOX.kedge.indexer.eu.>",
    "_INBOX.kedge.agent.eu.a.node-2.>",
    "$JS.>",
  ])("an agent may not listen to %s", async (subject) => {
    expect(
      await refusalOf(url, "agent-node-1", "pw-node-1", (nc) => void nc.subscribe(subject, nothing)),
    ).toContain("permissions violation");
  });

  it.each([
    "kedge.roll",
    "kedge.snap",
    "kedge.beat.eu.indexer",
    "kedge.kv.eu.a.node-2.w",
    "kedge.load.eu.a.node-2",
    "_INBOX.kedge.indexer.eu.indexer.x",
    "$JS.API.STREAM.PURGE.KEDGE_KV",
    "$JS.API.STREAM.DELETE.KEDGE_KV",
    "$JS.API.CONSUMER.DELETE.KEDGE_KV.indexer-eu",
    "$JS.ACK.KEDGE_KV.indexer-eu.1.1.1.1.1",
  ])("an agent may not publish to %s", async (subject) => {
    expect(await refusalOf(url, "agent-node-1", "pw-node-1", (nc) => nc.publish(subject))).toContain(
      "permissions violation",
    );
  });

  it("an agent does not empty the log by having its acknowledgement sent to the server's own interface", async () => {
    const { bus: indexer } = await connected(url, INDEXER);
    indexer.onKv((_batch, done) => done());
    await indexer.flush();
    const clients = await Promise.all(
      (["agent-node-1", "agent-node-2", "indexer"] as const).map((user) => {
        const path = user === "indexer" ? "indexer.eu.x" : `agent.eu.a.${user.slice("agent-".length)}`;
        const pass = user.replace("agent-", "pw-").replace("indexer", "pw-indexer");
        return connect({ servers: url, user, pass, inboxPrefix: `_INBOX.kedge.${path}` });
      }),
    );
    const [one, two, reader] = clients as [NatsConnection, NatsConnection, NatsConnection];
    const first = async () => {
      const info = await reader.request("$JS.API.STREAM.INFO.KEDGE_KV");
      return info.json<{ state: { first_seq: number } }>().state.first_seq;
    };
    await two.request("kedge.kv.eu.a.node-2.w", "kept");
    const before = await first();
    for (const what of [
      "STREAM.PURGE.KEDGE_KV",
      "STREAM.DELETE.KEDGE_KV",
      "CONSUMER.DELETE.KEDGE_KV.indexer-eu",
    ])
      one.publish("kedge.kv.eu.a.node-1.w", "x", { reply: `$JS.API.${what}` });
    await one.request("kedge.kv.eu.a.node-1.w", "after it");
    expect(await first()).toBe(before);
    const consumer = await reader.request("$JS.API.CONSUMER.INFO.KEDGE_KV.indexer-eu");
    expect(consumer.json<{ error?: unknown }>().error).toBeUndefined();
    await Promise.all(clients.map((client) => client.close()));
  });

  it.each(["$JS.API.STREAM.DELETE.KEDGE_KV", "kedge.kv.eu.a.node-1.w", "kedge.load.eu.a.node-1"])(
    "an indexer may not publish to %s",
    async (subject) => {
      expect(await refusalOf(url, "indexer", "pw-indexer", (nc) => nc.publish(subject))).toContain(
        "permissions violation",
      );
    },
  );

  it("refuses strangers, and says so", async () => {
    for (const credentials of [{}, { user: "agent-node-1", password: "wrong" }, { token: "x" }]) {
      const { bus, errors } = rig(url, { ...AGENT_1, credentials });
      await until(() => errors.length > 0, "refusal");
      expect(errors[0]?.[0]).toMatchObject({ code: "config_invalid" });
      expect(bus.connected).toBe(false);
    }
  });
});

describeWithNats("hub.conf and leaf.conf", () => {
  afterEach(closeAll);
  afterAll(clean);

  it("an indexer at each end sees both sites' batches, loads and snapshots", async () => {
    const leafPort = await freePort();
    const hub = await start("hub.conf", { leafPort });
    const leaf = await start("leaf.conf", {
      hubUrl: `nats-leaf://leaf-site-1:pw-leaf@127.0.0.1:${leafPort}`,
    });
    const sites = [
      { name: "hub", region: "us", url: hub.url },
      { name: "site-1", region: "eu", url: leaf.url },
    ];
    const credentials = { user: "kedge", password: "pw-kedge" };
    const ends: { region: string; url: string; place: Place }[] = [];
    for (const { name, region, url } of sites) {
      const place = { region, cluster: "c", node: `${region}-node` };
      const local = { name: "KEDGE_KV", subjects: [`kedge.kv.${region}.>`], max_bytes: 32 * 1_024 * 1_024 };
      const all = JSON.parse(
        readFileSync(new URL(`../../deploy/nats/streams/${name}.json`, import.meta.url), "utf8"),
      );
      const operator = await connect({ servers: url, user: credentials.user, pass: credentials.password });
      const manager = await operator.jetstreamManager();
      await manager.streams.add(local);
      await manager.streams.add({ ...all, max_bytes: local.max_bytes });
      await operator.close();
      ends.push({ region, url, place });
    }
    const seen: Record<string, KvBatch[]> = {};
    const loads: Record<string, string[]> = {};
    const indexers = [];
    for (const { region, url, place } of ends) {
      const { bus } = await connected(url, { role: "indexer", stream: "KEDGE_KV_ALL", place, credentials });
      seen[region] = [];
      loads[region] = [];
      bus.onKv((value, done) => {
        seen[region]!.push(value);
        done();
      });
      bus.onLoad(({ worker }) => loads[region]!.push(worker));
      await bus.flush();
      indexers.push(bus);
    }
    for (const { region, url, place } of ends) {
      const { bus, errors } = await connected(url, { role: "agent", place, credentials });
      const key = { ...KEY, worker: `${region}-worker` };
      bus.serveSnapshots(({ worker }) => (worker === key.worker ? snapshot(100_000, key) : null));
      for (const sequence of [1, 2, 3]) bus.publishKv(batch(sequence, key));
      bus.publishLoad(load(1, [], key));
      expect(await bus.flush(), errors.join()).toBe(true);
    }
    await until(
      () => ends.every(({ region }) => seen[region]!.length === 6 && loads[region]!.length === 2),
      "six batches and two reports at each end",
      () =>
        JSON.stringify([
          loads,
          Object.values(seen).map((all) => all.map(({ worker, sequence }) => [worker, sequence])),
        ]),
      20_000,
    );
    for (const { region } of ends) {
      for (const from of ends) {
        const own = seen[region]!.filter(({ worker }) => worker === `${from.region}-worker`);
        expect(own.map(({ sequence }) => sequence)).toEqual([1, 2, 3]);
      }
    }
    for (const bus of indexers) {
      for (const { region } of ends) {
        expect((await bus.requestSnapshot({ ...KEY, worker: `${region}-worker` }))?.sequence).toBe(42);
      }
    }
  });
});

const nothing = { callback: () => undefined };

/** What the server says to this user's attempt, in lower case. Rejects if it lets it pass. */
async function refusalOf(
  url: string,
  user: string,
  pass: string,
  attempt: (nc: NatsConnection) => void,
): Promise<string> {
  const nc = await connect({ servers: url, user, pass, inboxPrefix: "_INBOX.kedge.agent.eu.a.node-1" });
  let said = "";
  void (async () => {
    for await (const { type, data } of nc.status()) if (type === "error") said += ` ${data}`;
  })();
  attempt(nc);
  await nc.flush();
  await until(() => said !== "", "a refusal", undefined, 3_000).finally(() => nc.close());
  return said.toLowerCase().replaceAll("_", " ");
}
