/** In front of a cluster the same requests work: routed by key, merged in order, told apart where a cluster must. */

import { Redis as Upstash } from "@upstash/redis";
import { Redis } from "ioredis";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { describeWithRedis, freePort, type RunningServer, startRedis } from "../support/servers.ts";
import { call, eventually, post, READ_ONLY_TOKEN, TOKEN } from "./rig.ts";

const SLOTS = 16_384;
/** Slots of the tags below: {a} 15495, {b} 3300, {c} 7365: one on each of three servers. */
const TAGS = ["{a}", "{b}", "{c}"];

describeWithRedis("a cluster of three", () => {
  let nodes: RunningServer[] = [];
  let direct: Redis[] = [];
  let rest: RestServer;

  beforeAll(async () => {
    nodes = await Promise.all(Array.from({ length: 3 }, startNode));
    direct = nodes.map(({ port }) => new Redis(port, "127.0.0.1"));
    await join(direct, nodes);
    rest = await startRedisRest({
      redis: { cluster: nodes.slice(0, 2).map(({ port }) => `redis://127.0.0.1:${port}`) },
      token: TOKEN,
      readOnlyToken: READ_ONLY_TOKEN,
      port: 0,
      limits: { redisTimeoutMs: 500 },
    });
  }, 30_000);

  afterAll(async () => {
    await rest?.close();
    for (const redis of direct) redis.disconnect();
    await Promise.all(nodes.map((node) => node.stop("SIGKILL")));
  });

  it("a pipeline over all servers answers in the order asked", async () => {
    const keys = Array.from({ length: 200 }, (_, i) => `key:${i}`);
    const sets = await post(
      rest,
      "/pipeline",
      keys.map((key, i) => ["SET", key, i]),
    );
    expect(sets.json).toEqual(keys.map(() => ({ result: "OK" })));
    const mixed = await post(
      rest,
      "/pipeline",
      keys.flatMap((key) => [
        ["GET", key],
        ["LPUSH", key, 1],
        ["INCR", key],
      ]),
    );
    const expected = keys.flatMap((_, i) => [
      { result: `${i}` },
      { error: expect.stringContaining("WRONGTYPE") },
      { result: i + 1 },
    ]);
    expect(mixed.json).toEqual(expected);
    const sizes = await Promise.all(direct.map((redis) => redis.dbsize()));
    expect(sizes.every((size) => size > 20)).toBe(true);
  });

  it("transactions run on the server of their slot; keys of several slots are refused", async () => {
    for (const tag of TAGS) {
      const answer = await post(rest, "/multi-exec", [
        ["SET", `t${tag}`, 1],
        ["INCR", `t${tag}`],
        ["ECHO", "x"],
      ]);
      expect(answer.json).toEqual([{ result: "OK" }, { result: 2 }, { result: "x" }]);
    }
    const crossing = await post(
      rest,
      "/multi-exec",
      TAGS.map((tag) => ["SET", tag, 1]),
    );
    expect(crossing).toMatchObject({ status: 400, json: { error: expect.stringContaining("CROSSSLOT") } });
    const one = await post(rest, "/", ["MSET", ...TAGS.flatMap((tag) => [tag, 1])]);
    expect(one).toMatchObject({ status: 400, json: { error: expect.stringContaining("CROSSSLOT") } });
  });

  it("scripts go by their keys, are loaded on every server, and NOSCRIPT comes through", async () => {
    const redis = new Upstash({ url: rest.url, token: TOKEN, retry: false, enableTelemetry: false });
    const body = "return {KEYS[1], redis.call('INCR', KEYS[1])}";
    for (const tag of TAGS) {
      expect(await redis.eval(body, [`s${tag}`], [])).toEqual([`s${tag}`, 1]);
    }
    await expect(redis.evalsha("0".repeat(40), ["{a}"], [])).rejects.toThrow("NOSCRIPT");
    const script = redis.createScript<number>("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    for (const tag of TAGS) expect(await script.exec([`f${tag}`], ["5"])).toBe(5);
    const sha = await redis.scriptLoad("return redis.call('EXISTS', KEYS[1])");
    expect(await redis.scriptExists(sha, "1".repeat(40))).toEqual([1, 0]);
    for (const tag of TAGS) expect(await redis.evalsha(sha, [`none${tag}`], [])).toBe(0);
    expect(await redis.exec(["FUNCTION", "LOAD", LIBRARY])).toBe("kedge");
    for (const tag of TAGS) expect(await redis.exec(["FCALL", "touch_key", "1", `fn${tag}`])).toBe(1);
    for (const tag of TAGS) expect(await redis.exec(["FCALL_RO", "peek", "1", `fn${tag}`])).toBe(1);
  });

  it("counts of keys that make no sense are Redis' to refuse, at once", async () => {
    for (const count of ["999999999999", "-1", "1.5", "x", ""]) {
      const answer = await post(rest, "/", ["EVAL", "return 1", count, "k"]);
      expect(answer).toMatchObject({ status: 400, json: { error: expect.stringContaining("ERR") } });
      expect((await post(rest, "/", ["ZUNION", count, "k"])).status).toBe(400);
    }
  });

  it("whole-database commands speak of all servers; a scan sees every key once", async () => {
    await post(rest, "/", ["FLUSHALL"]);
    const keys = Array.from({ length: 300 }, (_, i) => `scan:${i}`);
    await post(
      rest,
      "/pipeline",
      keys.map((key) => ["SET", key, ""]),
    );
    expect((await post(rest, "/", ["DBSIZE"])).json).toEqual({ result: 300 });
    const listed = (await post(rest, "/", ["KEYS", "scan:*"])).json as { result: string[] };
    expect(listed.result.sort()).toEqual([...keys].sort());
    const seen: string[] = [];
    let cursor = "0";
    for (let i = 0; i < 100; i++) {
      const { result } = (await post(rest, "/", ["SCAN", cursor, "COUNT", "30"])).json as {
        result: [string, string[]];
      };
      seen.push(...result[1]);
      cursor = result[0];
      if (cursor === "0") break;
    }
    expect(cursor).toBe("0");
    expect(seen.sort()).toEqual([...keys].sort());
    expect((await post(rest, "/", ["SCAN", "nonsense"])).status).toBe(400);
  });

  it("read-only tokens, hashes, keys behind a subcommand and streams find their server", async () => {
    for (const tag of TAGS) {
      await post(rest, "/", ["HSET", `h${tag}`, "f", "v"]);
      await post(rest, "/", ["XADD", `x${tag}`, "1-1", "f", "v"]);
      const reads = [
        ["HGETALL", `h${tag}`],
        ["OBJECT", "ENCODING", `h${tag}`],
        ["XREAD", "COUNT", "1", "STREAMS", `x${tag}`, "0"],
      ];
      expect((await post(rest, "/pipeline", reads, { token: READ_ONLY_TOKEN })).json).toEqual([
        { result: ["f", "v"] },
        { result: "listpack" },
        { result: [[`x${tag}`, [["1-1", ["f", "v"]]]]] },
      ]);
      expect((await post(rest, "/", ["SET", tag, 1], { token: READ_ONLY_TOKEN })).text).toContain("NOPERM");
    }
  });

  it("a message published anywhere reaches every subscriber", async () => {
    const abort = new AbortController();
    const texts = await Promise.all(
      Array.from({ length: 4 }, async () => {
        const headers = { authorization: `Bearer ${TOKEN}` };
        const response = await fetch(`${rest.url}/subscribe/wide`, { headers, signal: abort.signal });
        const heard = { text: "" };
        void (async () => {
          for await (const chunk of response.body!) heard.text += Buffer.from(chunk).toString();
        })().catch(() => undefined);
        return heard;
      }),
    );
    await eventually(() => texts.every(({ text }) => text.includes("subscribe,wide")));
    await post(rest, "/pipeline", [
      ["PUBLISH", "wide", "1"],
      ["PUBLISH", "wide", "2"],
    ]);
    await eventually(() => texts.every(({ text }) => text.includes("wide,1") && text.includes("wide,2")));
    abort.abort();
  });

  it("a slot that moves to another server is followed, by commands and transactions", async () => {
    const slot = await direct[0]!.cluster("KEYSLOT", "{move}");
    const owner = await ownerOf(direct, slot);
    const target = (owner + 1) % 3;
    const id = (await direct[target]!.cluster("MYID")) as unknown as string;
    await post(rest, "/", ["DEL", "{move}"]);
    for (const redis of [direct[target]!, ...direct]) await redis.cluster("SETSLOT", slot, "NODE", id);
    expect(
      (
        await post(rest, "/multi-exec", [
          ["SET", "{move}", 1],
          ["INCR", "{move}"],
        ])
      ).json,
    ).toEqual([{ result: "OK" }, { result: 2 }]);
    expect((await post(rest, "/", ["GET", "{move}"])).json).toEqual({ result: "2" });
    expect(await direct[target]!.get("{move}")).toBe("2");
  });

  it("one server gone: its keys give 503 or an error in time, the others' go on, and it is used again when back", async () => {
    const slot = await direct[0]!.cluster("KEYSLOT", "{c}");
    const owner = await ownerOf(direct, slot);
    const configs = await Promise.all(
      direct.map((redis) => redis.config("SET", "cluster-require-full-coverage", "no")),
    );
    expect(configs).toEqual(["OK", "OK", "OK"]);
    const others = TAGS.filter((tag) => tag !== "{c}");
    await post(rest, "/", ["SET", "{c}", "here"]);
    nodes[owner]!.pause();
    const startMs = performance.now();
    const lost = post(rest, "/", ["GET", "{c}"]);
    for (const tag of others) expect((await post(rest, "/", ["SET", tag, tag])).status).toBe(200);
    expect((await lost).status).not.toBe(200);
    expect(performance.now() - startMs).toBeLessThan(10_000);
    const mixed = await post(rest, "/pipeline", [...others.map((tag) => ["GET", tag]), ["GET", "{c}"]]);
    expect(mixed.status).toBe(200);
    expect((mixed.json as object[]).slice(0, 2)).toEqual(others.map((tag) => ({ result: tag })));
    expect((mixed.json as object[])[2]).toHaveProperty("error");
    nodes[owner]!.resume();
    await eventually(
      async () => (await post(rest, "/", ["GET", "{c}"])).text === '{"result":"here"}',
      20_000,
    );
    expect((await call(rest, "/health")).status).toBe(200);
  }, 60_000);
});

const LIBRARY = `#!lua name=kedge
redis.register_function('touch_key', function(keys) return redis.call('INCR', keys[1]) end)
redis.register_function{function_name='peek', callback=function(keys) return redis.call('GET', keys[1]) end, flags={'no-writes'}}`;

async function startNode(): Promise<RunningServer> {
  // The cluster bus needs a port too; Redis' own choice, 10,000 above, may not exist.
  const bus = await freePort();
  const args = ["--cluster-enabled", "yes", "--cluster-port", `${bus}`, "--cluster-node-timeout", "3000"];
  return startRedis({ args });
}

async function join(direct: readonly Redis[], nodes: readonly RunningServer[]): Promise<void> {
  const size = Math.ceil(SLOTS / direct.length);
  for (const [i, redis] of direct.entries()) {
    await redis.cluster("ADDSLOTSRANGE", i * size, Math.min((i + 1) * size, SLOTS) - 1);
    await redis.call("CLUSTER", "SET-CONFIG-EPOCH", `${i + 1}`);
  }
  for (const [i, redis] of direct.entries()) {
    if (i === 0) continue;
    const bus = ((await redis.config("GET", "cluster-port")) as string[])[1]!;
    await direct[0]!.call("CLUSTER", "MEET", "127.0.0.1", `${nodes[i]!.port}`, bus);
  }
  await eventually(async () => {
    const infos = await Promise.all(direct.map((redis) => redis.cluster("INFO")));
    return infos.every((info) => info.includes("cluster_state:ok") && info.includes("cluster_known_nodes:3"));
  }, 20_000);
}

async function ownerOf(direct: readonly Redis[], slot: number): Promise<number> {
  const shards = (await direct[0]!.cluster("SLOTS")) as unknown as [number, number, [string, number]][];
  const shard = shards.find(([from, to]) => from <= slot && slot <= to)!;
  return direct.findIndex((redis) => redis.options.port === shard[2][1]);
}
