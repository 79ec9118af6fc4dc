/** What agents and the view say to each other; in one process by calls, elsewhere over NATS (design §2). */

import type { IncarnationKey, LoadReport, Registration } from "../fleet/types.ts";
import type { KvBatch, KvSnapshot } from "../store/types.ts";

export type Unsubscribe = () => void;

/** Messages of one publisher arrive in order. Handlers must not throw; a handler's error is the handler's to report. */
export interface EventBus {
  publishRegistration(registration: Registration): void;
  onRegistration(handler: (registration: Registration) => void): Unsubscribe;
  publishRetirement(key: IncarnationKey): void;
  onRetirement(handler: (key: IncarnationKey) => void): Unsubscribe;
  publishKv(batch: KvBatch): void;
  /** `done`: to be called once the batch is in the view, or refused by it. A log delivers again what nobody was done with. */
  onKv(handler: (batch: KvBatch, done: () => void) => void): Unsubscribe;
  publishLoad(report: LoadReport): void;
  onLoad(handler: (report: LoadReport) => void): Unsubscribe;
  /** An indexer's sign of life; it listens to its own, which proves that the bus carries messages (D6). */
  publishHeartbeat(indexer: string): void;
  onHeartbeat(handler: (indexer: string) => void): Unsubscribe;
  /** Asks every agent to publish its registrations again: an indexer begins, or found the view empty. */
  callRoll(): void;
  onRollCall(handler: () => void): Unsubscribe;
  /** Asks the agent that owns this incarnation; null: nobody owns it. */
  requestSnapshot(key: IncarnationKey): Promise<KvSnapshot | null>;
  /** Answers snapshot requests; a handler returns null for incarnations that are not its own. */
  serveSnapshots(
    handler: (key: IncarnationKey) => KvSnapshot | null | Promise<KvSnapshot | null>,
  ): Unsubscribe;
}
