/** The bus's wire format: what is read equals what was written, newer writers are understood, and no bytes do harm. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { batch, KEY, load, registration, snapshot } from "../../test/nats/samples.ts";
import { KedgeError } from "../errors/index.ts";
import { TIERS } from "../fleet/types.ts";
import type { KvBatch, KvOp, StoreOp } from "../store/types.ts";
import {
  decodeHeartbeat,
  decodeKey,
  decodeKvBatch,
  decodeLoads,
  decodeRegistration,
  decodeSnapshotPart,
  encodeHeartbeat,
  encodeKey,
  encodeKvBatch,
  encodeLoads,
  encodeNobody,
  encodeRegistration,
  encodeSnapshot,
} from "./codec.ts";

const DECODERS = [
  decodeHeartbeat,
  decodeKey,
  decodeKvBatch,
  decodeLoads,
  decodeRegistration,
  decodeSnapshotPart,
];

const MESSAGES: readonly Uint8Array[] = [
  encodeHeartbeat("indexer"),
  encodeKey(KEY),
  encodeKvBatch(batch(3)),
  encodeLoads([load(1, ["a"]), load(2)]),
  encodeRegistration(registration()),
  encodeNobody(KEY),
  ...encodeSnapshot(snapshot(2_000), 8_192),
];

const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
const u32 = fc.nat({ max: 2 ** 32 - 1 });
const tier = fc.constantFrom(...TIERS);

const storeOp: fc.Arbitrary<StoreOp> = fc
  .record({
    tier,
    root: u64,
    parent: fc.option(u64),
    entries: fc.array(fc.tuple(u64, u32), { maxLength: 20 }),
  })
  .map(({ entries, ...rest }) => ({
    op: "store",
    ...rest,
    keys: BigUint64Array.from(entries, ([key]) => key),
    tokens: Uint32Array.from(entries, ([, count]) => count),
  }));

const removeOp: fc.Arbitrary<KvOp> = fc
  .record({ tier, root: u64, keys: fc.array(u64, { maxLength: 20 }) })
  .map(({ keys, ...rest }) => ({ op: "remove", ...rest, keys: BigUint64Array.from(keys) }));

const name = fc.string({ minLength: 1, maxLength: 40, unit: "binary" });

const anyBatch: fc.Arbitrary<KvBatch> = fc.record({
  worker: name,
  rank: fc.nat({ max: 65_535 }),
  incarnation: name,
  model: name,
  sequence: fc.maxSafeNat(),
  ops: fc.array(fc.oneof(storeOp, removeOp), { maxLength: 10 }),
});

describe("what is read equals what was written", () => {
  it("batches of any content", () => {
    fc.assert(
      fc.property(anyBatch, (value) => {
        expect(decodeKvBatch(encodeKvBatch(value))).toEqual(value);
      }),
    );
  });

  it("also where the bytes begin anywhere in their buffer, as a socket's do", () => {
    for (const offset of [0, 1, 3, 8]) {
      const message = encodeKvBatch(batch(1));
      const buffer = new Uint8Array(message.length + offset + 5);
      buffer.set(message, offset);
      expect(decodeKvBatch(buffer.subarray(offset, offset + message.length))).toEqual(batch(1));
    }
  });

  it("registrations, load reports, keys, heartbeats", () => {
    expect(decodeRegistration(encodeRegistration(registration()))).toEqual(registration());
    const loads = [load(1, ["a", "b"]), { ...load(2), activeBlocks: null, prefillTokens: 7.5 }];
    expect(decodeLoads(encodeLoads(loads))).toEqual(loads);
    expect(decodeKey(encodeKey(KEY))).toEqual(KEY);
    expect(decodeHeartbeat(encodeHeartbeat("größe"))).toBe("größe");
  });

  it("snapshots in parts below the size asked for, their ops in order, long ones cut where the rest hangs on", () => {
    const ops = [snapshot(5_000).ops[0]!, { ...snapshot(1).ops[0]!, parent: 9n }, { ...snapshot(0).ops[0]! }];
    const parts = [...encodeSnapshot({ ...snapshot(0), ops }, 8_192)];
    const decoded = parts.map((part) => decodeSnapshotPart(part)!);
    expect(Math.max(...parts.map((part) => part.length))).toBeLessThan(8_192 + 256);
    expect(decoded.map(({ part, last }) => [part, last])).toEqual(
      parts.map((_, i) => [i, i === parts.length - 1]),
    );
    const keys = (all: readonly StoreOp[]) => all.flatMap((op) => [...op.keys]);
    const tokens = (all: readonly StoreOp[]) => all.flatMap((op) => [...op.tokens]);
    const together = decoded.flatMap((part) => part.ops);
    expect(keys(together)).toEqual(keys(ops));
    expect(tokens(together)).toEqual(tokens(ops));
    const first = together.filter(({ parent }) => parent !== 9n).slice(0, -1);
    expect(first.map(({ parent }) => parent)).toEqual([
      null,
      ...first.slice(0, -1).map((op) => op.keys.at(-1)),
    ]);
  });

  it("an empty snapshot is one last part", () => {
    const [only, ...more] = encodeSnapshot({ ...snapshot(0), ops: [] }, 8_192);
    expect(more).toEqual([]);
    expect(decodeSnapshotPart(only!)).toMatchObject({ part: 0, last: true, ops: [] });
    expect(decodeSnapshotPart(encodeNobody(KEY))).toBeNull();
  });
});

describe("size", () => {
  it("a stored key takes about nine bytes, a removed one eight", () => {
    const store = (count: number) => encodeKvBatch({ ...batch(1), ops: snapshot(count).ops }).length;
    const remove = (count: number) =>
      encodeKvBatch({
        ...batch(1),
        ops: [{ op: "remove", tier: "device", root: 1n, keys: new BigUint64Array(count) }],
      }).length;
    expect((store(500) - store(100)) / 400).toBeLessThan(9.1);
    expect((remove(500) - remove(100)) / 400).toBeLessThan(8.1);
    expect(store(0)).toBeLessThan(160);
  });
});

describe("newer writers", () => {
  const reheadered = (message: Uint8Array, change: (header: Record<string, unknown>) => void): Uint8Array => {
    const length = new DataView(message.buffer).getUint32(2, true);
    const header = JSON.parse(new TextDecoder().decode(message.subarray(6, 6 + length)));
    change(header);
    const json = new TextEncoder().encode(JSON.stringify(header));
    const changed = new Uint8Array(6 + json.length + message.length - 6 - length);
    changed.set(message.subarray(0, 6));
    new DataView(changed.buffer).setUint32(2, json.length, true);
    changed.set(json, 6);
    changed.set(message.subarray(6 + length), 6 + json.length);
    return changed;
  };

  it("their further fields are kept in registrations and passed over elsewhere", () => {
    const newer = { ...registration(), card: { ...registration().card, color: "red" }, rack: { row: 3 } };
    expect(decodeRegistration(encodeRegistration(newer))).toEqual(newer);
    expect(decodeKvBatch(reheadered(encodeKvBatch(batch(1)), (header) => (header.more = [1])))).toEqual(
      batch(1),
    );
    expect(decodeKey(reheadered(encodeKey(KEY), (header) => (header.more = {})))).toEqual(KEY);
  });

  it("a newer minor version is read, and what it appends is passed over", () => {
    const message = encodeKvBatch(batch(1));
    const newer = new Uint8Array([...message, 1, 2, 3]);
    newer[0] = message[0]! + 1;
    expect(decodeKvBatch(newer)).toEqual(batch(1));
  });

  it("a newer major version, an unknown op and an unknown tier are refused: half a batch would be a silent hole", () => {
    const message = encodeKvBatch(batch(1));
    const body = 6 + new DataView(message.buffer).getUint32(2, true);
    for (const [at, value] of [
      [0, message[0]! + 16],
      [body + 1, 9],
      [body + 2, 9],
    ] as const) {
      const changed = message.slice();
      changed[at] = value;
      expect(() => decodeKvBatch(changed)).toThrow(KedgeError);
    }
  });
});

describe("no bytes do harm", () => {
  const onlyRefuses = (message: Uint8Array): void => {
    for (const decode of DECODERS) {
      try {
        decode(message);
      } catch (thrown) {
        expect(thrown).toBeInstanceOf(KedgeError);
        expect((thrown as KedgeError).code).toBe("invalid_request");
      }
    }
  };

  it("any bytes are read or refused as invalid_request", () => {
    fc.assert(fc.property(fc.uint8Array({ maxLength: 200 }), onlyRefuses), { numRuns: 2_000 });
  });

  it("so is any message with bytes changed, cut off or doubled", () => {
    const broken = fc
      .record({
        message: fc.constantFrom(...MESSAGES),
        changes: fc.array(fc.tuple(fc.nat(), fc.nat({ max: 255 })), { maxLength: 5 }),
        cut: fc.double({ min: 0, max: 1, noNaN: true }),
      })
      .map(({ message, changes, cut }) => {
        const bytes = message.slice(0, Math.ceil(message.length * (cut > 0.5 ? 1 : cut * 2)));
        for (const [at, value] of changes) if (bytes.length > 0) bytes[at % bytes.length] = value;
        return bytes;
      });
    fc.assert(fc.property(broken, onlyRefuses), { numRuns: 2_000 });
  });

  it("so is any header of the wrong shape", () => {
    const json = fc.json({ maxDepth: 3 });
    fc.assert(
      fc.property(json, fc.nat({ max: 8 }), (text, kind) => {
        const header = new TextEncoder().encode(text);
        const message = new Uint8Array(6 + header.length);
        message[0] = 0x10;
        message[1] = kind;
        new DataView(message.buffer).setUint32(2, header.length, true);
        message.set(header, 6);
        onlyRefuses(message);
      }),
      { numRuns: 2_000 },
    );
  });

  it("each field of each message is checked", () => {
    for (const [field, wrong] of [
      ["rank", -1],
      ["rank", 1.5],
      ["sequence", "1"],
      ["admitted", [7]],
      ["admitted", null],
      ["running", -1],
      ["waiting", "none"],
      ["worker", ""],
      ["incarnation", "x".repeat(1_000)],
    ] as const) {
      const message = encodeLoads([{ ...load(1), [field]: wrong } as never]);
      expect(() => decodeLoads(message), field).toThrow(field === "admitted" ? "admitted" : field);
    }
    for (const field of Object.keys(registration())) {
      const message = encodeRegistration({ ...registration(), [field]: { wrong: 1 } } as never);
      expect(() => decodeRegistration(message), field).toThrow(KedgeError);
    }
    for (const field of Object.keys(registration().card).filter((key) => !key.endsWith("Tokens"))) {
      const card = { ...registration().card, [field]: [1] };
      expect(
        () => decodeRegistration(encodeRegistration({ ...registration(), card } as never)),
        field,
      ).toThrow(KedgeError);
    }
  });

  it("a count that lies allocates nothing", () => {
    const message = encodeKvBatch({ ...batch(1), ops: [] });
    const lying = new Uint8Array([...message.subarray(0, -1), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    expect(() => decodeKvBatch(lying)).toThrow("counts more than it holds");
    const op = [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xff, 0xff, 0x7f];
    expect(() => decodeKvBatch(new Uint8Array([...message.subarray(0, -1), 1, ...op]))).toThrow(
      "counts more than it holds",
    );
  });

  it("names of the prototype are data like any other", () => {
    const text = JSON.stringify(registration()).replace('"taints"', '"__proto__":{"polluted":1},"taints"');
    const decoded = decodeRegistration(encodeRegistration(JSON.parse(text)));
    expect((decoded as unknown as { polluted?: number }).polluted).toBeUndefined();
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });
});
