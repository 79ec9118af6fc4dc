/** `kedge redis-rest` as its users run it: settings from flags and environment, one line when ready, a clean end. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { afterAll, beforeAll, expect, it } from "vitest";
import { describeWithRedis, type RunningServer, startRedis } from "../support/servers.ts";
import { call, post } from "./rig.ts";

const MAIN = new URL("../../src/node/cli/main.ts", import.meta.url).pathname;
const started = new Set<ChildProcess>();

describeWithRedis("kedge redis-rest", () => {
  let redis: RunningServer;

  beforeAll(async () => {
    redis = await startRedis({ args: ["--requirepass", "p@ss"] });
  });

  afterAll(async () => {
    for (const child of started) child.kill("SIGKILL");
    await redis.stop();
  });

  it("serves a Redis that wants a password, and ends at SIGTERM", async () => {
    const url = `redis://:${encodeURIComponent("p@ss")}@127.0.0.1:${redis.port}`;
    const child = kedge(["--redis", url, "--port", "0", "--json"], {
      KEDGE_REST_TOKEN: "from-environment",
      KEDGE_REST_READ_ONLY_TOKEN: "reader",
    });
    const ready = JSON.parse(await firstLine(child)) as { url: string; redis: boolean };
    expect(ready.redis).toBe(true);
    const set = await post(ready, "/", ["SET", "k", "v"], { token: "from-environment" });
    expect(set.json).toEqual({ result: "OK" });
    expect((await call(ready, "/get/k", { token: "reader" })).json).toEqual({ result: "v" });
    expect((await call(ready, "/set/k/w", { token: "reader" })).status).toBe(400);
    let warnings = "";
    child.stderr!.on("data", (chunk) => {
      warnings += chunk;
    });
    child.kill("SIGTERM");
    const [code] = (await once(child, "close")) as [number];
    expect([code, warnings]).toEqual([0, ""]);
  });

  it("says that Redis does not let it in, and keeps answering 503", async () => {
    const flags = ["--redis", `127.0.0.1:${redis.port}`, "--port", "0", "--redis-timeout-ms", "300"];
    const child = kedge([...flags, "--token", "t"]);
    const warned = once(child.stderr!, "data");
    const line = await firstLine(child);
    expect(line).toContain("does not answer yet");
    expect(String(await warned)).toContain("NOAUTH");
    const url = /http:\S+?(?=,)/.exec(line)![0];
    expect((await post({ url }, "/", ["PING"], { token: "t" })).status).toBe(503);
    child.kill("SIGTERM");
    await once(child, "exit");
  });

  it.each([
    [["--host", "0.0.0.0"], {}, "needs a token"],
    [["--redis", "a:1,b:1"], {}, "--cluster"],
    [["--redis", "amqp://user:secret@x"], {}, "redis://host"],
    [["--port", "99999"], {}, "port"],
    [[], { KEDGE_REST_TOKN: "x" }, "KEDGE_REST_TOKN"],
  ])("refuses %j %j with the reason", async (flags, env, message) => {
    const child = kedge(flags, env);
    let errors = "";
    child.stderr!.on("data", (chunk) => {
      errors += chunk;
    });
    const [code] = (await once(child, "close")) as [number];
    expect(code).toBeGreaterThan(0);
    expect(errors).toContain(message);
    expect(errors).not.toContain("secret");
  });
});

describeWithRedis("kedge redis-rest beside another", () => {
  it("says that its port is taken, and by which flag to choose another", async () => {
    const redis = await startRedis();
    const child = kedge(["--redis", `127.0.0.1:${redis.port}`, "--port", `${redis.port}`]);
    let errors = "";
    child.stderr!.on("data", (chunk) => {
      errors += chunk;
    });
    const [code] = (await once(child, "close")) as [number];
    await redis.stop();
    expect([code, errors]).toEqual([2, expect.stringContaining(`port ${redis.port} is in use`)]);
    expect(errors).toContain("--port");
  });
});

function kedge(flags: readonly string[], env: Readonly<Record<string, string>> = {}): ChildProcess {
  const child = spawn(process.execPath, [MAIN, "redis-rest", ...flags], {
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  started.add(child);
  child.once("exit", () => started.delete(child));
  return child;
}

async function firstLine(child: ChildProcess): Promise<string> {
  let text = "";
  for await (const chunk of child.stdout!) {
    text += chunk;
    if (text.includes("\n")) break;
  }
  return text.split("\n")[0]!;
}
