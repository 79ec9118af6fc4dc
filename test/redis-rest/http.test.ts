/** The protocol byte by byte: statuses, encodings, tokens, limits; and that no input breaks or stalls the front. */

import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import fc from "fast-check";
import { Redis } from "ioredis";
import { expect, it } from "vitest";
import { startRedisRest } from "../../src/node/redis-rest/index.ts";
import { describeWithRedis } from "../support/servers.ts";
import { call, eventually, post, READ_ONLY_TOKEN, TOKEN, useRig } from "./rig.ts";

const BASE64 = { headers: { "upstash-encoding": "base64" } };
const RESP2 = { headers: { "upstash-response-format": "resp2" } };
const b64 = (text: string): string => Buffer.from(text).toString("base64");

describeWithRedis("answers", () => {
  const rig = useRig();
  const rest = (): { url: string } => rig().rest;

  it("a command: 200 and its result, or 400 and Redis' words", async () => {
    expect(await post(rest(), "/", ["SET", "k", "v"])).toMatchObject({
      status: 200,
      text: '{"result":"OK"}',
    });
    expect((await post(rest(), "/", ["get", "k"])).text).toBe('{"result":"v"}');
    expect((await post(rest(), "/", ["GET", "none"])).text).toBe('{"result":null}');
    const wrong = await post(rest(), "/", ["GET"]);
    expect(wrong).toMatchObject({
      status: 400,
      json: { error: "ERR wrong number of arguments for 'get' command" },
    });
    const unknown = await post(rest(), "/", ["NOSUCH"]);
    expect(unknown.status).toBe(400);
    expect(unknown.text).toContain("unknown command");
  });

  it("replies keep their shape: integers, nil, nested arrays, no objects", async () => {
    await post(rest(), "/", ["HSET", "h", "a", "1"]);
    expect((await post(rest(), "/", ["HGETALL", "h"])).json).toEqual({ result: ["a", "1"] });
    const nested = "return {1, {2, {'x', false}}, {}, redis.status_reply('FINE')}";
    expect((await post(rest(), "/", ["EVAL", nested, 0])).json).toEqual({
      result: [1, [2, ["x", null]], [], "FINE"],
    });
  });

  it("integers and numbers are exact to the last digit, both ways", async () => {
    const body = '["SET","big",9223372036854775806]';
    expect((await call(rest(), "/", { method: "POST", body })).status).toBe(200);
    expect((await post(rest(), "/", ["INCR", "big"])).text).toBe('{"result":9223372036854775807}');
    const echo = await call(rest(), "/", {
      method: "POST",
      body: '["EVAL","return ARGV",0,1.50,1e400,true,-0.1]',
    });
    expect(echo.json).toEqual({ result: ["1.50", "1e400", "true", "-0.1"] });
  });

  it("base64 covers every string but a bare OK; numbers and null stay", async () => {
    expect((await post(rest(), "/", ["SET", "k", "v"], BASE64)).text).toBe('{"result":"OK"}');
    expect((await post(rest(), "/", ["GET", "k"], BASE64)).json).toEqual({ result: b64("v") });
    const nested = "return {'a', 1, false, {'b', {'c', 2}}}";
    expect((await post(rest(), "/", ["EVAL", nested, 0], BASE64)).json).toEqual({
      result: [b64("a"), 1, null, [b64("b"), [b64("c"), 2]]],
    });
    expect((await post(rest(), "/pipeline", [["GET", "k"], ["GET"]], BASE64)).json).toEqual([
      { result: b64("v") },
      { error: "ERR wrong number of arguments for 'get' command" },
    ]);
    expect((await post(rest(), "/multi-exec", [["GET", "k"], ["PING"]], BASE64)).json).toEqual([
      { result: b64("v") },
      { result: b64("PONG") },
    ]);
  });

  it("any bytes survive base64; without it what is no UTF-8 shows as replacement characters", async () => {
    const bytes = randomBytes(300);
    const stored = await call(rest(), "/set/bin", { method: "POST", body: bytes });
    expect(stored.json).toEqual({ result: "OK" });
    const whole = (await post(rest(), "/", ["GET", "bin"], BASE64)).json as { result: string };
    expect(Buffer.from(whole.result, "base64").equals(bytes)).toBe(true);
    const plain = (await post(rest(), "/", ["GET", "bin"])).json as { result: string };
    expect(plain.result).toBe(bytes.toString("utf8"));
  });

  it("resp2 is what Redis would have sent; not with base64, not for transactions", async () => {
    await post(rest(), "/", ["RPUSH", "r", "a", "ä"]);
    const range = await post(rest(), "/", ["LRANGE", "r", 0, -1], RESP2);
    expect(range.text).toBe("*2\r\n$1\r\na\r\n$2\r\nä\r\n");
    expect(range.headers.get("content-type")).toBe("application/octet-stream");
    const many = [
      ["SET", "r2", "1"],
      ["INCR", "r2"],
      ["GET", "none"],
      ["INCR", "r"],
    ];
    expect((await post(rest(), "/pipeline", many, RESP2)).text).toBe(
      "+OK\r\n:2\r\n$-1\r\n-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    );
    const both = { headers: { ...RESP2.headers, ...BASE64.headers } };
    expect((await post(rest(), "/", ["GET", "r2"], both)).status).toBe(400);
    expect((await post(rest(), "/multi-exec", [["GET", "r2"]], RESP2)).status).toBe(400);
  });

  it("the path form: escapes, body as last word, query after it", async () => {
    expect((await call(rest(), "/set/p%2Fa/%C3%A4%20b")).json).toEqual({ result: "OK" });
    expect((await call(rest(), "/get/p%2Fa")).json).toEqual({ result: "ä b" });
    const body = '{"x": 1}';
    expect((await call(rest(), "/set/p2?EX=100&NX", { method: "POST", body })).json).toEqual({
      result: "OK",
    });
    expect((await call(rest(), "/get/p2")).json).toEqual({ result: body });
    expect(((await call(rest(), "/ttl/p2")).json as { result: number }).result).toBeGreaterThan(90);
    expect((await call(rest(), "/set/p3/%ff%00%fe")).json).toEqual({ result: "OK" });
    expect((await post(rest(), "/", ["GET", "p3"], BASE64)).json).toEqual({ result: "/wD+" });
    expect((await call(rest(), "/get/%zz")).status).toBe(400);
    const head = await call(rest(), "/get/p2", { method: "HEAD" });
    expect([head.status, head.text]).toEqual([200, ""]);
  });

  it("a sync token comes with every answer and may be sent back", async () => {
    const first = await post(rest(), "/", ["PING"]);
    expect(first.headers.get("upstash-sync-token")).toBeTruthy();
    const again = await post(rest(), "/", ["PING"], { headers: { "upstash-sync-token": "x:1" } });
    expect(again.headers.get("upstash-sync-token")).toBe("x:1");
  });

  it("a discarded transaction is one error and leaves nothing behind", async () => {
    await post(rest(), "/", ["SET", "d", "before"]);
    const discarded = await post(rest(), "/multi-exec", [["SET", "d", "after"], ["GET"]]);
    expect(discarded.status).toBe(400);
    expect(discarded.text).toMatch(/EXECABORT.*wrong number of arguments/);
    expect(
      (
        await post(rest(), "/multi-exec", [
          ["SET", "d", "after"],
          ["CONFIG", "GET", "*"],
        ])
      ).status,
    ).toBe(400);
    const partly = await post(rest(), "/multi-exec", [
      ["SET", "e", "x"],
      ["INCR", "e"],
      ["GET", "e"],
    ]);
    expect(partly).toMatchObject({
      status: 200,
      json: [{ result: "OK" }, { error: expect.stringContaining("not an integer") }, { result: "x" }],
    });
    expect((await post(rest(), "/", ["GET", "d"])).json).toEqual({ result: "before" });
  });

  it("health says whether Redis answers, without a token", async () => {
    expect(await call(rest(), "/health", { token: null })).toMatchObject({
      status: 200,
      json: { status: "ok" },
    });
  });

  it("metrics count what was billed, under names that are the server's own", async () => {
    const before = rig().rest.stats();
    await post(rest(), "/pipeline", [["GET", "a"], ["GET", "b"], ["MADEUP1"], ["CONFIG", "GET", "x"]]);
    await post(rest(), "/", ["MADEUP2"]);
    await post(rest(), "/multi-exec", [
      ["GET", "a"],
      ["STRLEN", "a"],
    ]);
    const after = rig().rest.stats();
    expect(after.requests - before.requests).toBe(3);
    expect(after.commands - before.commands).toBe(6);
    expect(after.bytesIn - before.bytesIn).toBe(
      '[["GET","a"],["GET","b"],["MADEUP1"],["CONFIG","GET","x"]]'.length +
        '["MADEUP2"]'.length +
        '[["GET","a"],["STRLEN","a"]]'.length,
    );
    expect(after.bytesOut).toBeGreaterThan(before.bytesOut);
    const { text } = await call(rest(), "/metrics", { token: null });
    expect(text).toMatch(/kedge_redis_rest_commands_total\{command="other"\} [1-9]/);
    expect(text).not.toContain("madeup");
    expect(text).toMatch(/kedge_redis_rest_command_errors_total\{kind="refused"\} [1-9]/);
    expect(text).toMatch(/kedge_redis_rest_redis_up 1/);
    expect(text).toMatch(/kedge_redis_rest_request_duration_seconds_count\{route="pipeline"\} [1-9]/);
  });
});

describeWithRedis("tokens", () => {
  const rig = useRig();
  const rest = (): { url: string } => rig().rest;

  it("a missing, wrong, or oddly dressed token is refused before anything is read", async () => {
    for (const token of [null, "wrong", `${TOKEN} x`, ""]) {
      const answer = await post(rest(), "/", ["GET", "k"], { token });
      expect(answer).toMatchObject({ status: 401, json: { error: expect.stringContaining("auth token") } });
    }
    const basic = await call(rest(), "/get/k", { token: null, headers: { authorization: `Basic ${TOKEN}` } });
    expect(basic.status).toBe(401);
    expect((await call(rest(), "/subscribe/ch", { token: "wrong" })).status).toBe(401);
  });

  it("the token may stand in the query, and is no argument then", async () => {
    expect((await call(rest(), `/echo/hi?_token=${TOKEN}`, { token: null })).json).toEqual({ result: "hi" });
    expect((await call(rest(), "/echo/hi?_token=wrong", { token: null })).status).toBe(401);
  });

  it("a read-only token writes by no route", async () => {
    const readOnly = { token: READ_ONLY_TOKEN };
    const noPermission = { error: expect.stringMatching(/^NOPERM .*'set'/) };
    expect(await post(rest(), "/", ["SET", "k", "v"], readOnly)).toMatchObject({
      status: 400,
      json: noPermission,
    });
    expect((await call(rest(), "/set/k/v", readOnly)).status).toBe(400);
    const mixed = await post(rest(), "/pipeline", [["SET", "k", "v"], ["PING"]], readOnly);
    expect(mixed).toMatchObject({ status: 200, json: [noPermission, { result: "PONG" }] });
    expect((await post(rest(), "/multi-exec", [["PING"], ["SET", "k", "v"]], readOnly)).status).toBe(400);
    for (const write of [
      "EVAL",
      "EVALSHA",
      "FCALL",
      "SCRIPT",
      "FLUSHALL",
      "SORT",
      "GETEX",
      "XREADGROUP",
      "PUBLISH",
      "EVAL_RO",
      "KEYS",
      "SCAN",
    ])
      expect((await post(rest(), "/", [write, "a", "b"], readOnly)).text).toContain("NOPERM");
    for (const read of [
      ["OBJECT", "ENCODING", "k"],
      ["XINFO", "STREAM", "k"],
      ["MEMORY", "USAGE", "k"],
    ])
      expect((await post(rest(), "/", read, readOnly)).text).not.toContain("NOPERM");
    expect((await post(rest(), "/", ["EXISTS", "k"])).json).toEqual({ result: 0 });
  });

  it("without a token only programs of this machine are served, not the pages in its browser", async () => {
    const open = await startRedisRest({
      redis: { host: "127.0.0.1", port: rig().redis.port },
      token: null,
      port: 0,
    });
    try {
      const local = { token: null };
      expect((await post(open, "/", ["PING"], local)).json).toEqual({ result: "PONG" });
      expect((await post(open, "/", ["PING"], { token: "any" })).json).toEqual({ result: "PONG" });
      const pages: Record<string, string>[] = [
        { origin: "https://evil.example" },
        { "sec-fetch-site": "cross-site" },
      ];
      for (const headers of pages)
        expect((await call(open, "/get/k", { ...local, headers })).status).toBe(401);
      const rebound = await raw(
        open.url,
        "GET /get/k HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n",
      );
      expect(rebound).toContain("401");
    } finally {
      await open.close();
    }
  });

  it("what would leave Redis open to others does not start", async () => {
    const redis = { host: "127.0.0.1", port: rig().redis.port };
    const starts: [object, string][] = [
      [{ redis, token: null, host: "0.0.0.0", port: 0 }, "needs a token"],
      [{ redis, token: "", port: 0 }, "empty"],
      [{ redis, token: "same", readOnlyToken: "same", port: 0 }, "differ"],
      [{ redis: "http://:secret@x", token: "t", port: 0 }, "redis://host"],
      [{ redis: { cluster: [] }, token: "t", port: 0 }, "at least one"],
    ];
    for (const [options, message] of starts) {
      const start = startRedisRest(options as never);
      await expect(start).rejects.toMatchObject({
        code: "config_invalid",
        message: expect.stringContaining(message),
      });
    }
    const port = Number(new URL(rest().url).port);
    await expect(startRedisRest({ redis, token: "t", port })).rejects.toMatchObject({ code: "EADDRINUSE" });
  });
});

describeWithRedis("limits and bad input", () => {
  const rig = useRig({ limits: { maxBodyBytes: 10_000, maxPipelineLength: 5, maxSubscribers: 1 } });
  const rest = (): { url: string } => rig().rest;

  it("methods that do not fit get 405 and the ones that do", async () => {
    for (const [method, path] of [
      ["GET", "/"],
      ["GET", "/pipeline"],
      ["DELETE", "/multi-exec"],
      ["PATCH", "/get/k"],
    ]) {
      const answer = await call(rest(), path!, { method: method! });
      expect(answer.status).toBe(405);
      expect(answer.headers.get("allow")).toContain("POST");
      expect(answer.json).toHaveProperty("error");
    }
  });

  it("a body over the limit gets 413, announced or streamed, and the connection's next request is served", async () => {
    const big = JSON.stringify(["SET", "k", "x".repeat(10_000)]);
    const streamed = new ReadableStream<Uint8Array>({
      start(controller) {
        for (let i = 0; i < 8; i++) controller.enqueue(Buffer.from("x".repeat(2_000)));
        controller.close();
      },
    });
    const bodies: RequestInit[] = [{ body: big }, { body: streamed, duplex: "half" } as RequestInit];
    for (const init of bodies) {
      const answer = await call(rest(), "/", { method: "POST", ...init });
      expect(answer).toMatchObject({ status: 413, json: { error: expect.stringContaining("10000") } });
      expect((await post(rest(), "/", ["PING"])).status).toBe(200);
    }
    const fits = JSON.stringify(["SET", "k", "x".repeat(10_000 - '["SET","k",""]'.length)]);
    expect((await call(rest(), "/", { method: "POST", body: fits })).status).toBe(200);
  });

  it("a pipeline or transaction over the limit is refused whole", async () => {
    for (const path of ["/pipeline", "/multi-exec"]) {
      expect((await post(rest(), path, Array(5).fill(["INCR", "n"]))).status).toBe(200);
      const answer = await post(rest(), path, Array(6).fill(["INCR", "n"]));
      expect(answer).toMatchObject({ status: 400, json: { error: expect.stringContaining("at most 5") } });
    }
    expect((await post(rest(), "/", ["GET", "n"])).json).toEqual({ result: "10" });
  });

  it("commands that would block, leave or take over the shared connection are refused with the reason", async () => {
    const refused = `BLPOP BRPOP BLMOVE BZPOPMIN BZMPOP WAIT SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE MONITOR MULTI EXEC DISCARD
      WATCH UNWATCH AUTH HELLO RESET QUIT SELECT CLIENT CLUSTER CONFIG SHUTDOWN DEBUG SAVE BGSAVE ACL MODULE MIGRATE REPLICAOF
      SYNC PSYNC SWAPDB SLOWLOG LATENCY FAILOVER confıg shutdown`;
    for (const name of refused.split(/\s+/)) {
      const answer = await post(rest(), "/", [name, "x", "0"]);
      expect([name, answer.status, answer.text]).toEqual([
        name,
        400,
        expect.stringContaining("not available"),
      ]);
    }
    expect((await post(rest(), "/", ["XREAD", "BLOCK", "0", "STREAMS", "s", "$"])).text).toContain("BLOCK");
    const read = "XREADGROUP GROUP STREAMS c BLOCK 0 STREAMS s >".split(" ");
    expect((await post(rest(), "/", read)).text).toContain("BLOCK");
    expect((await post(rest(), "/", ["XREAD", "COUNT", "1", "STREAMS", "BLOCK", "0"])).json).toEqual({
      result: null,
    });
    expect((await call(rest(), "/monitor")).status).toBe(400);
    expect((await post(rest(), "/", ["PING"])).status).toBe(200);
  });

  it("bodies that are no commands get 400 and a reason", async () => {
    const bodies = [
      "",
      "[",
      "{}",
      "null",
      "1",
      '"GET"',
      "[]",
      "[[]]",
      '[""]',
      "[1]",
      '["GET",null]',
      '["GET",["a"]]',
      '["GET",{}]',
      "\ufeff[]",
      "[".repeat(5_000),
    ];
    for (const path of ["/", "/pipeline", "/multi-exec"]) {
      for (const body of bodies) {
        const answer = await call(rest(), path, { method: "POST", body });
        expect([path, body.slice(0, 20), answer.status]).toEqual([path, body.slice(0, 20), 400]);
        expect(answer.json).toEqual({ error: expect.any(String) });
      }
    }
    const latin = await call(rest(), "/", { method: "POST", body: Buffer.from('["GET","\xe4"]', "latin1") });
    expect(latin).toMatchObject({ status: 400, json: { error: expect.stringContaining("UTF-8") } });
  });

  it("whatever is sent, the answer is 200 or 400 in JSON", async () => {
    const argument = fc.oneof(
      fc.string({ unit: "binary" }),
      fc.jsonValue(),
      fc.double(),
      fc.bigInt().map(String),
    );
    const body = fc.oneof(
      fc.json(),
      fc.string(),
      fc.array(argument, { maxLength: 6 }).map((value) => JSON.stringify(value)),
      fc.array(fc.array(argument, { maxLength: 4 }), { maxLength: 6 }).map((value) => JSON.stringify(value)),
      fc.uint8Array({ maxLength: 60 }),
    );
    const path = fc.oneof(
      fc.constantFrom("/", "/pipeline", "/multi-exec"),
      fc.webPath().filter((text) => text.startsWith("/") && !/^\/(health|metrics|p?subscribe)/.test(text)),
    );
    await fc.assert(
      fc.asyncProperty(path, body, fc.boolean(), async (to, content, encoded) => {
        const init = encoded ? BASE64 : {};
        const answer = await call(rest(), to, { method: "POST", body: content as BodyInit, ...init });
        expect([200, 400]).toContain(answer.status);
        expect(answer.json).toBeTypeOf("object");
      }),
      { numRuns: 400, seed: 4 },
    );
  });

  it("every command the server has, with arguments that make no sense, leaves the front as it was", async () => {
    const direct = new Redis(rig().redis.port, "127.0.0.1");
    const names = ((await direct.call("COMMAND", "LIST")) as string[]).map((name) => name.toUpperCase());
    direct.disconnect();
    expect(names.length).toBeGreaterThan(200);
    for (const name of names) {
      const calls = [
        [name],
        [name, "1"],
        [name, "a", "999999999", "\u0000"],
        [name, "-1", "b", "STREAMS", "0"],
      ];
      const answer = await post(rest(), "/pipeline", [...calls, ["ECHO", name]]);
      expect([name, answer.status]).toEqual([name, 200]);
      expect((answer.json as object[]).at(-1)).toEqual({ result: name });
    }
  });

  it("with more bodies or requests under way than allowed, more are turned away, and none leaks its place", async () => {
    const redis = `redis://127.0.0.1:${rig().redis.port}`;
    const tight = await startRedisRest({
      redis,
      token: TOKEN,
      port: 0,
      limits: { maxBodyBytesInFlight: 1_000, maxRequestsInFlight: 2 },
    });
    try {
      for (let i = 0; i < 5; i++) {
        expect((await post(tight, "/", ["ECHO", "x".repeat(900)])).status).toBe(200);
        expect((await post(tight, "/", ["ECHO", "x".repeat(1_100)])).status).toBe(503);
      }
      const wait = ["EVAL", "for i = 1, 5000000 do end return 1", 0];
      const running = [post(tight, "/", wait), post(tight, "/", wait)];
      await eventually(() => tight.stats().commands === 7);
      expect((await post(tight, "/", ["PING"])).status).toBe(503);
      expect((await Promise.all(running)).map(({ status }) => status)).toEqual([200, 200]);
      expect((await post(tight, "/", ["PING"])).status).toBe(200);
    } finally {
      await tight.close();
    }
  });

  it("garbage instead of HTTP harms nobody", async () => {
    for (const text of [
      "\u0000\u0001\u0002\r\n\r\n",
      "GET\r\n\r\n",
      "POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
      "*1\r\n$4\r\nPING\r\n",
    ])
      expect(await raw(rest().url, text)).toMatch(/^(HTTP\/1\.1 400.*)?/);
    const left = connect(Number(new URL(rest().url).port), "127.0.0.1");
    left.write(
      `POST / HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\ncontent-length: 50\r\n\r\n["GET"`,
    );
    await eventually(() => left.bytesWritten > 0);
    left.destroy();
    expect((await post(rest(), "/", ["PING"])).status).toBe(200);
  });
});

describeWithRedis("subscriptions", () => {
  const rig = useRig({ limits: { maxSubscribers: 2 } });
  const rest = (): { url: string } => rig().rest;

  it("events stand in Upstash's lines; line breaks become lines of their own", async () => {
    const abort = new AbortController();
    const events = await listen(rest().url, "/subscribe/a%2Fb", abort.signal);
    await eventually(() => events.text() === "data: subscribe,a/b,1\n\n");
    await post(rest(), "/", ["PUBLISH", "a/b", "x,y\nz"]);
    await eventually(() => events.text().includes("data: message,a/b,x,y\ndata: z\n\n"));
    expect(events.type).toContain("text/event-stream");
    abort.abort();
  });

  it("the Redis connection of a subscriber ends with its client, and its place is free again", async () => {
    const direct = new Redis(rig().redis.port, "127.0.0.1");
    for (let i = 0; i < 5; i++) {
      const abort = new AbortController();
      const events = await listen(rest().url, "/psubscribe/gone:*", abort.signal);
      await eventually(() => events.text() !== "");
      expect(await direct.pubsub("NUMPAT")).toBe(1);
      abort.abort();
      await eventually(async () => Number(await direct.pubsub("NUMPAT")) === 0);
    }
    direct.disconnect();
  });

  it("more subscribers than the limit are told so", async () => {
    const abort = new AbortController();
    const open: Listening[] = [];
    for (const name of ["one", "two"])
      open.push(await listen(rest().url, `/subscribe/${name}`, abort.signal));
    await eventually(() => open.every((events) => events.text() !== ""));
    expect((await call(rest(), "/subscribe/three")).status).toBe(503);
    abort.abort();
    await eventually(async () => {
      const retry = new AbortController();
      const { status } = await fetch(`${rest().url}/subscribe/three`, {
        headers: { authorization: `Bearer ${TOKEN}` },
        signal: retry.signal,
      });
      retry.abort();
      return status === 200;
    });
  });

  it("a subscriber that does not read is let go", async () => {
    const direct = new Redis(rig().redis.port, "127.0.0.1");
    const deaf = connect(Number(new URL(rest().url).port), "127.0.0.1");
    deaf.on("error", () => undefined);
    deaf.pause();
    deaf.write(`GET /subscribe/flood HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${TOKEN}\r\n\r\n`);
    const listeners = async (): Promise<number> =>
      Number(((await direct.pubsub("NUMSUB", "flood")) as [string, number])[1]);
    await eventually(async () => (await listeners()) === 1);
    const message = "x".repeat(1024 * 1024);
    await eventually(async () => (await direct.publish("flood", message)) === 0);
    deaf.destroy();
    direct.disconnect();
  });

  it("no channel is a bad request", async () => {
    for (const path of ["/subscribe", "/subscribe/", "/subscribe/a/b", "/psubscribe"])
      expect((await call(rest(), path)).status).toBe(400);
  });

  it("closing ends streams, lets what runs finish, and is done", async () => {
    const own = await startRedisRest({ redis: `127.0.0.1:${rig().redis.port}`, token: TOKEN, port: 0 });
    const events = await listen(own.url, "/subscribe/end", new AbortController().signal);
    await eventually(() => events.text() !== "");
    const slow = post(own, "/", ["EVAL", "for i = 1, 3000000 do end return 'done'", 0]);
    await eventually(() => own.stats().commands === 1);
    await Promise.all([own.close(), own.close()]);
    expect((await slow).json).toEqual({ result: "done" });
    await eventually(() => events.ended());
    await expect(post(own, "/", ["PING"])).rejects.toThrow();
  });
});

interface Listening {
  readonly type: string;
  text(): string;
  ended(): boolean;
}

async function listen(url: string, path: string, signal: AbortSignal): Promise<Listening> {
  const response = await fetch(url + path, {
    method: "POST",
    headers: { authorization: `Bearer ${TOKEN}`, accept: "text/event-stream" },
    signal,
  });
  let text = "";
  let ended = false;
  const decoder = new TextDecoder();
  void (async () => {
    for await (const chunk of response.body!) text += decoder.decode(chunk, { stream: true });
    ended = true;
  })().catch(() => undefined);
  return { type: response.headers.get("content-type") ?? "", text: () => text, ended: () => ended };
}

/** Sends bytes, returns all that comes back until the other side closes. */
function raw(url: string, text: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(Number(new URL(url).port), "127.0.0.1");
    let heard = "";
    socket.on("data", (chunk) => {
      heard += chunk.toString();
    });
    socket.on("error", () => resolve(heard));
    socket.on("close", () => resolve(heard));
    socket.write(text);
  });
}
