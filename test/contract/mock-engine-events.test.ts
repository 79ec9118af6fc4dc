/** The mock's event frames and replay answers against recorded ones: bytes where hashes can be equal, fields elsewhere. */

import { readFileSync } from "node:fs";
import { Unpackr } from "msgpackr";
import { afterEach, describe, expect, it } from "vitest";
import { Dealer, Subscriber } from "zeromq";
import {
  type MockEngine,
  type MockEngineOptions,
  startMockEngine,
} from "../../gpu-agent/engines/mock/index.ts";
import { send, until } from "./mock-engine-client.ts";

const FIXTURES = new URL("../fixtures/vllm/", import.meta.url);
const unpackr = new Unpackr({ useRecords: false, int64AsType: "bigint" });

interface Message {
  readonly frames_b64: readonly string[];
}
interface Step {
  readonly step: string;
  readonly request?: {
    readonly method: string;
    readonly path: string;
    readonly headers?: Record<string, string>;
    readonly body?: Record<string, unknown>;
  };
  readonly response?: {
    readonly usage?: object;
    readonly prompt_token_ids?: number[];
    readonly output_token_ids?: number[][];
  };
  readonly messages?: readonly Message[];
  readonly messages_by_port?: Readonly<Record<string, readonly Message[]>>;
  readonly sent_frames_b64?: readonly string[];
  readonly received?: readonly Message[];
}

function steps(name: string): Step[] {
  return readFileSync(new URL(name, FIXTURES), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as Step);
}

const framesOf = (message: Message): Buffer[] =>
  message.frames_b64.map((frame) => Buffer.from(frame, "base64"));

type Batch = [number, unknown[], number];
const decode = (payload: Buffer): Batch => unpackr.unpack(payload) as Batch;

/** A batch without its time: the array head and the float in front are the same in all. */
const withoutTime = (payload: Buffer): string => payload.subarray(10).toString("hex");

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** An engine with events and one subscriber per rank that has settled. */
async function start(
  options: MockEngineOptions = {},
): Promise<{ engine: MockEngine; received: Buffer[][][] }> {
  const engine = await startMockEngine({
    servedModelNames: ["tiny-qwen3"],
    maxModelLen: 8192,
    profile: "zero",
    vocabSize: 1_000_000,
    kvEvents: {
      enable_kv_cache_events: true,
      publisher: "zmq",
      endpoint: "tcp://*:0",
      replay_endpoint: "tcp://*:0",
      topic: "kv-events",
    },
    ...options,
  });
  cleanups.push(() => engine.close());
  const received = engine.eventsEndpoints.map((endpoint) => subscribe(endpoint));
  await settle(engine, received);
  return { engine, received };
}

function subscribe(endpoint: string, bind = false): Buffer[][] {
  const subscriber = new Subscriber({ linger: 0 });
  cleanups.push(() => subscriber.close());
  const received: Buffer[][] = [];
  subscriber.subscribe();
  if (!bind) subscriber.connect(endpoint);
  void (async () => {
    for await (const frames of subscriber) received.push(frames as Buffer[]);
  })().catch(() => undefined);
  return received;
}

/** A subscription takes a moment to reach the publisher: publish until something comes, then begin anew with a restart. */
async function settle(engine: MockEngine, received: readonly Buffer[][][]): Promise<void> {
  let token = 0;
  for (const [rank, frames] of received.entries()) {
    await until(async () => {
      const body = { prompt: Array.from({ length: 20 }, () => 500_000 + token++), max_tokens: 1 };
      await send(engine.url, {
        method: "POST",
        path: "/v1/completions",
        headers: { "x-data-parallel-rank": String(rank) },
        body,
      });
      return frames.length > 0;
    });
  }
}

/** Batches that come while `act` runs, once the engine says that all are out. */
async function during(
  engine: MockEngine,
  frames: Buffer[][],
  act: () => Promise<unknown>,
  rank = 0,
): Promise<Buffer[][]> {
  const last = (): bigint => (frames.length === 0 ? -1n : frames.at(-1)![1]!.readBigUInt64BE());
  await until(() => last() === engine.stats()[rank]!.nextSeq! - 1n);
  const from = frames.length;
  await act();
  await until(() => last() === engine.stats()[rank]!.nextSeq! - 1n);
  return frames.slice(from);
}

