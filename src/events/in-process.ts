/** The event bus of one process: messages are calls, delivered in the order in which they were published. */

import type { IncarnationKey, LoadReport, Registration } from "../fleet/types.ts";
import type { KvBatch, KvSnapshot } from "../store/types.ts";
import type { EventBus, Unsubscribe } from "./bus.ts";

export interface InProcessBusOptions {
  /** Told what a handler threw and which channel it served; the other handlers get the message all the same. */
  readonly onHandlerError: (thrown: unknown, channel: string) => void;
}

type SnapshotHandler = (key: IncarnationKey) => KvSnapshot | null | Promise<KvSnapshot | null>;

/**
 * Delivery is synchronous: `publish…` returns when every handler has run. A message that a handler publishes is
 * delivered after the one at hand, so that all handlers see one order.
 */
export class InProcessBus implements EventBus {
  private readonly registrations = new Channel<Registration>("registration");
  private readonly retirements = new Channel<IncarnationKey>("retirement");
  private readonly kv = new Channel<KvBatch>("kv");
  private readonly rollCalls = new Channel<void>("roll call");
  private readonly loads = new Channel<LoadReport>("load");
  private readonly heartbeats = new Channel<string>("heartbeat");
  private readonly snapshots = new Set<SnapshotHandler>();
  private readonly onHandlerError: InProcessBusOptions["onHandlerError"];
  private readonly queue: (() => void)[] = [];
  private delivering = false;

  constructor(options: InProcessBusOptions) {
    this.onHandlerError = options.onHandlerError;
  }

  publishRegistration(registration: Registration): void {
    this.deliver(this.registrations, registration);
  }

  onRegistration(handler: (registration: Registration) => void): Unsubscribe {
    return this.registrations.add(handler);
  }

  publishRetirement(key: IncarnationKey): void {
    this.deliver(this.retirements, key);
  }

  onRetirement(handler: (key: IncarnationKey) => void): Unsubscribe {
    return this.retirements.add(handler);
  }

  publishKv(batch: KvBatch): void {
    this.deliver(this.kv, batch);
  }

  onKv(handler: (batch: KvBatch, done: () => void) => void): Unsubscribe {
    return this.kv.add((batch) => handler(batch, () => undefined));
  }

  callRoll(): void {
    this.deliver(this.rollCalls, undefined);
  }

  onRollCall(handler: () => void): Unsubscribe {
    return this.rollCalls.add(handler);
  }

  publishLoad(report: LoadReport): void {
    this.deliver(this.loads, report);
  }

  onLoad(handler: (report: LoadReport) => void): Unsubscribe {
    return this.loads.add(handler);
  }

  publishHeartbeat(indexer: string): void {
    this.deliver(this.heartbeats, indexer);
  }

  onHeartbeat(handler: (indexer: string) => void): Unsubscribe {
    return this.heartbeats.add(handler);
  }

  async requestSnapshot(key: IncarnationKey): Promise<KvSnapshot | null> {
    for (const handler of [...this.snapshots]) {
      try {
        const snapshot = await handler(key);
        if (snapshot !== null) return snapshot;
      } catch (thrown) {
        this.onHandlerError(thrown, "snapshot");
      }
    }
    return null;
  }

  serveSnapshots(handler: SnapshotHandler): Unsubscribe {
    this.snapshots.add(handler);
    return () => this.snapshots.delete(handler);
  }

  private deliver<T>(channel: Channel<T>, message: T): void {
    this.queue.push(() => channel.emit(message, this.onHandlerError));
    if (this.delivering) return;
    this.delivering = true;
    try {
      for (let next = this.queue.shift(); next !== undefined; next = this.queue.shift()) next();
    } finally {
      this.delivering = false;
    }
  }
}

class Channel<T> {
  private readonly name: string;
  private readonly handlers = new Set<(message: T) => void>();

  constructor(name: string) {
    this.name = name;
  }

  add(handler: (message: T) => void): Unsubscribe {
    // A wrapper of its own, so that the same function may subscribe twice and leave once.
    const own = (message: T) => handler(message);
    this.handlers.add(own);
    return () => this.handlers.delete(own);
  }

  emit(message: T, onHandlerError: InProcessBusOptions["onHandlerError"]): void {
    for (const handler of [...this.handlers]) {
      try {
        handler(message);
      } catch (thrown) {
        onHandlerError(thrown, this.name);
      }
    }
  }
}
