/** Dynamo's recorded event payloads and streams through the bridge: equal to Dynamo 1.6.1 but for the intended differences. */

import { beforeAll, describe, expect, test } from "vitest";
import { createHasher, type Hasher } from "../../src/prefix/hasher.ts";
import { Bridge, jsonLines, tokensScheme } from "./harness.ts";
import { INTENDED_DIFFERENCES } from "./intended-differences.ts";

type Blocks = readonly [number, number, number];

interface EventCase {
  readonly name: string;
  readonly block_size: number;
  readonly batches: readonly { readonly seq: number; readonly payload_hex: string }[];
  readonly lookups: readonly {
    readonly token_ids: number[];
    readonly lora_name?: string;
    readonly cache_salt?: string;
  }[];
  readonly overlap_1_6: readonly Readonly<Record<string, Blocks>>[];
}

interface EngineStream {
  readonly block_size: number;
  readonly engines: number;
  readonly frames: readonly {
    readonly engine: number;
    readonly seq_hex: string;
    readonly payload_hex: string;
  }[];
  readonly lookups: readonly { readonly token_ids: number[]; readonly blocks: readonly number[] }[];
}

let hasher: Hasher;
beforeAll(async () => {
  hasher = await createHasher();
});

const CASES = jsonLines<EventCase>("dynamo/event-batches.jsonl");

function answersOf({ block_size: blockSize, batches, lookups }: EventCase): Blocks[] {
  const bridge = new Bridge({ scheme: tokensScheme(hasher), blockSize });
  for (const { seq, payload_hex: hex } of batches) bridge.live(seq, Buffer.from(hex, "hex"));
  return lookups.map(({ token_ids: ids, lora_name: adapter, cache_salt: salt }) =>
    bridge.extensions(ids, { adapter: adapter ?? null, salt: salt ?? null }),
  );
}

describe("event-batches.jsonl", () => {
  test.each(CASES)("$name", (recorded) => {
    const difference = INTENDED_DIFFERENCES.find(({ name }) => name === recorded.name);
    const dynamo = recorded.overlap_1_6.map((ranks) => ranks["0"] ?? [0, 0, 0]);
    expect(answersOf(recorded)).toEqual(difference?.answer ?? dynamo);
    // A listed difference that is none would hide the day it becomes one.
    if (difference !== undefined) expect(difference.answer).not.toEqual(dynamo);
  });

  test("every intended difference names a recorded case and has a reason", () => {
    for (const { name, reason } of INTENDED_DIFFERENCES) {
      expect(CASES.map((recorded) => recorded.name)).toContain(name);
      expect(reason.length).toBeGreaterThan(5);
    }
  });

  test("a salt with the prefix of Dynamo's frontend is found under its whole name", () => {
    const recorded = CASES.find(({ name }) => name === "extra keys: salt")!;
    const salted = {
      ...recorded,
      lookups: [{ ...recorded.lookups[1]!, cache_salt: "dynamo-cache-salt:tenant-a" }],
    };
    expect(answersOf(salted)).toEqual([[4, 0, 0]]);
  });
});

test("engine-stream.jsonl: two engines under eviction, every lookup", () => {
  const [recorded] = jsonLines<EngineStream>("dynamo/engine-stream.jsonl");
  const { block_size: blockSize, engines, frames, lookups } = recorded!;
  const bridges = Array.from(
    { length: engines },
    () => new Bridge({ scheme: tokensScheme(hasher), blockSize }),
  );
  for (const { engine, seq_hex: seq, payload_hex: hex } of frames) {
    bridges[engine]!.live(Number.parseInt(seq, 16), Buffer.from(hex, "hex"));
  }
  for (const { token_ids: ids, blocks } of lookups) {
    expect(bridges.map((bridge) => bridge.held(ids).depth[0])).toEqual(blocks);
  }
  expect(lookups.some(({ blocks }) => blocks.some((count) => count > 0))).toBe(true);
});
