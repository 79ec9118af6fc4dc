/** Real ZMQ sockets between engine and bridge: whatever happens to either, the index ends up equal to the engine's own block table. */

import { afterEach, beforeAll, describe, expect, test } from "vitest";
import { Publisher, Router } from "zeromq";
import { decodeBatch } from "../../gpu-agent/bridge/decode.ts";
import { RankPublisher } from "../../gpu-agent/bridge/publisher.ts";
import { RankStream } from "../../gpu-agent/bridge/stream.ts";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import type { MemoryStore } from "../../src/store/memory/index.ts";
import {
  Bridge,
  depthIn,
  jsonLines,
  MODEL,
  newBus,
  registration,
  type Scheme,
  tokensScheme,
  viewOf,
} from "./harness.ts";
import { BLOCK_SIZE, LOOPBACK, TestEngine, type TestEngineOptions, until } from "./test-engine.ts";

let hasher: Hasher;
let scheme: Scheme;
beforeAll(async () => {
  hasher = await createHasher();
  scheme = tokensScheme(hasher);
});

const open: { close(): void }[] = [];
afterEach(() => {
  for (const thing of open.splice(0)) thing.close();
});

async function engineWith(options: TestEngineOptions = {}): Promise<TestEngine> {
  const engine = await TestEngine.start(options);
  open.push(engine);
  return engine;
}

interface Bridged {
  readonly publisher: RankPublisher;
  readonly stream: RankStream;
  readonly view: MemoryStore;
  /** Incarnations so far, the first included. */
  lives(): number;
}

async function bridgeTo(endpoint: string, replayEndpoint: string | null): Promise<Bridged> {
  const bus = newBus();
  const view = viewOf(bus);
  let lives = 0;
  const publisher = new RankPublisher({
    bus,
    registration: registration(scheme, BLOCK_SIZE),
    mirror: { keyer: scheme.keyer, model: MODEL, blockSize: BLOCK_SIZE },
    now: () => performance.now(),
    newIncarnation: () => `life-${++lives}`,
    onMismatch: (error) => {
      throw error;
    },
  });
  const stream = new RankStream({
    endpoint,
    replayEndpoint,
    replaySpacingMs: 50,
    replayTimeoutMs: 1_000,
    onStep: (step) => {
      if (step.kind === "reset") publisher.reset(step.reason);
      else publisher.apply(decodeBatch(step.payload));
    },
    onProblem: () => undefined,
  });
  await stream.open();
  open.push(stream);
  return { publisher, stream, view, lives: () => lives };
}

