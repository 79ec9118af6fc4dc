/** ZMQ payload of an engine's KV events (MessagePack) → EngineBatch: every wire form, event by event. */

import { Unpackr } from "msgpackr";
import { KedgeError } from "../../src/errors/index.ts";
import type { Tier } from "../../src/fleet/types.ts";
import type { EngineBatch, EngineEvent, EngineHash } from "../engines/events.ts";

/**
 * Mediums that engines name, and the tier that stands for them; what is shared or remote counts with the slowest one.
 * Names are matched exactly; an unknown one is dropped, for nothing is known of how it could be read back.
 */
const TIER_OF_MEDIUM: ReadonlyMap<string, Tier> = new Map([
  ["", "device"],
  ["GPU", "device"],
  ["DEVICE", "device"],
  ["CPU", "host"],
  ["CPU_PINNED", "host"],
  ["CPU_TIER1", "host"],
  ["CPU_TIER2", "disk"],
  ["DISK", "disk"],
  ["NVME", "disk"],
  ["STORAGE", "disk"],
  ["EXTERNAL", "disk"],
  ["NETWORK", "disk"],
  ["REMOTE", "disk"],
  ["SHARED", "disk"],
]);

/** Why an event was left out of its batch; a metric's label. */
export type SkipReason = "unknown_event" | "unknown_medium" | "unnamed_adapter" | "remote" | "unreadable";

/** Positional order of the fields that are read; element 0 is the tag (engines.md §1.4). */
const STORED_FIELDS = [
  "block_hashes",
  "parent_block_hash",
  "token_ids",
  "block_size",
  "lora_id",
  "medium",
  "lora_name",
  "extra_keys",
  "group_idx",
  "kv_cache_spec_kind",
  "kv_cache_spec_sliding_window",
] as const;
const REMOVED_FIELDS = ["block_hashes", "medium", "group_idx"] as const;

type Fields = Readonly<Record<string, unknown>>;

const unpackr = new Unpackr({ useRecords: false, mapsAsObjects: true });

/** Thrown for one event, caught by its batch. */
class SkippedEvent extends Error {
  readonly reason: SkipReason;
  constructor(reason: SkipReason) {
    super(reason);
    this.reason = reason;
  }
}

/**
 * Decodes one batch: `[ts, events, rank?]` or the map `{ts, events, data_parallel_rank}`, each event a positional array
 * or a map. What cannot be read of an event loses that event only and stands in `skipped`.
 * Errors: `upstream_error` if the payload is no batch at all.
 */
export function decodeBatch(payload: Uint8Array): EngineBatch {
  const { timestamp, events, rank } = envelope(unpack(payload));
  const decoded: EngineEvent[] = [];
  const skipped: { reason: SkipReason; tag: string | null }[] = [];
  for (const raw of events) {
    try {
      decoded.push(decodeEvent(raw));
    } catch (thrown) {
      if (!(thrown instanceof SkippedEvent)) throw thrown;
      skipped.push({ reason: thrown.reason, tag: tagOf(raw) });
    }
  }
  return {
    timestampSeconds:
      typeof timestamp === "bigint" || typeof timestamp === "number" ? Number(timestamp) : null,
    events: decoded,
    rank: typeof rank === "number" && Number.isSafeInteger(rank) && rank >= 0 ? rank : null,
    skipped,
  };
}

function unpack(payload: Uint8Array): unknown {
  try {
    return unpackr.unpack(payload);
  } catch (cause) {
    throw unreadable("it is not MessagePack", cause);
  }
}

function envelope(value: unknown): { timestamp: unknown; events: readonly unknown[]; rank: unknown } {
  if (Array.isArray(value) && Array.isArray(value[1])) {
    return { timestamp: value[0], events: value[1], rank: value[2] };
  }
  if (isMap(value) && Array.isArray(value.events)) {
    return { timestamp: value.ts, events: value.events, rank: value.data_parallel_rank };
  }
  throw unreadable("it is no batch of events");
}

function unreadable(why: string, cause?: unknown): KedgeError {
  return new KedgeError("upstream_error", `A KV event payload cannot be read: ${why}.`, { cause });
}

function tagOf(raw: unknown): string | null {
  const tag = Array.isArray(raw) ? raw[0] : isMap(raw) ? raw.type : null;
  return typeof tag === "string" ? tag : null;
}

function decodeEvent(raw: unknown): EngineEvent {
  switch (tagOf(raw)) {
    case "BlockStored":
      return stored(fieldsOf(raw, STORED_FIELDS));
    case "BlockRemoved": {
      const fields = fieldsOf(raw, REMOVED_FIELDS);
      const tier = localTier(fields);
      return {
        type: "removed",
        hashes: hashes(fields.block_hashes),
        tier,
        group: integerOr(fields.group_idx, 0),
      };
    }
    case "AllBlocksCleared":
      return { type: "cleared" };
    default:
      throw new SkippedEvent(tagOf(raw) === null ? "unreadable" : "unknown_event");
  }
}

