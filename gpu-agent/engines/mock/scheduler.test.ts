/** The scheduler keeps the timing model's promises, on a clock that is turned by hand. */

import { describe, expect, it } from "vitest";
import { BlockManager } from "./block-manager.ts";
import { ManualClock } from "./clock.ts";
import { Scheduler } from "./scheduler.ts";
import type { FinishReason, Sequence } from "./sequence.ts";
import { DEFAULT_TRANSFER, PROFILES, type ProfileName, stepMs } from "./timing.ts";

interface Options {
  readonly clock?: ManualClock;
  readonly blocks?: number;
  readonly speed?: number;
  readonly profile?: ProfileName;
  readonly maxSequences?: number;
  readonly policy?: "fcfs" | "priority";
}

class Rig {
  readonly clock: ManualClock;
  readonly blocks: BlockManager;
  readonly scheduler: Scheduler;
  /** `id: token count at ms`, in order. */
  readonly log: { readonly id: string; readonly atMs: number; readonly finish: FinishReason | null }[] = [];
  #next = 1_000_000;

  constructor(options: Options = {}) {
    this.clock = options.clock ?? new ManualClock();
    this.blocks = new BlockManager({ blocks: options.blocks ?? 26_313, blockSize: 16, hashSeed: null });
    this.scheduler = new Scheduler({
      blocks: this.blocks,
      clock: this.clock,
      profile: PROFILES[options.profile ?? "8b-h100"],
      transfer: DEFAULT_TRANSFER,
      speed: options.speed ?? 1,
      maxBatchedTokens: 8192,
      maxSequences: options.maxSequences ?? 256,
      policy: options.policy ?? "fcfs",
      onEvents: () => undefined,
    });
  }

  submit(
    id: string,
    promptLength: number,
    maxTokens: number,
    more: { first?: number; priority?: number; remote?: number } = {},
  ): Sequence {
    const first = more.first ?? this.#next;
    this.#next += promptLength;
    return this.scheduler.submit(
      {
        id,
        prompt: Array.from({ length: promptLength }, (_, i) => first + i),
        source: { next: (k) => 50_000_000 + k, endToken: null },
        maxTokens,
        priority: more.priority ?? 0,
        remotePrefill:
          more.remote === undefined ? null : { tokens: more.remote, cachedTokens: 0, fails: false },
        reportFull: false,
        ignoreCache: false,
        arrivalMs: this.clock.nowMs(),
        onToken: (_, finish) => {
          this.log.push({ id, atMs: this.clock.nowMs(), finish });
          return false;
        },
      },
      { lora: null, salt: null, sessionId: null },
    );
  }

  firstTokenMs(id: string): number {
    return this.log.find((entry) => entry.id === id)!.atMs;
  }
}

describe("timing", () => {
  it.each([
    ["8b-h100", 196],
    ["70b-tp4-h100", 638],
  ] as const)("%s: an 8,192-token prefill takes %i ms", (profile, ms) => {
    const rig = new Rig({ profile });
    rig.submit("a", 8192, 1);
    rig.clock.drain();
    expect(rig.firstTokenMs("a")).toBeCloseTo(ms, -0.5);
  });

  it.each([
    [1, 7.4],
    [32, 13.2],
    [128, 31],
  ])("8b-h100: a decode step of %i sequences at 4k context takes about %f ms", (sequences, ms) => {
    const work = {
      prefillTokens: 0,
      prefillAttention: 0,
      decodingSequences: sequences,
      contextTokens: sequences * 4096,
    };
    expect(Math.abs(stepMs(PROFILES["8b-h100"], work) - ms)).toBeLessThan(0.06 * ms);
  });

  it("time runs faster by the factor of the speed", () => {
    const rig = new Rig({ speed: 4 });
    rig.submit("a", 8192, 1);
    rig.clock.drain();
    expect(rig.firstTokenMs("a")).toBeCloseTo(196 / 4, 0);
  });

  it("timers that fire late do not slow the engine down", () => {
    const late = new (class extends ManualClock {
      override at(dueMs: number, call: () => void): () => void {
        return super.at(dueMs + 3, call);
      }
    })();
    const rig = new Rig({ clock: late });
    const exact = new Rig();
    for (const one of [rig, exact]) {
      one.submit("a", 16, 200);
      one.clock.drain();
    }
    expect(rig.log.at(-1)!.atMs - exact.log.at(-1)!.atMs).toBeCloseTo(3, 6);
    expect(rig.scheduler.lostMs).toBe(0);
  });

  it("a cached prefix is not computed again", () => {
    const rig = new Rig();
    rig.submit("a", 8000, 1, { first: 0 });
    rig.clock.drain();
    const startMs = rig.clock.nowMs();
    rig.submit("b", 8000, 1, { first: 0 });
    rig.clock.drain();
    expect(rig.firstTokenMs("b") - startMs).toBeLessThan(8);
  });
});

