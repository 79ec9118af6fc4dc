/** The mock's scheduler and block manager, fed what a real vLLM was fed, reuse, announce and evict the same blocks. */

import { readFileSync } from "node:fs";
import { unpack } from "msgpackr";
import { describe, expect, it } from "vitest";
import { BlockManager, type ChainFacts, type KvEvent } from "../../gpu-agent/engines/mock/block-manager.ts";
import { ManualClock } from "../../gpu-agent/engines/mock/clock.ts";
import { Scheduler } from "../../gpu-agent/engines/mock/scheduler.ts";
import { DEFAULT_TRANSFER, PROFILES } from "../../gpu-agent/engines/mock/timing.ts";

const FIXTURES = new URL("../fixtures/vllm/kv-events/", import.meta.url);

interface Body {
  readonly model?: string;
  readonly prompt?: readonly number[] | string;
  readonly max_tokens?: number;
  readonly n?: number;
  readonly cache_salt?: string | null;
  readonly session_id?: string;
  readonly vllm_xargs?: { readonly kv_cache_report_mode?: string };
}
interface DecodedEvent {
  readonly type: string;
  readonly block_hashes?: readonly string[];
  readonly parent_block_hash?: string | null;
  readonly token_ids?: readonly number[];
  readonly extra_keys?: unknown;
  readonly lora_id?: number | null;
  readonly lora_name?: string | null;
  readonly session_id?: string;
}
interface Message {
  readonly decoded: { readonly events: readonly DecodedEvent[] };
}
interface Usage {
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}
interface Response {
  readonly status: number;
  readonly usage?: Usage;
  readonly prompt_token_ids?: readonly number[] | null;
  readonly output_token_ids?: readonly (readonly number[])[];
}
interface Request {
  readonly path?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Body;
}
interface Step {
  readonly step: string;
  readonly request?: Request;
  readonly requests?: readonly (Request & Body)[];
  readonly response?: Response;
  readonly responses?: readonly Response[];
  readonly messages?: readonly Message[];
  readonly messages_by_port?: Readonly<Record<string, readonly Message[]>>;
}

function lines<T>(name: string): T[] {
  return readFileSync(new URL(name, FIXTURES), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line) as T);
}

const LORAS: Readonly<Record<string, NonNullable<ChainFacts["lora"]>>> = {
  tide: { id: 1, name: "tide", path: "lora-tide" },
  gale: { id: 2, name: "gale", path: "lora-gale" },
};

/** One rank of a mock engine, without a network. */
class Rank {
  readonly blocks: BlockManager;
  readonly batches: (readonly KvEvent[])[] = [];
  readonly #clock = new ManualClock();
  readonly scheduler: Scheduler;
  #invented = 200_000;

  constructor(
    options: { readonly blocks?: number; readonly blockSize?: number; readonly budget?: number } = {},
  ) {
    this.blocks = new BlockManager({
      blocks: options.blocks ?? 131_072,
      blockSize: options.blockSize ?? 16,
      hashSeed: null,
    });
    this.scheduler = new Scheduler({
      blocks: this.blocks,
      clock: this.#clock,
      profile: PROFILES["8b-h100"],
      transfer: DEFAULT_TRANSFER,
      speed: 1,
      maxBatchedTokens: options.budget ?? 2048,
      maxSequences: 256,
      policy: "fcfs",
      onEvents: (events) => this.batches.push(events),
    });
  }