function request(step: Step, url: string): Promise<unknown> {
  const { request: recorded, response, messages } = step;
  if (recorded?.body === undefined) return send(url, { method: "POST", path: recorded!.path });
  const prompt = response?.prompt_token_ids ?? recorded.body.prompt;
  const announced = (messages ?? [])
    .flatMap((message) => decode(framesOf(message)[2]!)[1])
    .flatMap((event) => tokensOf(event));
  const output = response?.output_token_ids?.[0] ?? announced.slice((prompt as number[]).length);
  return send(url, {
    method: "POST",
    path: "/v1/completions",
    headers: recorded.headers ?? {},
    body: { ...recorded.body, messages: undefined, prompt, mock_output_token_ids: output },
  });
}

function tokensOf(event: unknown): number[] {
  return Array.isArray(event)
    ? ((event[3] as number[] | undefined) ?? [])
    : ((event as { token_ids?: number[] }).token_ids ?? []);
}

describe("frames", () => {
  it.each([
    ["kv-events/hash-sha256_cbor.jsonl", { hashSeed: null }],
    ["kv-events/hash-sha256_cbor-seed0-bytes.jsonl", { hashSeed: "0", misbehaviour: { hashes: "bytes" } }],
  ] as const)("%s: topic and payload byte for byte, numbers in a row", async (name, options) => {
    const { engine, received } = await start(options);
    expect(engine.resetPrefixCache()).toBe(true);
    let compared = 0;
    let fresh = true;
    for (const step of steps(name)) {
      const got = await during(engine, received[0]!, () => request(step, engine.url));
      const expected = step.messages!.map((message) => framesOf(message));
      expect([step.step, got.length]).toEqual([step.step, expected.length]);
      for (const [i, frames] of got.entries()) {
        const [topic, seq, payload] = frames as [Buffer, Buffer, Buffer];
        expect(topic).toEqual(expected[i]![0]);
        expect(seq).toHaveLength(8);
        expect(payload.subarray(0, 2).toString("hex")).toBe("93cb");
        // Ours begins with the reset that emptied the cache for this test.
        const events = decode(payload)[1];
        if (fresh) expect(events[0]).toEqual({ type: "AllBlocksCleared" });
        else expect([step.step, withoutTime(payload)]).toEqual([step.step, withoutTime(expected[i]![2]!)]);
        fresh = false;
        compared++;
      }
    }
    expect(compared).toBeGreaterThan(7);
    const numbers = received[0]!.map((frames) => frames[1]!.readBigUInt64BE());
    expect(numbers).toEqual(numbers.map((_, i) => numbers[0]! + BigInt(i)));
  });

  it.each([
    ["kv-events/steps-a.jsonl", 18],
    ["kv-events/lora.jsonl", 4],
  ])(
    "%s: the same keys in the same order, the same types, the same values but for hashes",
    async (name, atLeast) => {
      const { engine, received } = await start({
        maxNumBatchedTokens: 2048,
        loraModules: [
          { name: "tide", path: "lora-tide" },
          { name: "gale", path: "lora-gale" },
        ],
      });
      engine.resetPrefixCache();
      const shown = (event: unknown): unknown =>
        Object.entries(event as object).map(([key, value]) =>
          key === "block_hashes"
            ? [key, (value as unknown[]).length]
            : key === "parent_block_hash"
              ? [key, value === null]
              : [key, value],
        );
      let compared = 0;
      for (const step of steps(name)) {
        if (step.request?.path === "/reset_prefix_cache") await request(step, engine.url);
        if (step.response?.usage === undefined || step.request?.body?.n !== undefined) continue;
        const got = await during(engine, received[0]!, () => request(step, engine.url));
        for (const frames of got) expect(decode(frames[2]!)[2]).toBe(0);
        const ours = got.flatMap((frames) => decode(frames[2]!)[1]).map(shown);
        const theirs = step.messages!.flatMap((message) => decode(framesOf(message)[2]!)[1]).map(shown);
        // Our own reset before the test rides with the first step.
        if (compared++ === 0) expect(ours.at(-1)).toEqual(theirs.at(-1));
        else expect([step.step, ...ours]).toEqual([step.step, ...theirs]);
      }
      expect(compared).toBeGreaterThan(atLeast);
    },
  );

  it("v0.23.0/kv-events.jsonl: the older array form", async () => {
    const { engine, received } = await start({
      misbehaviour: { events: "array", replayFrames: "without-topic" },
    });
    engine.resetPrefixCache();
    const shown = (event: unknown): unknown =>
      (event as unknown[]).map((value, i) =>
        i === 1 ? (value as unknown[]).length : i === 2 && value !== null ? "parent" : value,
      );
    let compared = 0;
    for (const step of steps("v0.23.0/kv-events.jsonl")) {
      if (step.request?.body === undefined) {
        await send(engine.url, { method: "POST", path: "/reset_prefix_cache" });
        continue;
      }
      const got = await during(engine, received[0]!, () => request(step, engine.url));
      const ours = got.flatMap((frames) => decode(frames[2]!)[1]);
      const theirs = step.messages!.flatMap((message) => decode(framesOf(message)[2]!)[1]);
      if (compared++ > 0) expect([step.step, ...ours.map(shown)]).toEqual([step.step, ...theirs.map(shown)]);
    }
    expect(compared).toBeGreaterThan(6);
  });

  it("old hashes are signed: the same 64 bits", async () => {
    const { engine, received } = await start({ misbehaviour: { hashes: "negative" } });
    const prompt = Array.from({ length: 400 }, (_, i) => i);
    const got = await during(engine, received[0]!, () =>
      send(engine.url, { method: "POST", path: "/v1/completions", body: { prompt, max_tokens: 1 } }),
    );
    const [event] = decode(got[0]![2]!)[1] as { block_hashes: (bigint | number)[] }[];
    const hashes = event!.block_hashes.map((hash) => BigInt(hash));
    expect(hashes.some((hash) => hash < 0n)).toBe(true);
    expect(engine.blockTable().map(({ hash }) => hash)).toEqual(
      expect.arrayContaining(hashes.map((hash) => BigInt.asUintN(64, hash))),
    );
  });
});

