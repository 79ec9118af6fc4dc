/** What an engine's watcher tells of itself, for operators and tests. */

import type { MirrorCounters } from "./mirror.ts";
import type { RankPublisher } from "./publisher.ts";
import type { RankStream } from "./stream.ts";

export type WorkerState = "waiting" | "serving" | "lost" | "stopped";

/** `current`: the engine process that was meant runs; `void`: it was restarted since; `absent`: it does not serve now, or not at this node. */
export type PlanStanding = "current" | "void" | "absent";

export interface RankStatus {
  readonly rank: number;
  readonly incarnation: string;
  readonly kvEvents: boolean;
  /** Number of the last KV batch published. */
  readonly sequence: number;
  /** Last engine batch applied. */
  readonly watermark: number | null;
  readonly blocks: number;
  readonly orphans: number;
  readonly voided: Readonly<Record<string, number>>;
  readonly skippedEvents: Readonly<Record<string, number>>;
  readonly mirror: MirrorCounters;
}

export interface WorkerStatus {
  readonly worker: string;
  readonly state: WorkerState;
  /** Why its engine cannot be used, or only in part. */
  readonly fault: string | null;
  readonly engine: string | null;
  readonly blockSize: number | null;
  readonly ranks: readonly RankStatus[];
}

export function statusOf(
  { publisher, stream }: { readonly publisher: RankPublisher; readonly stream: RankStream | null },
  rank: number,
): RankStatus {
  return {
    rank,
    incarnation: publisher.key.incarnation,
    kvEvents: publisher.registration.kvEvents,
    sequence: publisher.sequence,
    watermark: stream?.watermark ?? null,
    blocks: publisher.mirror.blockCount(),
    orphans: publisher.mirror.orphanCount,
    voided: Object.fromEntries(publisher.voided),
    skippedEvents: Object.fromEntries(publisher.skipped),
    mirror: publisher.mirror.counters,
  };
}