  /** Runs the requests together; the result is their cached tokens and the batches of events. */
  run(
    bodies: readonly Body[],
    outputs: readonly (readonly number[])[] = [],
  ): { cached: number[]; batches: (readonly KvEvent[])[] } {
    const sequences = bodies.map((body, i) => {
      const output = outputs[i];
      return this.scheduler.submit(
        {
          id: `r${i}`,
          prompt: body.prompt as readonly number[],
          source: { next: (k) => output?.[k] ?? this.#invented++, endToken: null },
          maxTokens: body.max_tokens ?? 16,
          priority: 0,
          remotePrefill: null,
          reportFull: body.vllm_xargs?.kv_cache_report_mode === "full",
          ignoreCache: false,
          arrivalMs: this.#clock.nowMs(),
          onToken: () => false,
        },
        {
          lora: LORAS[body.model ?? ""] ?? null,
          salt: body.cache_salt ?? null,
          sessionId: body.session_id ?? null,
        },
      );
    });
    this.#clock.drain();
    return { cached: sequences.map((sequence) => sequence.cachedTokens!), batches: this.batches.splice(0) };
  }
}

/** Only shapes: how many blocks, with or without a parent, whose adapter. */
function shapeOfEvent(event: KvEvent): string {
  if (event.type === "cleared") return "cleared";
  if (event.type === "removed") return `removed ${event.digests.length}`;
  return `stored ${event.digests.length}${event.parent === null ? "" : " behind parent"}`;
}
function shapeOfRecorded(event: DecodedEvent): string {
  if (event.type === "AllBlocksCleared") return "cleared";
  const count = event.block_hashes!.length;
  if (event.type === "BlockRemoved") return `removed ${count}`;
  return `stored ${count}${event.parent_block_hash === null ? "" : " behind parent"}`;
}
const shapes = (batches: readonly (readonly KvEvent[])[]): string[][] =>
  batches.map((batch) => batch.map(shapeOfEvent));
const recordedShapes = (messages: readonly Message[] = []): string[][] =>
  messages.map((message) => message.decoded.events.map(shapeOfRecorded));

/** A request's output as far as its own events show it; good for fresh prompts. */
function announcedOutput(step: Step, promptLength: number): number[] {
  const events = step.messages?.flatMap(({ decoded }) => decoded.events) ?? [];
  return events.flatMap((event) => event.token_ids ?? []).slice(promptLength);
}

/** Replays a recording of single requests; yields what each step gave and what the real engine gave. */
function replay(
  rank: Rank,
  steps: readonly Step[],
  check: (step: Step, got: ReturnType<Rank["run"]>) => void,
): number {
  let checked = 0;
  for (const step of steps) {
    if (step.request?.path === "/reset_prefix_cache") {
      expect(rank.blocks.reset()).toBe(true);
      continue;
    }
    const usage = step.response?.usage;
    if (step.request?.body === undefined || usage === undefined) continue;
    const body = step.request.body;
    const prompt = step.response?.prompt_token_ids ?? body.prompt!;
    const bodies = Array.from({ length: body.n ?? 1 }, () => ({
      ...body,
      prompt,
      session_id: body.session_id ?? step.request?.headers?.["x-session-id"],
    }));
    check(step, rank.run(bodies, step.response?.output_token_ids ?? [announcedOutput(step, prompt.length)]));
    checked++;
  }
  return checked;
}

describe("a recorded vLLM", () => {
  it.each(["steps-a.jsonl", "steps-b.jsonl"])(
    "%s: the same cached tokens and the same batches, token for token",
    (name) => {
      const rank = new Rank();
      const steps = lines<Step>(name);
      const checked = replay(rank, steps, (step, got) => {
        expect([step.step, got.cached.at(-1)]).toEqual([
          step.step,
          step.response!.usage!.prompt_tokens_details.cached_tokens,
        ]);
        expect([step.step, ...shapes(got.batches).flat().sort()]).toEqual([
          step.step,
          ...recordedShapes(step.messages).flat().sort(),
        ]);
        const stored = got.batches.flat().filter((event) => event.type === "stored");
        const recorded = step
          .messages!.flatMap((message) => message.decoded.events)
          .filter((event) => event.type === "BlockStored");
        expect(stored.map((event) => [event.tokenIds, event.extraKeys, event.sessionId])).toEqual(
          recorded.map((event) => [event.token_ids, event.extra_keys, event.session_id ?? null]),
        );
      });
      expect(checked).toBeGreaterThan(15);
    },
  );

  it("steps-a.jsonl: two requests at once make two batches, the second a step behind", () => {
    const step = lines<Step>("steps-a.jsonl").find((candidate) => candidate.step === "two-at-once")!;
    const got = new Rank().run(step.requests!.map((request) => request.body!));
    expect(shapes(got.batches)).toEqual(recordedShapes(step.messages));
  });

  it("eviction.jsonl: the same cached tokens, batches and evictions of a small cache", () => {
    const checked = replay(new Rank({ blocks: 64 }), lines<Step>("eviction.jsonl"), (step, got) => {
      expect([step.step, got.cached[0]]).toEqual([
        step.step,
        step.response!.usage!.prompt_tokens_details.cached_tokens,
      ]);
      expect([step.step, ...shapes(got.batches)]).toEqual([step.step, ...recordedShapes(step.messages)]);
    });
    expect(checked).toBeGreaterThan(10);
  });

  it("trace.jsonl: the cached tokens of all 157 requests, and every batch", () => {
    const rank = new Rank({ blocks: 64 });
    interface Row extends Body {
      readonly cached_tokens: number;
      readonly output_token_ids: readonly number[];
      /** Frames only: topic, seq, payload. */
      readonly messages: readonly (readonly string[])[];
      readonly copies_held_after: number;
    }
    const decoded = (row: Row): Message[] =>
      row.messages.map((frames) => {
        const [, events] = unpack(Buffer.from(frames[2]!, "base64")) as [number, DecodedEvent[]];
        return { decoded: { events } };
      });
    const rows = lines<Row>("trace.jsonl");
    expect(rows).toHaveLength(157);
    rank.blocks.reset();
    for (const row of rows) {
      const got = rank.run([row], [row.output_token_ids]);
      expect(got.cached).toEqual([row.cached_tokens]);
      expect(shapes(got.batches)).toEqual(recordedShapes(decoded(row)));
      expect(rank.blocks.cachedBlocks).toBe(row.copies_held_after);
      expect(rank.blocks.table().reduce((sum, { copies }) => sum + copies, 0)).toBe(row.copies_held_after);
    }
  });

  it("preemption.jsonl: the loser is preempted once, recomputed, and both end", () => {
    const step = lines<Step & { readonly num_preemptions_total: unknown }>("preemption.jsonl")[0]!;
    const rank = new Rank({ blocks: 64 });
    rank.blocks.reset();
    const got = rank.run(step.requests!);
    expect(got.cached).toEqual(
      step.responses!.map((response) => response.usage!.prompt_tokens_details.cached_tokens),
    );
    expect(rank.scheduler.metrics.preemptions).toBe(1);
    const count = (all: readonly string[], start: string): number =>
      all.filter((shape) => shape.startsWith(start)).length;
    const ours = shapes(got.batches).flat();
    const theirs = recordedShapes(step.messages).flat();
    expect(count(ours, "stored")).toBe(count(theirs, "stored"));
    expect(count(ours, "removed")).toBe(count(theirs, "removed"));
  });

  it("lora.jsonl: adapters are caches of their own", () => {
    const checked = replay(new Rank(), lines<Step>("lora.jsonl"), (step, got) => {
      expect([step.step, got.cached[0]]).toEqual([
        step.step,
        step.response!.usage!.prompt_tokens_details.cached_tokens,
      ]);
      const stored = got.batches.flat().filter((event) => event.type === "stored");
      expect(stored.map((event) => [event.loraId, event.loraName, event.extraKeys])).toEqual(
        step
          .messages!.flatMap(({ decoded }) => decoded.events)
          .map((event) => [event.lora_id, event.lora_name, event.extra_keys]),
      );
    });
    expect(checked).toBeGreaterThanOrEqual(6);
  });

  it("data-parallel-2.jsonl: every rank has its own cache", () => {
    const ranks = [new Rank({ blocks: 1024 }), new Rank({ blocks: 1024 })];
    for (const step of lines<Step>("data-parallel-2.jsonl")) {
      if (step.request?.path === "/reset_prefix_cache") for (const rank of ranks) rank.blocks.reset();
      const body = step.request?.body;
      if (!Array.isArray(body?.prompt) || step.response?.usage === undefined) continue;
      const byPort = Object.values(step.messages_by_port!);
      const busy = byPort.findIndex((messages) => messages.length > 0);
      const pinned = Number(step.request?.headers?.["x-data-parallel-rank"]);
      const rank = Number.isInteger(pinned) ? pinned : Math.max(0, busy);
      const got = ranks[rank]!.run([body]);
      expect([step.step, got.cached[0]]).toEqual([
        step.step,
        step.response.usage.prompt_tokens_details.cached_tokens,
      ]);
      expect([step.step, ...shapes(got.batches)]).toEqual([step.step, ...recordedShapes(byPort[rank])]);
    }
  });

  it("cached-tokens-block-16.json: repeats and extensions of every length around block ends", () => {
    const { rows } = JSON.parse(readFileSync(new URL("cached-tokens-block-16.json", FIXTURES), "utf8")) as {
      rows: { prompt_tokens: number; cached_tokens: number[]; cached_tokens_when_extended_by_40: number }[];
    };
    const rank = new Rank();
    for (const [index, row] of rows.entries()) {
      const prompt = Array.from({ length: row.prompt_tokens }, (_, i) => index * 2000 + i);
      const again = row.cached_tokens.map(() => rank.run([{ prompt, max_tokens: 1 }]).cached[0]);
      expect(again).toEqual(row.cached_tokens);
      const longer = [...prompt, ...Array.from({ length: 40 }, (_, i) => 900_000 + i)];
      expect(rank.run([{ prompt: longer, max_tokens: 1 }]).cached).toEqual([
        row.cached_tokens_when_extended_by_40,
      ]);
    }
  });

  it.each([
    ["block-32.jsonl", 32],
    ["block-128-bytes-no-topic.jsonl", 128],
  ])("%s: other block sizes", (name, blockSize) => {
    const checked = replay(new Rank({ blockSize }), lines<Step>(name), (step, got) => {
      expect([step.step, got.cached[0]]).toEqual([
        step.step,
        step.response!.usage!.prompt_tokens_details.cached_tokens,
      ]);
      expect([step.step, ...shapes(got.batches)]).toEqual([step.step, ...recordedShapes(step.messages)]);
    });
    expect(checked).toBeGreaterThan(5);
  });

  it("hash-sha256_cbor.jsonl: the very hashes", () => {
    let compared = 0;
    replay(new Rank(), lines<Step>("hash-sha256_cbor.jsonl"), (step, got) => {
      const ours = got.batches
        .flat()
        .flatMap((event) => (event.type === "stored" ? event.digests.map((digest) => digest.slice(48)) : []));
      const theirs = step
        .messages!.flatMap(({ decoded }) => decoded.events)
        .flatMap((event) => event.block_hashes ?? []);
      expect(ours).toEqual(theirs);
      compared += theirs.length;
    });
    expect(compared).toBeGreaterThan(8);
  });
});
