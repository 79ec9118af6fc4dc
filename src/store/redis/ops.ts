/** Batches and snapshots as arguments of scripts: checked, joined, split. */

import { KedgeError } from "../../errors/index.ts";
import { TIERS } from "../../fleet/types.ts";
import type { KvOp, StoreOp } from "../types.ts";
import { packKey, packKeys, packNumbers } from "./packing.ts";

/** Keys that one script call writes; a larger batch goes alone. */
export const KEYS_PER_CALL = 500;

/** Refuses a malformed batch whole. */
export function checkOps(ops: readonly KvOp[]): void {
  for (const op of ops) {
    if (!TIERS.includes(op.tier)) throw new KedgeError("invalid_request", `Unknown cache tier "${op.tier}".`);
    if (op.op !== "store" || op.tokens.length === op.keys.length) continue;
    const counts = `${op.keys.length} keys and ${op.tokens.length} token counts`;
    throw new KedgeError("invalid_request", `A store op has ${counts}; it needs as many of both.`);
  }
}

/** Number of ops, then four arguments for each: what and tier, parent, keys, tokens. */
export function packOps(ops: readonly KvOp[]): string[] {
  const args = [String(ops.length)];
  for (const op of ops) {
    const stores = op.op === "store";
    args.push(
      (stores ? "s" : "r") + TIERS.indexOf(op.tier),
      stores && op.parent !== null ? packKey(op.parent) : "",
      packKeys(op.keys),
      stores ? packNumbers(op.tokens) : "",
    );
  }
  return args;
}

/** Neighbours joined until they have about `KEYS_PER_CALL` keys. */
export function joined<T extends { readonly ops: readonly KvOp[] }>(batches: readonly T[]): T[][] {
  const groups: T[][] = [];
  let keys = Number.POSITIVE_INFINITY;
  for (const batch of batches) {
    const more = keysOf(batch.ops);
    if (keys + more > KEYS_PER_CALL) {
      groups.push([]);
      keys = 0;
    }
    groups[groups.length - 1].push(batch);
    keys += more;
  }
  return groups;
}

/** Ops in parts of at most `KEYS_PER_CALL` keys; an op that is longer goes on below its own last key. */
export function chunked(ops: readonly StoreOp[]): StoreOp[][] {
  const pieces = ops.flatMap((op) => {
    const parts: StoreOp[] = [];
    for (let at = 0; at < op.keys.length; at += KEYS_PER_CALL) {
      const keys = op.keys.subarray(at, at + KEYS_PER_CALL);
      const tokens = op.tokens.subarray(at, at + KEYS_PER_CALL);
      parts.push({ ...op, parent: at === 0 ? op.parent : op.keys[at - 1], keys, tokens });
    }
    return parts;
  });
  return joined(pieces.map((op) => ({ ops: [op] }))).map((group) => group.flatMap(({ ops: [op] }) => op));
}

function keysOf(ops: readonly KvOp[]): number {
  return ops.reduce((sum, op) => sum + op.keys.length, 0);
}