/** An engine that publishes from its first batch on needs its subscriber there: waits until a batch comes through. */
async function joined(engine: TestEngine, bridge: Bridged): Promise<void> {
  while (bridge.stream.watermark === null) {
    await engine.publish([]);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await caughtUp(engine, bridge);
}

async function caughtUp(engine: TestEngine, bridge: Bridged): Promise<void> {
  await until(() => bridge.stream.watermark === engine.sequence - 1, `watermark ${engine.sequence - 1}`);
}

function expectSameAsTable(engine: TestEngine, { view, publisher }: Bridged): void {
  const copies = [...engine.table.values()].reduce((sum, row) => sum + row.copies, 0);
  expect(publisher.mirror.heldBlocks().reduce((sum, row) => sum + row.copies, 0)).toBe(copies);
  for (const hash of engine.table.keys()) {
    expect(depthIn(view, scheme, engine.promptOf(hash)), `block ${hash}`).toBe(engine.strictDepth(hash));
  }
}

describe("forms of the wire", () => {
  test.each<TestEngineOptions>([
    { hashes: "integer", events: "map" },
    { hashes: "negative", events: "array" },
    { hashes: "bytes", events: "map" },
    { hashes: "bytes", events: "array" },
  ])("$hashes hashes in the $events form: store, duplicate, evict", async (options) => {
    const engine = await engineWith(options);
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    const first = engine.store(null, [1, 2, 3]);
    const branch = engine.store(first.hashes[0]!, [7, 8]);
    const copy = engine.store(first.hashes[1]!, [3]);
    await engine.publish([first.event, branch.event]);
    await engine.publish([copy.event, engine.remove(first.hashes[2]!), engine.remove(branch.hashes[1]!)]);
    await caughtUp(engine, bridge);
    expectSameAsTable(engine, bridge);
    expect(engine.strictDepth(first.hashes[2]!)).toBe(3);
    expect(bridge.lives()).toBe(1);
  });

  test("an engine that was given an address without * connects itself: the bridge binds", async () => {
    const bridge = await bridgeTo("bind:tcp://127.0.0.1:*", null);
    const engine = await engineWith({ connectTo: bridge.stream.boundEndpoint!, replay: null });
    await joined(engine, bridge);
    await engine.publish([engine.store(null, [1, 2]).event]);
    await caughtUp(engine, bridge);
    expectSameAsTable(engine, bridge);
  });
});

describe("plain addresses", () => {
  test("a free one of this machine is bound: the engine connects to it", async () => {
    const probe = await TestEngine.start({ replay: null });
    const address = probe.endpoint;
    probe.close();
    const bridge = await bridgeTo(address, null);
    const engine = await engineWith({ connectTo: address, replay: null });
    await joined(engine, bridge);
    await engine.publish([engine.store(null, [1, 2]).event]);
    await caughtUp(engine, bridge);
    expectSameAsTable(engine, bridge);
  });

  test("one that cannot be an address is an error that says so", async () => {
    await expect(bridgeTo("nonsense", null)).rejects.toMatchObject({
      code: "config_invalid",
      param: "events",
    });
  });
});

interface RecordedReplay {
  readonly step: string;
  readonly received?: readonly { readonly frames_b64: readonly string[] }[];
}

describe("recorded answers of the replay socket, frame by frame", () => {
  test.each([
    ["vllm/kv-events/replay.jsonl", "from-0"],
    ["vllm/v0.23.0/replay.jsonl", "replay-from-0"],
  ])("%s", async (file, step) => {
    const recorded = jsonLines<RecordedReplay>(file).find((line) => line.step === step)!;
    const answers = recorded.received!.map(({ frames_b64: frames }) =>
      frames.map((frame) => Buffer.from(frame, "base64")),
    );
    const publisher = new Publisher({ linger: 0 });
    const router = new Router({ linger: 0 });
    await publisher.bind(LOOPBACK);
    await router.bind(LOOPBACK);
    open.push(publisher, router);
    const bridge = await bridgeTo(publisher.lastEndpoint!, router.lastEndpoint);
    const [peer, delimiter, start] = await router.receive();
    expect([delimiter!.length, start]).toEqual([0, Buffer.alloc(8)]);
    for (const frames of answers) await router.send([peer!, ...frames]);

    const expected = new Bridge({ scheme });
    for (const frames of answers.slice(0, -1)) {
      expected.live(Number(frames.at(-2)!.readBigUInt64BE()), frames.at(-1)!);
    }
    const last = expected.sequencer.watermark;
    expect(last).toBeGreaterThan(0);
    await until(() => bridge.stream.watermark === last, "the end of the replay");
    expect(bridge.publisher.mirror.heldBlocks()).toEqual(expected.publisher.mirror.heldBlocks());
    expect(bridge.publisher.mirror.heldBlocks().length).toBeGreaterThan(0);
  });
});

describe("joining late", () => {
  test.each(["with-topic", "without-topic"] as const)(
    "everything before is replayed (frames %s)",
    async (replay) => {
      const engine = await engineWith({ replay });
      const { event, hashes } = engine.store(null, [1, 2, 3]);
      await engine.publish([event]);
      await engine.publish([engine.remove(hashes[2]!)]);
      const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
      await caughtUp(engine, bridge);
      expectSameAsTable(engine, bridge);
      await engine.publish([engine.store(hashes[1]!, [9]).event]);
      await caughtUp(engine, bridge);
      expectSameAsTable(engine, bridge);
      expect(engine.replaysServed).toEqual([0]);
    },
  );

  test("without replay, children of unknown parents wait, and attach when the engine computes their parents again", async () => {
    const engine = await engineWith({ replay: null });
    const parents = engine.store(null, [1, 2]);
    await engine.publish([parents.event]);
    const bridge = await bridgeTo(engine.endpoint, null);
    await joined(engine, bridge);
    const child = engine.store(parents.hashes[1]!, [3]);
    await engine.publish([child.event]);
    await caughtUp(engine, bridge);
    expect(depthIn(bridge.view, scheme, engine.promptOf(child.hashes[0]!))).toBe(0);
    await engine.publish([engine.remove(parents.hashes[1]!), engine.remove(parents.hashes[0]!)]);
    await engine.publish([engine.store(null, [1, 2]).event]);
    await caughtUp(engine, bridge);
    expectSameAsTable(engine, bridge);
    expect(depthIn(bridge.view, scheme, engine.promptOf(child.hashes[0]!))).toBe(3);
  });
});

describe("gaps", () => {
  test("replayed: the same incarnation, nothing counted twice", async () => {
    const engine = await engineWith();
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    const { event, hashes } = engine.store(null, [1, 2, 3, 4]);
    await engine.publish([event]);
    await engine.publish([engine.remove(hashes[3]!)], { lost: true });
    await engine.publish([engine.store(hashes[0]!, [6]).event], { lost: true });
    await engine.publish([engine.store(hashes[2]!, [5]).event]);
    await engine.publish([engine.store(hashes[2]!, [5]).event]);
    await caughtUp(engine, bridge);
    expectSameAsTable(engine, bridge);
    expect(bridge.lives()).toBe(1);
  });

  test("not replayable: a new incarnation, and only what came after counts", async () => {
    const engine = await engineWith({ replay: null });
    const bridge = await bridgeTo(engine.endpoint, null);
    await joined(engine, bridge);
    const before = engine.store(null, [1, 2]);
    await engine.publish([before.event]);
    await engine.publish([engine.remove(before.hashes[1]!)], { lost: true });
    const after = engine.store(null, [3, 4]);
    await engine.publish([after.event]);
    await caughtUp(engine, bridge);
    expect(bridge.lives()).toBe(2);
    expect(depthIn(bridge.view, scheme, engine.promptOf(before.hashes[1]!))).toBe(0);
    expect(depthIn(bridge.view, scheme, engine.promptOf(after.hashes[1]!))).toBe(2);
  });

  test("a replay that begins too late is a hole all the same", async () => {
    const engine = await engineWith({ bufferSteps: 1 });
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    const before = engine.store(null, [1, 2]);
    await engine.publish([before.event]);
    await caughtUp(engine, bridge);
    await engine.publish([engine.remove(before.hashes[1]!)], { lost: true });
    const after = engine.store(null, [3]);
    await engine.publish([after.event]);
    await caughtUp(engine, bridge);
    expect([...bridge.publisher.voided]).toEqual([["gap", 1]]);
    expect(depthIn(bridge.view, scheme, engine.promptOf(before.hashes[0]!))).toBe(0);
    expect(depthIn(bridge.view, scheme, engine.promptOf(after.hashes[0]!))).toBe(1);
  });
});

describe("lives of the engine", () => {
  async function restart(engine: TestEngine, options: TestEngineOptions = {}): Promise<TestEngine> {
    const { endpoint, replayEndpoint } = engine;
    engine.close();
    return engineWith({
      ...options,
      bindTo: endpoint,
      ...(replayEndpoint !== null && { replayBindTo: replayEndpoint }),
    });
  }

  test.each([
    ["with replay", undefined],
    ["without replay", null],
  ] as const)("restarted: a new incarnation that equals the new table (%s)", async (_, replay) => {
    const options = replay === null ? { replay } : {};
    const engine = await engineWith(options);
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    const old = engine.store(null, [1, 2, 3]);
    await engine.publish([old.event]);
    await caughtUp(engine, bridge);
    const next = await restart(engine, options);
    // Without replay the first batches go to nobody until the subscriber is back.
    await until2(async () => {
      await next.publish([next.store(null, [5]).event]);
      return bridge.lives() === 2;
    });
    await next.publish([next.store(null, [6, 7]).event]);
    await caughtUp(next, bridge);
    expect(bridge.lives()).toBe(2);
    expect(depthIn(bridge.view, scheme, engine.promptOf(old.hashes[2]!))).toBe(0);
    if (replay !== null) expectSameAsTable(next, bridge);
    else expect(depthIn(bridge.view, scheme, next.promptOf(next.store(null, [6, 7]).hashes[1]!))).toBe(2);
  });

  test("restarted and already past the old sequence number: the last batch of before is unknown to it", async () => {
    const engine = await engineWith();
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    await engine.publish([engine.store(null, [1]).event]);
    await caughtUp(engine, bridge);
    const at = engine.sequence;
    const next = new TestEngine();
    open.push(next);
    for (let i = 0; i < at + 3; i++) await next.publish([next.store(null, [20 + i]).event], { lost: true });
    const { endpoint, replayEndpoint } = engine;
    engine.close();
    await next.openRouterAt(replayEndpoint!);
    await next.openPublisher(endpoint);
    await caughtUp(next, bridge);
    expect([...bridge.publisher.voided]).toEqual([["restart", 1]]);
    expectSameAsTable(next, bridge);
  });

  test("a lost connection to the same engine loses nothing", async () => {
    const engine = await engineWith();
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    const { event, hashes } = engine.store(null, [1, 2, 3]);
    await engine.publish([event]);
    await caughtUp(engine, bridge);
    await engine.publish([engine.remove(hashes[2]!)], { lost: true });
    await engine.blink();
    await caughtUp(engine, bridge);
    expectSameAsTable(engine, bridge);
    expect(bridge.lives()).toBe(1);
  });

  test("cleared, in one batch with the first blocks after it: a new incarnation holds those", async () => {
    const engine = await engineWith();
    const bridge = await bridgeTo(engine.endpoint, engine.replayEndpoint);
    await joined(engine, bridge);
    const old = engine.store(null, [1, 2, 3]);
    await engine.publish([old.event]);
    await caughtUp(engine, bridge);
    const prompt = engine.promptOf(old.hashes[2]!);
    await engine.publish([engine.clear(), engine.clear(), engine.store(null, [1]).event]);
    await caughtUp(engine, bridge);
    expect(bridge.lives()).toBe(2);
    expect(depthIn(bridge.view, scheme, prompt)).toBe(1);
    expectSameAsTable(engine, bridge);
  });
});

async function until2(attempt: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + 10_000;
  while (!(await attempt())) {
    if (performance.now() > end) throw new Error("the bridge never heard of the new engine");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
