/** What the mock does to its events on demand, and how its lives end. */

import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { Subscriber } from "zeromq";
import type { MockEngine, MockEngineOptions } from "../../gpu-agent/engines/mock/index.ts";
import { type RawResponse, send, until } from "./mock-engine-client.ts";
import { chat, cleanups, openStream, start } from "./mock-engine-rig.ts";

describe("event faults", () => {
  interface Stored {
    readonly parent: string | null;
    readonly hash: string;
  }

  async function withEvents(
    misbehaviour: MockEngineOptions["misbehaviour"],
  ): Promise<{ engine: MockEngine; seqs: bigint[] }> {
    const engine = await start({
      misbehaviour,
      kvEvents: { enable_kv_cache_events: true, endpoint: "tcp://*:0", replay_endpoint: "tcp://*:0" },
    });
    const subscriber = new Subscriber({ linger: 0 });
    cleanups.push(() => subscriber.close());
    subscriber.connect(engine.eventsEndpoints[0]!);
    subscriber.subscribe();
    const seqs: bigint[] = [];
    void (async () => {
      for await (const frames of subscriber) seqs.push((frames[1] as Buffer).readBigUInt64BE());
    })().catch(() => undefined);
    await until(async () => {
      await fresh(engine);
      return seqs.length > 0;
    });
    return { engine, seqs };
  }

  let word = 0;
  const fresh = (engine: MockEngine): Promise<RawResponse> =>
    send(engine.url, {
      method: "POST",
      path: "/v1/completions",
      body: { prompt: `${word++} ${"ledger of the tide ".repeat(12)}`, max_tokens: 1 },
    });

  const rows = async (engine: MockEngine): Promise<Stored[]> =>
    JSON.parse((await send(engine.url, { method: "GET", path: "/mock/blocks" })).body) as Stored[];

  it("a gap: the next numbers do not come, the one after does", async () => {
    const { engine, seqs } = await withEvents({});
    await fresh(engine);
    await until(() => seqs.at(-1) === engine.stats()[0]!.nextSeq! - 1n);
    const last = seqs.at(-1)!;
    engine.misbehave({ dropBatches: 2 });
    for (let i = 0; i < 3; i++) await fresh(engine);
    await until(() => seqs.at(-1) === last + 3n);
    expect(seqs.slice(-2)).toEqual([last, last + 3n]);
  });

  it("duplicates are real copies, and go one by one", async () => {
    const engine = await start({ numGpuBlocks: 64, maxModelLen: 1008 });
    const prompt = "ledger of the tide ".repeat(12);
    const ask = (): Promise<RawResponse> =>
      send(engine.url, { method: "POST", path: "/v1/completions", body: { prompt, max_tokens: 1 } });
    await ask();
    engine.misbehave({ duplicateStores: 1 });
    await ask();
    expect(engine.blockTable().every(({ copies }) => copies === 2)).toBe(true);
    await ask();
    expect(engine.blockTable().every(({ copies }) => copies === 2)).toBe(true);
  });

  it("an orphan's parent comes a batch late, or never", async () => {
    const { engine, seqs } = await withEvents({});
    await until(() => seqs.at(-1) === engine.stats()[0]!.nextSeq! - 1n);
    const before = engine.stats()[0]!.nextSeq!;
    engine.misbehave({ orphanParents: 1 });
    await fresh(engine);
    expect(engine.stats()[0]!.nextSeq).toBe(before + 2n);
    engine.misbehave({ orphanParents: 1, orphansHeal: false });
    await fresh(engine);
    expect(engine.stats()[0]!.nextSeq).toBe(before + 3n);
    expect((await rows(engine)).length).toBeGreaterThan(2);
  });

  it("a restart: connections break, the cache is empty, numbers begin at 0, the addresses stay", async () => {
    const { engine, seqs } = await withEvents({});
    const { url, eventsEndpoints } = engine;
    const { response } = await openStream(engine, { max_tokens: 4 });
    await until(() => response.complete || response.destroyed);
    await engine.restart();
    expect([engine.url, engine.eventsEndpoints]).toEqual([url, eventsEndpoints]);
    expect(engine.blockTable()).toEqual([]);
    expect(engine.stats()[0]).toMatchObject({ nextSeq: 0n, prefixQueries: 0 });
    const from = seqs.length;
    await until(async () => {
      await fresh(engine);
      return seqs.length > from;
    });
    // Each request made one batch; which of them reached the subscriber first depends on its reconnecting.
    expect(engine.stats()[0]!.requestsFinished).toBe(Number(engine.stats()[0]!.nextSeq));
  });
});