/** Array elements by name, as far as they are there; a map as it is. */
function fieldsOf(raw: unknown, names: readonly string[]): Fields {
  if (!Array.isArray(raw)) return raw as Fields;
  const fields: Record<string, unknown> = {};
  for (let i = 0; i < names.length && i + 1 < raw.length; i++) fields[names[i]!] = raw[i + 1];
  return fields;
}

function stored(fields: Fields): EngineEvent {
  // SGLang's last array form puts a map with the salt where vLLM has the adapter's name (engines.md §4).
  const misplaced = isMap(fields.lora_name) ? fields.lora_name : null;
  const loraName = misplaced === null ? textOrNull(fields.lora_name) : null;
  const salt = textOrNull(misplaced === null ? fields.cache_salt : misplaced.cache_salt);
  // Blocks of an adapter that is not named belong to no chain that can be asked for; they are not the base model's.
  if (loraName === null && misplaced === null && !isAbsent(fields.lora_id))
    throw new SkippedEvent("unnamed_adapter");
  const tier = localTier(fields);
  const blockHashes = hashes(fields.block_hashes);
  return {
    type: "stored",
    hashes: blockHashes,
    parent: isAbsent(fields.parent_block_hash) ? null : hash(fields.parent_block_hash),
    tokenIds: tokenIds(fields.token_ids),
    blockSize: integer(fields.block_size),
    loraName,
    tier,
    extraKeys: withSalt(extraKeys(fields.extra_keys), salt, blockHashes.length),
    group: integerOr(fields.group_idx, 0),
    specKind: textOrNull(fields.kv_cache_spec_kind),
    slidingWindow: integerOr(fields.kv_cache_spec_sliding_window, null),
  };
}

function localTier(fields: Fields): Tier {
  if (fields.locality === "REMOTE") throw new SkippedEvent("remote");
  if (isAbsent(fields.medium)) return "device";
  if (typeof fields.medium !== "string") throw new SkippedEvent("unreadable");
  const tier = TIER_OF_MEDIUM.get(fields.medium);
  if (tier === undefined) throw new SkippedEvent("unknown_medium");
  return tier;
}

function hashes(value: unknown): EngineHash[] {
  if (!Array.isArray(value)) throw new SkippedEvent("unreadable");
  return value.map(hash);
}

/** Integers as 64 bits without sign; of bytes the last eight, big-endian, which is what the integer form sends (engines.md §1.5). */
function hash(value: unknown): EngineHash {
  if (typeof value === "bigint") return BigInt.asUintN(64, value);
  if (typeof value === "number" && Number.isSafeInteger(value)) return BigInt.asUintN(64, BigInt(value));
  if (value instanceof Uint8Array && value.length > 0) {
    let folded = 0n;
    for (let i = Math.max(0, value.length - 8); i < value.length; i++)
      folded = (folded << 8n) | BigInt(value[i]!);
    return folded;
  }
  throw new SkippedEvent("unreadable");
}

function tokenIds(value: unknown): readonly number[] {
  if (isAbsent(value)) return [];
  if (!Array.isArray(value)) throw new SkippedEvent("unreadable");
  for (const id of value) if (!Number.isInteger(id)) throw new SkippedEvent("unreadable");
  return value;
}

function extraKeys(value: unknown): (readonly unknown[] | null)[] | null {
  if (isAbsent(value)) return null;
  if (!Array.isArray(value)) throw new SkippedEvent("unreadable");
  return value.map((keys: unknown) => (isAbsent(keys) ? null : Array.isArray(keys) ? keys : [keys]));
}

/** A salt that stands outside the extra keys is put among those of the event's first block, tagged. */
function withSalt(
  keys: (readonly unknown[] | null)[] | null,
  salt: string | null,
  blocks: number,
): (readonly unknown[] | null)[] | null {
  if (salt === null || salt === "") return keys;
  const salted = keys ?? new Array<readonly unknown[] | null>(blocks).fill(null);
  salted[0] = [...(salted[0] ?? []), ["cache_salt", salt]];
  return salted;
}

function integer(value: unknown): number {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  throw new SkippedEvent("unreadable");
}

function integerOr<T>(value: unknown, absent: T): number | T {
  return isAbsent(value) ? absent : integer(value);
}

function textOrNull(value: unknown): string | null {
  if (isAbsent(value)) return null;
  if (typeof value === "string") return value;
  throw new SkippedEvent("unreadable");
}

function isAbsent(value: unknown): value is null | undefined {
  return value === null || value === undefined;
}

function isMap(value: unknown): value is Fields {
  return (
    typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array)
  );
}
