/** Every wire form decodes to one shape, and what cannot be read loses only itself. */

import fc from "fast-check";
import { pack } from "msgpackr";
import { describe, expect, test } from "vitest";
import type { BlockStored } from "../engines/events.ts";
import { decodeBatch } from "./decode.ts";

const decodeHex = (hex: string): ReturnType<typeof decodeBatch> => decodeBatch(Buffer.from(hex, "hex"));
const decode = (...events: unknown[]): ReturnType<typeof decodeBatch> => decodeBatch(pack([1.5, events, 0]));
const storedMap = (more: Record<string, unknown>): Record<string, unknown> => ({
  type: "BlockStored",
  block_hashes: [1],
  parent_block_hash: null,
  token_ids: [1, 2],
  block_size: 2,
  lora_id: null,
  medium: "GPU",
  lora_name: null,
  ...more,
});
const first = (...events: unknown[]): BlockStored => decode(...events).events[0] as BlockStored;
const reasons = (...events: unknown[]): string[] => decode(...events).skipped.map(({ reason }) => reason);

describe("golden vectors (bytes of msgspec, as vLLM sends them)", () => {
  const event = {
    type: "stored",
    hashes: [2n ** 64n - 1n, 5n],
    parent: null,
    tokenIds: [1, 2, 3, 4],
    blockSize: 2,
    loraName: null,
    tier: "device",
    extraKeys: null,
    group: 0,
    specKind: null,
    slidingWindow: null,
  };
  test("array form, stored", () => {
    const hex =
      "93cb3ff8000000000000919cab426c6f636b53746f72656492cfffffffffffffffff05c0940102030402c0a3475055c0c0c0c0c000";
    expect(decodeHex(hex)).toEqual({ timestampSeconds: 1.5, events: [event], rank: 0, skipped: [] });
  });
  test("map form, stored with extra keys", () => {
    const hex =
      "93cb3ff8000000000000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cfffffffffffffffff05b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291a473616c74c0a967726f75705f6964780000";
    expect(decodeHex(hex).events).toEqual([{ ...event, extraKeys: [["salt"], null] }]);
  });
  test.each([
    "93cb3ff80000000000009294ac426c6f636b52656d6f7665649109a3475055c091b0416c6c426c6f636b73436c656172656400",
    "93cb3ff80000000000009284a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739109a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400",
  ])("removed and cleared: %s", (hex) => {
    expect(decodeHex(hex).events).toEqual([
      { type: "removed", hashes: [9n], tier: "device", group: 0 },
      { type: "cleared" },
    ]);
  });
});

describe("fields", () => {
  test("positional and map events mix in one batch, by length and by name", () => {
    const { events, skipped } = decode(
      ["BlockStored", [1], null, [1, 2], 2, null],
      storedMap({
        block_hashes: [2],
        parent_block_hash: 1,
        group_idx: 5,
        kv_cache_spec_kind: "sliding_window",
        kv_cache_spec_sliding_window: 64,
        zzz: 1,
      }),
      ["BlockRemoved", [1]],
    );
    expect(skipped).toEqual([]);
    expect(events[1]).toMatchObject({ parent: 1n, group: 5, specKind: "sliding_window", slidingWindow: 64 });
    expect(events[2]).toEqual({ type: "removed", hashes: [1n], tier: "device", group: 0 });
  });

  test("one hash, however it is sent, is one number", () => {
    const value = 0xfedc_ba98_7654_3210n;
    const digest = Buffer.concat([Buffer.alloc(24, 1), Buffer.from("fedcba9876543210", "hex")]);
    const { hashes } = first(
      storedMap({ block_hashes: [value, BigInt.asIntN(64, value), digest, digest.subarray(16)] }),
    );
    expect(hashes).toEqual([value, value, value, value]);
  });

  test("any 64-bit hash survives", () => {
    fc.assert(
      fc.property(fc.bigInt(-(2n ** 63n), 2n ** 64n - 1n), (hash) => {
        expect(first(storedMap({ block_hashes: [hash] })).hashes).toEqual([BigInt.asUintN(64, hash)]);
      }),
    );
  });

  test("SGLang's salt, in the last array form and as a field, stands among the first block's extra keys", () => {
    const keys = [[["cache_salt", "s"]], null];
    expect(
      first(["BlockStored", [1, 2], null, [1, 2, 3, 4], 2, null, "GPU", { cache_salt: "s" }]).extraKeys,
    ).toEqual(keys);
    expect(first(storedMap({ block_hashes: [1, 2], cache_salt: "s" })).extraKeys).toEqual(keys);
  });

  test("the map envelope is read like the array", () => {
    const events = [storedMap({})];
    expect(decodeBatch(pack({ ts: 2, events, data_parallel_rank: 3 }))).toMatchObject({
      timestampSeconds: 2,
      rank: 3,
    });
  });
});

describe("what cannot be read", () => {
  test.each<[string, unknown]>([
    ["unknown_event", ["Frobbed", 1]],
    ["unreadable", 7],
    ["unreadable", storedMap({ block_hashes: ["text"] })],
    ["unreadable", storedMap({ block_hashes: [1.5] })],
    ["unreadable", storedMap({ token_ids: [[1, 2]] })],
    ["unreadable", storedMap({ block_size: -1 })],
    ["unreadable", storedMap({ medium: 5 })],
    ["unknown_medium", storedMap({ medium: "gpu" })],
    ["unnamed_adapter", storedMap({ lora_id: 7 })],
    ["remote", storedMap({ locality: "REMOTE" })],
  ])("%s: the event is left out, its batch stands", (reason, event) => {
    expect(reasons(event, storedMap({}))).toEqual([reason]);
    expect(decode(event, storedMap({})).events).toHaveLength(1);
  });

  test.each(["", "c1ff", "ddffffffff", "93c0ddffffffff", "91".repeat(10_000), "a3616263", "92c0c0"])(
    "a payload that is no batch is one error: %s",
    (hex) => {
      expect(() => decodeHex(hex)).toThrowError(/cannot be read/);
    },
  );

  test("arbitrary bytes and arbitrary values never do worse than that error", () => {
    const attempt = (payload: Uint8Array): void => {
      try {
        decodeBatch(payload);
      } catch (thrown) {
        expect(thrown).toMatchObject({ code: "upstream_error" });
      }
    };
    fc.assert(fc.property(fc.uint8Array({ maxLength: 64 }), attempt));
    fc.assert(fc.property(fc.array(fc.jsonValue()), (events) => attempt(pack([1, events, 0]))));
  });
});