describe("ranks", () => {
  it("kv-events/data-parallel-2.jsonl: pinned, out of range, no number, in turn", async () => {
    const { engine, received } = await start({ dataParallelSize: 2, numGpuBlocks: 1024 });
    await engine.restart();
    await settle(engine, received);
    engine.resetPrefixCache();
    const busyRanks: string[] = [];
    for (const step of steps("kv-events/data-parallel-2.jsonl")) {
      if (!Array.isArray(step.request?.body?.prompt)) continue;
      const before = engine.stats().map(({ requestsFinished }) => requestsFinished);
      await request(step, engine.url);
      const after = engine.stats().map(({ requestsFinished }) => requestsFinished);
      busyRanks.push(`${step.step}: ${after.findIndex((count, rank) => count > before[rank]!)}`);
    }
    expect(busyRanks.slice(0, 4)).toEqual([
      "rank-0: 0",
      "rank-1-same-prompt: 1",
      "rank-1-again: 1",
      "rank-2-out-of-range: -1",
    ]);
    const turns = busyRanks
      .filter((one) => /not-a-number|no-header/.test(one))
      .map((one) => Number(one.at(-1)));
    expect(turns).toHaveLength(8);
    for (const [i, rank] of turns.slice(1).entries()) expect(rank).toBe(1 - turns[i]!);
    expect(
      received
        .flatMap((frames, rank) => frames.map((one) => [rank, decode(one[2]!)[2]]))
        .every(([a, b]) => a === b),
    ).toBe(true);
  });
});

describe("sockets", () => {
  it("an endpoint without a star is connected to: the subscriber binds", async () => {
    const subscriber = new Subscriber({ linger: 0 });
    cleanups.push(() => subscriber.close());
    await subscriber.bind("tcp://127.0.0.1:*");
    subscriber.subscribe();
    const engine = await startMockEngine({
      profile: "zero",
      kvEvents: { enable_kv_cache_events: true, endpoint: subscriber.lastEndpoint!, topic: "t" },
    });
    cleanups.push(() => engine.close());
    const [topic] = await nextBatch(engine, subscriber);
    expect(topic!.toString()).toBe("t");
  });

  async function nextBatch(engine: MockEngine, subscriber: Subscriber): Promise<Buffer[]> {
    let token = 0;
    let got: Buffer[] | null = null;
    void subscriber.receive().then((frames) => {
      got = frames as Buffer[];
    });
    await until(async () => {
      await send(engine.url, {
        method: "POST",
        path: "/v1/completions",
        body: { prompt: Array.from({ length: 17 }, () => token++), max_tokens: 1 },
      });
      return got !== null;
    });
    return got!;
  }
});

