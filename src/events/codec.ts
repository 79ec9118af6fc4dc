/** The bus's messages as bytes: compact, versioned, checked as they are read. Every malformed one is an `invalid_request`. */

import { type IncarnationKey, type LoadReport, type Registration, TIERS } from "../fleet/types.ts";
import type { KvBatch, KvOp, KvSnapshot, StoreOp } from "../store/types.ts";
import { asCount, asKey, asLoadReport, asName, asObject, asRegistration } from "./shapes.ts";
import { type Frame, frame, malformed, type Reader, unframe, Writer } from "./wire.ts";

/** Numbers are the wire's: they are added, never reused. */
const KIND = { kv: 1, registration: 2, key: 3, loads: 4, heartbeat: 5, part: 6, nobody: 7 } as const;

const OP = { store: 0, remove: 1, child: 2 } as const;

/** Order on the wire; a tier that is added goes to the end. */
const WIRE_TIERS: typeof TIERS = TIERS;

export function encodeKvBatch(batch: KvBatch): Uint8Array {
  const { worker, rank, incarnation, model, sequence } = batch;
  const body = new Writer();
  body.varint(batch.ops.length);
  for (const op of batch.ops) writeOp(body, op);
  return frame(KIND.kv, { worker, rank, incarnation, model, sequence }, body);
}

export function decodeKvBatch(message: Uint8Array): KvBatch {
  const { header, body } = open(message, KIND.kv);
  return { ...asFeed(header), ops: readOps(body) };
}

export function encodeRegistration(registration: Registration): Uint8Array {
  return frame(KIND.registration, registration, null);
}

export function decodeRegistration(message: Uint8Array): Registration {
  return asRegistration(open(message, KIND.registration).header);
}

/** A retirement, or the question for a snapshot. */
export function encodeKey({ worker, rank, incarnation }: IncarnationKey): Uint8Array {
  return frame(KIND.key, { worker, rank, incarnation }, null);
}

export function decodeKey(message: Uint8Array): IncarnationKey {
  return asKey(asObject(open(message, KIND.key).header));
}

export function encodeLoads(reports: readonly LoadReport[]): Uint8Array {
  return frame(KIND.loads, { reports }, null);
}

export function decodeLoads(message: Uint8Array): LoadReport[] {
  const { reports } = asObject(open(message, KIND.loads).header);
  if (!Array.isArray(reports)) throw malformed("its reports are no list");
  return reports.map(asLoadReport);
}

export function encodeHeartbeat(indexer: string): Uint8Array {
  return frame(KIND.heartbeat, { indexer }, null);
}

export function decodeHeartbeat(message: Uint8Array): string {
  return asName(asObject(open(message, KIND.heartbeat).header).indexer, "indexer");
}

/** A piece of a snapshot: parts are numbered from 0, the last one says so. */
export interface SnapshotPart extends Omit<KvSnapshot, "ops"> {
  readonly part: number;
  readonly last: boolean;
  readonly ops: readonly StoreOp[];
}

/**
 * A snapshot as messages of at most about `maxBytes` (at least 4,096). Long ops are cut: the rest hangs on the last key before it.
 */
export function* encodeSnapshot(snapshot: KvSnapshot, maxBytes: number): Generator<Uint8Array> {
  const { worker, rank, incarnation, model, sequence } = snapshot;
  const feed = { worker, rank, incarnation, model, sequence };
  let part = 0;
  let ops: StoreOp[] = [];
  let bytes = 0;
  const finish = (last: boolean) => {
    const body = new Writer();
    body.varint(ops.length);
    for (const op of ops) writeOp(body, op);
    const message = frame(KIND.part, { ...feed, part, last }, body);
    part += 1;
    ops = [];
    bytes = 0;
    return message;
  };
  const keysPerPart = Math.max(1, Math.floor(maxBytes / MOST_KEY_BYTES));
  for (const whole of snapshot.ops) {
    for (const op of cut(whole, keysPerPart)) {
      const opBytes = OP_BYTES + op.keys.length * MOST_KEY_BYTES;
      if (bytes > 0 && bytes + opBytes > maxBytes) yield finish(false);
      ops.push(op);
      bytes += opBytes;
    }
  }
  yield finish(true);
}

/** A key, and a token count's widest difference. */
const MOST_KEY_BYTES = 8 + 5;
/** An op without its keys. */
const OP_BYTES = 32;

function* cut(op: StoreOp, most: number): Generator<StoreOp> {
  for (let from = 0; from === 0 || from < op.keys.length; from += most) {
    const parent = from === 0 ? op.parent : op.keys[from - 1];
    const keys = op.keys.subarray(from, from + most);
    yield { ...op, parent, keys, tokens: op.tokens.subarray(from, from + most) };
  }
}

/** The owner's answer that it has no such incarnation. */
export function encodeNobody(key: IncarnationKey): Uint8Array {
  const { worker, rank, incarnation } = key;
  return frame(KIND.nobody, { worker, rank, incarnation }, null);
}

/** A part of a snapshot; null: the incarnation is not the answerer's. */
export function decodeSnapshotPart(message: Uint8Array): SnapshotPart | null {
  const opened = unframe(message);
  if (opened.kind === KIND.nobody) return null;
  const header = asObject(expect(opened, KIND.part).header);
  const { part, last } = header;
  if (typeof last !== "boolean") throw malformed("it does not say whether it is the last part");
  const ops = readOps(opened.body).map((op) => {
    if (op.op === "store") return op;
    throw malformed("its snapshot holds a removal");
  });
  return { ...asFeed(header), part: asCount(part, "part"), last, ops };
}

function open(message: Uint8Array, kind: number): Frame {
  return expect(unframe(message), kind);
}

function expect(opened: Frame, kind: number): Frame {
  if (opened.kind !== kind) throw malformed(`it is of kind ${opened.kind}, ${kind} was expected here`);
  return opened;
}

function asFeed(header: unknown): IncarnationKey & { readonly model: string; readonly sequence: number } {
  const object = asObject(header);
  const model = asName(object.model, "model");
  return { ...asKey(object), model, sequence: asCount(object.sequence, "sequence") };
}

function writeOp(body: Writer, op: KvOp): void {
  const parent = op.op === "store" ? op.parent : null;
  body.u8(op.op === "remove" ? OP.remove : parent === null ? OP.store : OP.child);
  body.u8(WIRE_TIERS.indexOf(op.tier));
  body.u64(op.root);
  if (parent !== null) body.u64(parent);
  body.varint(op.keys.length);
  body.u64s(op.keys);
  if (op.op === "store") body.deltas(op.tokens);
}

/** Fewest bytes of an op: code, tier, root, count. */
const LEAST_OP_BYTES = 11;

function readOps(body: Reader): KvOp[] {
  const count = body.count(LEAST_OP_BYTES);
  const ops: KvOp[] = [];
  for (let i = 0; i < count; i += 1) ops.push(readOp(body));
  return ops;
}

function readOp(body: Reader): KvOp {
  const code = body.u8();
  // An op that is not understood would leave a silent hole in the view: the message is refused whole.
  if (code > OP.child) throw malformed(`it has an op of an unknown kind ${code}`);
  const tier = WIRE_TIERS[body.u8()];
  if (tier === undefined) throw malformed("it has an op of an unknown cache tier");
  const root = body.u64();
  const parent = code === OP.child ? body.u64() : null;
  const isStore = code !== OP.remove;
  const count = body.count(isStore ? 9 : 8);
  const keys = body.u64s(count);
  if (!isStore) return { op: "remove", tier, root, keys };
  return { op: "store", tier, root, parent, keys, tokens: body.deltas(count) };
}
