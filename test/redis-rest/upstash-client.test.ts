/** @upstash/redis must find here what it finds at Upstash: its own commands, through the front, on a real Redis. */

import { Redis, type RedisConfigNodejs } from "@upstash/redis";
import { expect, it } from "vitest";
import { describeWithRedis } from "../support/servers.ts";
import { eventually, READ_ONLY_TOKEN, type Rig, TOKEN, useRig } from "./rig.ts";

type ClientOptions = Partial<RedisConfigNodejs>;

function client(rig: Rig, options: ClientOptions = {}): Redis {
  return new Redis({ url: rig.rest.url, token: TOKEN, retry: false, enableTelemetry: false, ...options });
}

const VARIANTS: readonly [string, ClientOptions][] = [
  ["base64, auto-pipelining (the client's defaults)", {}],
  ["base64, one request per command", { enableAutoPipelining: false }],
  ["plain JSON", { responseEncoding: false }],
  ["plain JSON, one request per command", { responseEncoding: false, enableAutoPipelining: false }],
];

for (const [name, options] of VARIANTS) {
  describeWithRedis(`@upstash/redis with ${name}`, () => {
    const rig = useRig();
    const open = (more: ClientOptions = {}): Redis => client(rig(), { ...options, ...more });

    it("strings, counters, expiry", async () => {
      const redis = open();
      expect(await redis.set("s", "value")).toBe("OK");
      expect(await redis.get("s")).toBe("value");
      expect(await redis.get("missing")).toBeNull();
      expect(await redis.set("s", "other", { nx: true })).toBeNull();
      expect(await redis.incrby("n", 41)).toBe(41);
      expect(await redis.incr("n")).toBe(42);
      expect(await redis.get("n")).toBe(42);
      expect(await redis.set("e", 1, { ex: 100 })).toBe("OK");
      expect(await redis.ttl("e")).toBeGreaterThan(90);
      expect(await redis.mset({ a: "1", b: { deep: [1, null, true] } })).toBe("OK");
      expect(await redis.mget("a", "b", "missing")).toEqual([1, { deep: [1, null, true] }, null]);
      expect(await redis.append("s", "!")).toBe(6);
      expect(await redis.getrange("s", 0, 2)).toBe("val");
      expect(await redis.ping()).toBe("PONG");
    });

    it("a value that reads OK stays OK, whole or within an array", async () => {
      const redis = open();
      await redis.set("ok", "OK");
      expect(await redis.get("ok")).toBe("OK");
      expect(await redis.mget("ok", "ok")).toEqual(["OK", "OK"]);
      expect(await redis.eval("return {'OK', {'OK', redis.status_reply('OK')}}", [], [])).toEqual([
        "OK",
        ["OK", "OK"],
      ]);
    });

    it("hashes", async () => {
      const redis = open();
      expect(await redis.hset("h", { name: "Zürich", n: 7, deep: { x: 1 } })).toBe(3);
      expect(await redis.hgetall("h")).toEqual({ name: "Zürich", n: 7, deep: { x: 1 } });
      expect(await redis.hget("h", "name")).toBe("Zürich");
      expect(await redis.hmget("h", "name", "none")).toEqual({ name: "Zürich", none: null });
      expect(await redis.hgetall("none")).toBeNull();
      expect(await redis.hincrby("h", "n", 3)).toBe(10);
      expect(await redis.hdel("h", "n", "none")).toBe(1);
      expect((await redis.hkeys("h")).sort()).toEqual(["deep", "name"]);
      expect(await redis.hscan("h", 0)).toEqual(["0", expect.arrayContaining(["name", "Zürich"])]);
    });

    it("lists and sets", async () => {
      const redis = open();
      expect(await redis.rpush("l", "a", "b", "c")).toBe(3);
      expect(await redis.lrange("l", 0, -1)).toEqual(["a", "b", "c"]);
      expect(await redis.lpop("l", 2)).toEqual(["a", "b"]);
      expect(await redis.lrange("none", 0, -1)).toEqual([]);
      expect(await redis.sadd("set", "x", "y", "x")).toBe(2);
      expect((await redis.smembers("set")).sort()).toEqual(["x", "y"]);
      expect(await redis.smismember("set", ["x", "q"])).toEqual([1, 0]);
      expect(await redis.scard("set")).toBe(2);
    });

    it("sorted sets, scores as Redis prints them", async () => {
      const redis = open();
      expect(await redis.zadd("z", { score: 1.5, member: "a" }, { score: -2, member: "b" })).toBe(2);
      expect(await redis.zrange("z", 0, -1, { withScores: true })).toEqual(["b", -2, "a", 1.5]);
      expect(await redis.zscore("z", "a")).toBe(1.5);
      expect(await redis.zscore("z", "none")).toBeNull();
      expect(await redis.zincrby("z", 1, "a")).toBe(2.5);
      expect(await redis.zrank("z", "a")).toBe(1);
    });

    it("streams and scans", async () => {
      const redis = open();
      const id = await redis.xadd("stream", "*", { field: "value" });
      expect(await redis.xrange("stream", "-", "+")).toEqual({ [id]: { field: "value" } });
      expect(await redis.xread("stream", "0")).toEqual([["stream", [[id, ["field", "value"]]]]]);
      for (let i = 0; i < 50; i++) await redis.set(`scan:${i}`, i);
      const found = new Set<string>();
      let cursor = "0";
      do {
        const [next, keys] = await redis.scan(cursor, { match: "scan:*", count: 20 });
        for (const key of keys) found.add(key);
        cursor = String(next);
      } while (cursor !== "0");
      expect(found.size).toBe(50);
    });

    it("a pipeline answers each command in its place, errors among them", async () => {
      const redis = open();
      const pipeline = redis.pipeline();
      pipeline.set("p", "text");
      pipeline.lpush("p", "x");
      pipeline.get("p");
      pipeline.hgetall("none");
      pipeline.incr("p:n");
      const results = await pipeline.exec({ keepErrors: true });
      expect(results.map(({ result }) => result ?? null)).toEqual(["OK", null, "text", null, 1]);
      expect(results.map(({ error }) => error?.split(" ")[0])).toEqual([
        undefined,
        "WRONGTYPE",
        undefined,
        undefined,
        undefined,
      ]);
    });

    it("a transaction is all or nothing, and says why it was discarded", async () => {
      const redis = open();
      expect(await redis.multi().set("t", 1).incr("t").get("t").exec()).toEqual(["OK", 2, 2]);
      const broken = redis.multi().set("t", "changed");
      (broken as unknown as { hset(key: string, fields: object): unknown }).hset("t", {});
      await expect(broken.exec()).rejects.toThrow(/EXECABORT .*wrong number of arguments/);
      expect(await redis.get("t")).toBe(2);
    });

    it("a command that fails within a transaction fails alone", async () => {
      const redis = open();
      await redis.set("tt", "text");
      const multi = redis.multi();
      multi.incr("tt");
      multi.set("tt:after", "done");
      const error = await multi.exec().catch((thrown: Error) => thrown.message);
      expect(error).toContain("not an integer");
      expect(await redis.get("tt:after")).toBe("done");
    });

    it("eval, evalsha, and a Script that Redis does not know yet", async () => {
      const redis = open();
      expect(await redis.eval("return {KEYS[1], ARGV[1], 3, false}", ["k"], ["v"])).toEqual([
        "k",
        "v",
        3,
        null,
      ]);
      await expect(redis.evalsha("0".repeat(40), [], [])).rejects.toThrow("NOSCRIPT");
      const script = redis.createScript<string>(`return 'fresh ' .. ARGV[1] -- ${name}`);
      expect(await script.exec([], ["1"])).toBe("fresh 1");
      expect(await script.exec([], ["2"])).toBe("fresh 2");
      const sha = await redis.scriptLoad("return 9");
      expect(await redis.scriptExists(sha, "1".repeat(40))).toEqual([1, 0]);
      expect(await redis.evalsha(sha, [], [])).toBe(9);
      await expect(redis.eval("return redis.error_reply('MINE it failed')", [], [])).rejects.toThrow(
        "MINE it failed",
      );
    });

    it("functions", async () => {
      const redis = open();
      const code =
        "#!lua name=kedge\nredis.register_function('twice', function(k, a) return a[1] .. a[1] end)";
      expect(await redis.exec(["FUNCTION", "LOAD", "REPLACE", code])).toBe("kedge");
      expect(await redis.exec(["FCALL", "twice", "0", "ab"])).toBe("abab");
    });

    it("unicode, control characters and a value of a megabyte come back as they went", async () => {
      const redis = open({ automaticDeserialization: false });
      const odd = `häß 日本語 🦩 \u0000\u0001\n\r\t"\\ \u2028 \u{10ffff}`;
      await redis.set(odd, odd);
      expect(await redis.get(odd)).toBe(odd);
      const big = "0123456789abcdé\n".repeat(65_536);
      await redis.set("big", big);
      expect(await redis.get("big")).toBe(big);
    });

    it("read-only tokens read, and nothing else", async () => {
      const redis = open();
      const reader = open({ token: READ_ONLY_TOKEN });
      await redis.set("ro", "before");
      expect(await reader.get("ro")).toBe("before");
      const [read, set] = ["return redis.call('GET', KEYS[1])", "return redis.call('SET', KEYS[1], 'after')"];
      expect(await reader.evalshaRo(await redis.scriptLoad(read), ["ro"], [])).toBe("before");
      for (const write of [
        () => reader.evalRo(read, ["ro"], []),
        () => reader.keys("*"),
        () => reader.set("ro", "after"),
        () => reader.del("ro"),
        () => reader.flushdb(),
        () => reader.eval(set, ["ro"], []),
        () => reader.publish("ro", "x"),
        () => reader.scriptLoad("return 1"),
        () => reader.multi().get("ro").set("ro", "after").exec(),
      ])
        await expect(write()).rejects.toThrow("NOPERM");
      const writing = await redis.scriptLoad(set);
      await expect(reader.evalshaRo(writing, ["ro"], [])).rejects.toThrow(/Write commands are not allowed/);
      expect(await redis.get("ro")).toBe("before");
    });

    it("messages reach subscribers of channel and pattern until they leave", async () => {
      const redis = open();
      const heard: unknown[] = [];
      let subscribed = 0;
      const byChannel = redis.subscribe<unknown>("news:a");
      const byPattern = redis.psubscribe<unknown>("news:*");
      byChannel.on("subscribe", () => subscribed++);
      byPattern.on("psubscribe", () => subscribed++);
      byChannel.on("message", ({ channel, message }) => heard.push([channel, message]));
      byPattern.on("pmessage", ({ pattern, channel, message }) => heard.push([pattern, channel, message]));
      await eventually(() => subscribed === 2);
      expect(await redis.publish("news:a", { text: "a, b" })).toBe(2);
      await eventually(() => heard.length === 2);
      expect(heard).toEqual(
        expect.arrayContaining([
          ["news:a", { text: "a, b" }],
          ["news:*", "news:a", { text: "a, b" }],
        ]),
      );
      await Promise.all([byChannel.unsubscribe(), byPattern.unsubscribe()]);
      await eventually(async () => (await redis.publish("news:a", "nobody")) === 0);
    });
  });
}

describeWithRedis("many commands at once", () => {
  const rig = useRig();

  it("auto-pipelining sends what comes together as one request, answers in place", async () => {
    const redis = client(rig());
    const before = rig().rest.stats();
    const values = await Promise.all(Array.from({ length: 500 }, (_, i) => redis.incrby(`many:${i}`, i)));
    expect(values).toEqual(Array.from({ length: 500 }, (_, i) => i));
    const after = rig().rest.stats();
    expect(after.requests - before.requests).toBe(1);
    expect(after.commands - before.commands).toBe(500);
  });

  it("requests under way together do not mix their answers", async () => {
    const redis = client(rig(), { enableAutoPipelining: false });
    const answers = await Promise.all(
      Array.from({ length: 300 }, (_, i) =>
        i % 3 === 0
          ? redis.multi().set(`mix:${i}`, i).get(`mix:${i}`).exec()
          : redis.eval("return ARGV[1]", [], [`${i}`]),
      ),
    );
    expect(answers).toEqual(Array.from({ length: 300 }, (_, i) => (i % 3 === 0 ? ["OK", i] : i)));
  });
});
