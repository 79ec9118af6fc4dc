/** Snapshots over request and reply: asked of the worker's own agent, answered in numbered parts, put together with bounds. */

import { KedgeError, toKedgeError } from "../../errors/index.ts";
import type { IncarnationKey } from "../../fleet/types.ts";
import type { KvSnapshot, StoreOp } from "../../store/types.ts";
import { decodeKey, decodeSnapshotPart, encodeKey, encodeNobody, encodeSnapshot } from "../codec.ts";
import type { Link, LinkMessage } from "./connection.ts";
import type { Timers } from "./outbox.ts";

export type SnapshotHandler = (key: IncarnationKey) => KvSnapshot | null | Promise<KvSnapshot | null>;

export const MAX_PART_BYTES = 512 * 1_024;

/** Parts sent before waiting for the server to have got them. */
const PARTS_PER_FLUSH = 4;

/** More than any worker's cache has; against a peer that never ends. */
const MAX_SNAPSHOT_BYTES = 1_024 * 1_024 * 1_024;

/** Answers one question. `isBroadcast`: every agent hears it, only the owner answers. Errors go to `onError`. */
export async function answerSnapshot(
  link: Link,
  { data, reply }: LinkMessage,
  handlers: Iterable<SnapshotHandler>,
  isBroadcast: boolean,
  onError: (error: KedgeError) => void,
): Promise<void> {
  if (reply === "") return;
  try {
    const key = decodeKey(data);
    const snapshot = await firstAnswer(key, handlers);
    if (snapshot === null) {
      if (!isBroadcast) link.publish(reply, encodeNobody(key));
      return;
    }
    let parts = 0;
    for (const part of encodeSnapshot(snapshot, Math.min(MAX_PART_BYTES, link.maxPayload / 2))) {
      if (!link.publish(reply, part)) return;
      parts += 1;
      // A slow network must not make the server cut this connection for all that waits in it.
      if (parts % PARTS_PER_FLUSH === 0) await link.flush();
    }
  } catch (thrown) {
    onError(toKedgeError(thrown));
  }
}

async function firstAnswer(
  key: IncarnationKey,
  handlers: Iterable<SnapshotHandler>,
): Promise<KvSnapshot | null> {
  for (const handler of handlers) {
    const snapshot = await handler(key);
    if (snapshot !== null) return snapshot;
  }
  return null;
}

export interface AskOptions {
  readonly timers: Timers;
  /** Waited for the first part, and then for each further one. */
  readonly timeoutMs: number;
  readonly onError: (error: KedgeError) => void;
}

/** `nobody`: the one who was asked has no such incarnation; `absent`: the subject is served by no one; `silent`: no answer in time, or a broken one. */
export type SnapshotAnswer = KvSnapshot | "nobody" | "absent" | "silent";

/** Asks at one subject. Never rejects. */
export function askSnapshot(
  link: Link,
  subject: string,
  key: IncarnationKey,
  { timers, timeoutMs, onError }: AskOptions,
): Promise<SnapshotAnswer> {
  return new Promise((resolve) => {
    let timer: unknown = null;
    let cancel = () => {};
    const forget = link.onEnd(() => settle("silent"));
    const settle = (answer: SnapshotAnswer) => {
      timers.clearTimeout(timer);
      cancel();
      forget();
      resolve(answer);
    };
    const wait = () => {
      timers.clearTimeout(timer);
      timer = timers.setTimeout(() => settle("silent"), timeoutMs);
    };
    const assembly = new Assembly(key);
    wait();
    try {
      cancel = link.ask(subject, encodeKey(key), (data) => {
        if (data === null) return settle("absent");
        try {
          const answer = assembly.add(data);
          if (answer === null) wait();
          else settle(answer);
        } catch (thrown) {
          onError(toKedgeError(thrown));
          settle("silent");
        }
      });
    } catch {
      settle("silent");
    }
  });
}

/** Parts of one snapshot, as they come. */
class Assembly {
  private readonly key: IncarnationKey;
  private readonly ops: StoreOp[] = [];
  private parts = 0;
  private bytes = 0;

  constructor(key: IncarnationKey) {
    this.key = key;
  }

  /** Null: more is to come. Errors: `invalid_request`. */
  add(data: Uint8Array): KvSnapshot | "nobody" | null {
    this.bytes += data.length;
    if (this.bytes > MAX_SNAPSHOT_BYTES) throw new KedgeError("invalid_request", "A snapshot has no end.");
    const decoded = decodeSnapshotPart(data);
    if (decoded === null) return "nobody";
    const { part, last, ops, ...feed } = decoded;
    const { worker, rank, incarnation } = this.key;
    const isAsked = feed.worker === worker && feed.rank === rank && feed.incarnation === incarnation;
    if (!isAsked)
      throw new KedgeError("invalid_request", `A snapshot of ${worker} is of another incarnation.`);
    if (part !== this.parts) {
      throw new KedgeError("invalid_request", `Part ${this.parts} of a snapshot of ${worker} is missing.`);
    }
    this.parts += 1;
    for (const op of ops) this.ops.push(op);
    return last ? { ...feed, ops: this.ops } : null;
  }
}