describe("restart over HTTP", () => {
  it("breaks every other connection and answers for the new life", async () => {
    const engine = await start({ profile: "8b-h100" });
    const { chunks, response } = await openStream(engine, { max_tokens: 5000, ignore_eos: true });
    await until(() => chunks.length > 2);
    const restarted = await send(engine.url, { method: "POST", path: "/mock/restart" });
    expect(restarted.status).toBe(200);
    await until(() => response.destroyed);
    expect(response.complete).toBe(false);
    expect(engine.stats()[0]).toMatchObject({ running: 0, generationTokens: 0, cachedBlocks: 0 });
    expect((await chat(engine, {})).body).toContain(
      (JSON.parse(restarted.body) as { fingerprint: string }).fingerprint,
    );
  });
});

describe("shutdown", () => {
  it("by default: new requests get 500, then the port closes; open streams fall silent until the client leaves", async () => {
    const engine = await start({ profile: "8b-h100" });
    const { chunks, response } = await openStream(engine, { max_tokens: 5000, ignore_eos: true });
    await until(() => chunks.length > 2);
    const over = engine.terminate();
    const refused = await chat(engine, {});
    expect([refused.status, JSON.parse(refused.body)]).toEqual([
      500,
      {
        error: {
          message: "cannot schedule new futures after shutdown",
          type: "InternalServerError",
          param: null,
          code: 500,
        },
      },
    ]);
    await until(async () => (await send(engine.url, { method: "GET", path: "/health" })).status === 0);
    expect([response.complete, response.destroyed]).toEqual([false, false]);
    response.destroy();
    await over;
  });

  it("with a timeout: what runs ends, health stays", async () => {
    const engine = await start({ profile: "8b-h100", shutdownTimeoutSeconds: 5 });
    const { chunks, response } = await openStream(engine, { max_tokens: 30, ignore_eos: true });
    await until(() => chunks.length > 2);
    const over = engine.terminate();
    expect((await send(engine.url, { method: "GET", path: "/health" })).status).toBe(200);
    expect((await chat(engine, {})).status).toBe(500);
    await over;
    expect(response.complete).toBe(true);
    expect(chunks.join("")).toContain("[DONE]");
  });

  it("kedge mock-engine: says where it listens, serves, leaves on a signal", async () => {
    const main = fileURLToPath(new URL("../../src/node/cli/main.ts", import.meta.url));
    const child = spawn(
      process.execPath,
      [main, "mock-engine", "--port", "0", "--profile", "zero", "--misbehave", "busy=true"],
      {
        stdio: ["ignore", "pipe", "inherit"],
      },
    );
    cleanups.push(() => child.kill("SIGKILL"));
    const exited = new Promise<number | null>((resolve) => child.once("exit", (code) => resolve(code)));
    const line = await new Promise<string>((resolve) => {
      let text = "";
      child.stdout.on("data", (part: Buffer) => {
        text += part.toString();
        if (text.includes("\n")) resolve(text.split("\n")[0]!);
      });
    });
    const { url } = JSON.parse(line) as { url: string };
    expect((await send(url, { method: "POST", path: "/v1/completions", body: { prompt: "x" } })).status).toBe(
      503,
    );
    child.kill("SIGTERM");
    expect(await exited).toBe(0);
  });
});