describe("batching", () => {
  it("a long prompt is prefilled in chunks while others go on decoding", () => {
    const rig = new Rig();
    rig.submit("short", 16, 200);
    rig.clock.advance(50);
    rig.submit("long", 20_000, 1);
    rig.clock.advance(2000);
    const between = rig.log.filter(
      ({ id, atMs }) => id === "short" && atMs > 50 && atMs <= rig.firstTokenMs("long"),
    );
    // 20,000 tokens take three steps of at most 8,192: three tokens of the other request come out of them.
    expect(between).toHaveLength(4);
  });

  it("blocks are reusable when their chunk ends, not before", () => {
    const rig = new Rig();
    const first = rig.submit("a", 100, 1, { first: 0 });
    const second = rig.submit("b", 100, 1, { first: 0 });
    rig.clock.drain();
    expect([first.cachedTokens, second.cachedTokens]).toEqual([0, 96]);
    expect(rig.firstTokenMs("b")).toBeGreaterThan(rig.firstTokenMs("a"));
  });

  it("no more run than may run, and the rest come in order of arrival", () => {
    const rig = new Rig({ maxSequences: 2 });
    for (const id of ["a", "b", "c", "d"]) rig.submit(id, 32, 3);
    expect([rig.scheduler.running, rig.scheduler.waiting]).toEqual([1, 3]);
    rig.clock.drain();
    const ends = rig.log.filter(({ finish }) => finish !== null).map(({ id }) => id);
    expect(ends).toEqual(["a", "b", "c", "d"]);
  });

  it("priority: the lower number runs sooner", () => {
    const rig = new Rig({ maxSequences: 1, policy: "priority" });
    rig.submit("running", 16, 1);
    rig.submit("late", 16, 1, { priority: 5 });
    rig.submit("soon", 16, 1, { priority: -1 });
    rig.clock.drain();
    expect(rig.log.map(({ id }) => id)).toEqual(["running", "soon", "late"]);
  });

  it("a request that is aborted frees its blocks at once and says nothing more", () => {
    const rig = new Rig();
    const sequence = rig.submit("a", 1000, 50);
    rig.clock.advance(100);
    const said = rig.log.length;
    expect(rig.blocks.usage).toBeGreaterThan(0);
    rig.scheduler.abort(sequence);
    rig.scheduler.abort(sequence);
    expect(rig.blocks.usage).toBe(0);
    rig.clock.drain();
    expect(rig.log).toHaveLength(said);
    expect(rig.scheduler.metrics.success.abort).toBe(0);
  });

  it("with too few blocks, everyone still ends, and no block is lost", () => {
    const rig = new Rig({ blocks: 64 });
    for (let i = 0; i < 8; i++) rig.submit(`r${i}`, 150 + i * 40, 200);
    rig.clock.drain();
    expect(rig.log.filter(({ finish }) => finish === "length")).toHaveLength(8);
    expect(rig.scheduler.metrics.preemptions).toBeGreaterThan(0);
    expect(rig.blocks.freeBlocks).toBe(63);
  });

  it("remote KV is waited for apart from the queue, and only the last token is computed", () => {
    const rig = new Rig();
    const sequence = rig.submit("decode", 8000, 2, { remote: 8000 });
    expect([rig.scheduler.deferred, rig.scheduler.waiting]).toEqual([1, 0]);
    rig.clock.drain();
    // 25 ms and 8,000 · 131,072 bytes at 20 GB/s, then one decode step.
    expect(rig.firstTokenMs("decode")).toBeCloseTo(25 + 52.4 + 7.2, 0);
    expect(sequence.cachedTokens).toBe(0);
    expect(rig.blocks.table()).toHaveLength(500);
  });
});