describe("replay", () => {
  /** Sends frames from a DEALER and collects answers up to the end marker, or until another request is answered. */
  async function ask(engine: MockEngine, frames: readonly Buffer[]): Promise<Buffer[][]> {
    const dealer = new Dealer({ linger: 0 });
    cleanups.push(() => dealer.close());
    dealer.connect(engine.replayEndpoints[0]!);
    await dealer.send([...frames]);
    return collect(dealer);
  }

  async function collect(dealer: Dealer): Promise<Buffer[][]> {
    const answers: Buffer[][] = [];
    for await (const frames of dealer) {
      answers.push(frames as Buffer[]);
      if ((frames as Buffer[]).some((frame) => frame.toString("hex") === "ffffffffffffffff")) break;
    }
    return answers;
  }

  const EVENTS = {
    enable_kv_cache_events: true,
    endpoint: "tcp://*:0",
    replay_endpoint: "tcp://*:0",
    topic: "kv-events",
  };

  async function startFresh(options: MockEngineOptions = {}): Promise<MockEngine> {
    const engine = await startMockEngine({
      profile: "zero",
      vocabSize: 1_000_000,
      kvEvents: EVENTS,
      ...options,
    });
    cleanups.push(() => engine.close());
    return engine;
  }

  const complete = (engine: MockEngine, length: number): Promise<unknown> =>
    send(engine.url, {
      method: "POST",
      path: "/v1/completions",
      body: { prompt: Array.from({ length }, (_, i) => length * 1000 + i), max_tokens: 1 },
    });

  it("kv-events/replay.jsonl: the recorded questions get answers of the recorded frames", async () => {
    const engine = await startFresh();
    let asked = 0;
    for (const step of steps("kv-events/replay.jsonl")) {
      const live = /^live-(\d+)$/.exec(step.step);
      if (live !== null) await complete(engine, Number(live[1]));
      if (step.sent_frames_b64 === undefined || step.received!.length === 0) continue;
      const got = await ask(
        engine,
        step.sent_frames_b64.map((frame) => Buffer.from(frame, "base64")),
      );
      const shown = (frames: readonly Buffer[]): string[] =>
        frames.map((frame) => (frame.length > 16 ? "payload" : frame.toString("hex")));
      expect([step.step, ...got.map(shown)]).toEqual([
        step.step,
        ...step.received!.map((message) => shown(framesOf(message))),
      ]);
      asked++;
    }
    expect(asked).toBeGreaterThanOrEqual(6);
  });

  it("questions of another frame count get no answer, and the socket serves on", async () => {
    const engine = await startFresh();
    await complete(engine, 20);
    const dealer = new Dealer({ linger: 0 });
    cleanups.push(() => dealer.close());
    dealer.connect(engine.replayEndpoints[0]!);
    const empty = Buffer.alloc(0);
    await dealer.send([Buffer.alloc(8)]);
    await dealer.send([empty, Buffer.alloc(8), Buffer.from("x")]);
    await dealer.send([empty, Buffer.alloc(8)]);
    const answers = await collect(dealer);
    expect(answers).toHaveLength(2);
    expect(decode(answers[0]![3]!)[1]).toHaveLength(1);
  });

  it("v0.23.0/replay.jsonl: the older frames", async () => {
    const engine = await startFresh({ misbehaviour: { replayFrames: "without-topic", events: "array" } });
    await complete(engine, 20);
    const got = await ask(engine, [Buffer.alloc(0), Buffer.alloc(8)]);
    const [first, last] = [got[0]!, got.at(-1)!];
    const recorded = steps("v0.23.0/replay.jsonl")[0]!.received!;
    expect(first.length).toBe(framesOf(recorded[0]!).length);
    expect(last).toEqual(framesOf(recorded.at(-1)!));
  });

  it("a short buffer answers with what it has; a replay that is off answers nothing", async () => {
    const engine = await startFresh({ misbehaviour: { replaySteps: 2 } });
    for (const length of [20, 40, 60, 80]) await complete(engine, length);
    const got = await ask(engine, [Buffer.alloc(0), Buffer.alloc(8)]);
    expect(got.slice(0, -1).map((frames) => frames[2]!.readBigUInt64BE())).toEqual([2n, 3n]);
    engine.misbehave({ replay: "off" });
    const dealer = new Dealer({ linger: 0 });
    cleanups.push(() => dealer.close());
    dealer.connect(engine.replayEndpoints[0]!);
    await dealer.send([Buffer.alloc(0), Buffer.alloc(8)]);
    const answered = collect(dealer).then(() => "answered");
    const waited = new Promise((resolve) => setTimeout(resolve, 100, "silence"));
    expect(await Promise.race([answered, waited])).toBe("silence");
  });
});
