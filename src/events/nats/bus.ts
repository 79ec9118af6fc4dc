/** The event bus over NATS: KV batches through a JetStream log, all else by core subjects; it outlives every connection. */

import { KedgeError } from "../../errors/index.ts";
import type { IncarnationKey, LoadReport, Registration } from "../../fleet/types.ts";
import type { KvBatch, KvSnapshot } from "../../store/types.ts";
import type { EventBus, Unsubscribe } from "../bus.ts";
import {
  decodeHeartbeat,
  decodeKey,
  decodeLoads,
  decodeRegistration,
  encodeHeartbeat,
  encodeKey,
  encodeKvBatch,
  encodeLoads,
  encodeRegistration,
} from "../codec.ts";
import { Channels } from "./channels.ts";
import { type Link, type LinkMessage, type NatsCredentials, openLink } from "./connection.ts";
import { LoadBuffer } from "./loads.ts";
import { type KvHandler, LogReader } from "./log.ts";
import { Outbox, type Timers } from "./outbox.ts";
import { answerSnapshot, askSnapshot, type SnapshotHandler } from "./snapshots.ts";
import { consumerName, messageId, ofItsSubject, type Place, placeOf, Subjects, token } from "./subjects.ts";

export interface StreamLimits {
  /** Default 1 h: what is older is re-asserted or comes by snapshot. */
  readonly maxAgeMs?: number;
  /** Default 1 GiB. */
  readonly maxBytes?: number;
  /** Default 1; 3 in a cluster. */
  readonly replicas?: number;
}

export interface NatsBusOptions {
  /** `ws://` or `wss://` addresses, tried in turn. */
  readonly servers: readonly string[];
  /** Default: none. A function is asked with every connection, so that renewed ones need no restart. */
  readonly credentials?: NatsCredentials | (() => NatsCredentials);
  /** First token of all subjects. */
  readonly prefix: string;
  /** The log: made by indexers with {@link StreamLimits} if there is none. */
  readonly stream: string;
  readonly streamLimits?: StreamLimits;
  readonly place: Place;
  /** Agents answer a new connection by announcing themselves, indexers by calling the roll. */
  readonly role: "agent" | "indexer";
  /** Shown in the server's list of connections; of an indexer also part of its inbox's name. */
  readonly name: string;
  /** Told of refused messages, handlers' failures and lost connections; the bus goes on. */
  readonly onError: (error: KedgeError, doing: string) => void;
  /** Connected or not, each time it changes. */
  readonly onStatus?: (status: NatsStatus) => void;
  readonly timers: Timers;
  /** In [0, 1): spreads reconnects. */
  readonly random: () => number;
  /** Opens the WebSocket another way, e.g. by a binding's fetch in a Worker. */
  readonly openSocket?: (url: string) => Promise<WebSocket>;
  /** Default 1 s: a server silent for three of these is taken for dead. */
  readonly pingMs?: number;
  /** Default 5 s. */
  readonly connectTimeoutMs?: number;
  /** First wait before connecting again (default 100 ms), doubled up to `reconnectMaxMs` (default 5 s); each by chance half or full. */
  readonly reconnectMs?: number;
  readonly reconnectMaxMs?: number;
  /** Batches kept while they cannot be stored; default 32 MiB. What is dropped comes by snapshot. */
  readonly bufferBytes?: number;
  /** Batches under way to the log at a time; default 256. */
  readonly maxInFlight?: number;
  /** A batch that nobody is done with by then is delivered again; default 30 s. */
  readonly ackWaitMs?: number;
  /** Batches that may be handled at a time; default 2,048. */
  readonly maxAckPending?: number;
  /** Waited for each part of a snapshot; default 5 s. */
  readonly snapshotTimeoutMs?: number;
}

export interface NatsStatus {
  readonly connected: boolean;
  /** The server of this connection, null: there is none. */
  readonly server: string | null;
  /** Connections made since the start. */
  readonly connects: number;
  /** Batches that the log has stored. */
  readonly published: number;
  /** Batches that were given up: the buffer was full, or the log refused them for good. */
  readonly dropped: number;
  /** Batches that wait for the log, and their bytes. */
  readonly buffered: number;
  readonly bufferedBytes: number;
  /** Batches got from the log, those got again, and those that nobody is done with yet. */
  readonly received: number;
  readonly redelivered: number;
  readonly pendingAcks: number;
  /** Messages that could not be read. */
  readonly undecodable: number;
  /** Messages of the log still to come, as last told; null: it is not consumed. */
  readonly consumerLag: number | null;
}

/** Shorter than the time between two agents' re-assertions, longer than any reconnect that is worth it. */
const DUPLICATE_WINDOW_MS = 120_000;

/** A server that was away is found again within this time by all who look for it. */
const SETTLE_MS = 1_000;

/** A connection that has lasted so long was a good one. */
const STEADY_MS = 2_000;

/** Largest message of several load reports. */
const MAX_LOADS_BYTES = 256 * 1_024;

const FLUSH_TIMEOUT_MS = 5_000;
const CLOSE_TIMEOUT_MS = 2_000;

/** Registrations and retirements kept for the next connection; more are left to the roll call. */
const MAX_KEPT_NOTICES = 4_096;

/** Places kept of workers heard of; those forgotten are asked by broadcast. */
const MAX_PLACES = 65_536;

/** Begins to connect and returns at once: `connected` tells when it has. */
export function connectNatsBus(options: NatsBusOptions): NatsBus {
  return new NatsBus(options);
}

export class NatsBus implements EventBus {
  private readonly options: Required<Omit<NatsBusOptions, "openSocket" | "onStatus" | "streamLimits">> &
    Pick<NatsBusOptions, "openSocket" | "onStatus" | "streamLimits">;
  private readonly subjects: Subjects;
  private readonly outbox: Outbox;
  private readonly loads: LoadBuffer;
  private link: Link | null = null;
  private closed = false;
  private readonly channels: Channels;
  private readonly log: LogReader;
  private readonly rollHandlers = new Set<() => void>();
  private readonly snapshotHandlers = new Set<SnapshotHandler>();
  /** Token of a worker → end of its subjects, as heard in registrations. */
  private readonly places = new Map<string, string>();
  /** Not yet told, by what they are about. */
  private readonly notices = new Map<string, { readonly subject: string; readonly data: Uint8Array }>();
  private readonly snapshotListeners: Unsubscribe[] = [];
  private readonly sleepers = new Set<() => void>();
  private isDropping = false;
  /** Timer of a connection so young that others may not be back yet; what is not kept in the log waits for them, or for a roll call. */
  private settling: unknown = null;
  private readonly figures = {
    connects: 0,
    published: 0,
    dropped: 0,
    undecodable: 0,
  };

  constructor(options: NatsBusOptions) {
    this.options = {
      credentials: {},
      pingMs: 1_000,
      connectTimeoutMs: 5_000,
      reconnectMs: 100,
      reconnectMaxMs: 5_000,
      bufferBytes: 32 * 1_024 * 1_024,
      maxInFlight: 256,
      ackWaitMs: 30_000,
      maxAckPending: 2_048,
      snapshotTimeoutMs: 5_000,
      ...options,
    };
    this.subjects = new Subjects(options.prefix);
    this.outbox = new Outbox({
      timers: options.timers,
      maxBytes: this.options.bufferBytes,
      maxInFlight: this.options.maxInFlight,
      onStored: () => {
        this.figures.published += 1;
        this.isDropping = false;
      },
      onDropped: (parcel, why) => this.drop(parcel.subject, why),
      onRetry: (why) => this.fail(why, "publishing a batch"),
    });
    this.channels = new Channels({
      onUnreadable: (thrown, subject) => {
        this.figures.undecodable += 1;
        this.fail(thrown, subject);
      },
      onHandlerError: (thrown, subject) => this.fail(thrown, subject),
    });
    this.log = new LogReader({
      consumer: {
        stream: options.stream,
        durable: consumerName(options.place.region),
        ackWaitMs: this.options.ackWaitMs,
        maxAckPending: this.options.maxAckPending,
      },
      ensureStream: (link) => this.ensureStream(link),
      retryMs: this.options.reconnectMs,
      retryMaxMs: this.options.reconnectMaxMs,
      pause: (delayMs) => this.pause(delayMs),
      onError: (thrown, doing) => this.fail(thrown, doing),
    });
    this.loads = new LoadBuffer((reports) => this.sendLoads(reports));
    if (options.role === "indexer") {
      // Registrations also say where each worker's snapshots are to be had.
      this.channels.hear(
        this.subjects.all("reg"),
        ({ subject }) => placeOf(subject),
        (place) => this.learnPlace(place),
      );
    }
    if (options.role === "agent") {
      // An indexer is there and hears.
      this.channels.hear(
        this.subjects.roll,
        () => undefined,
        () => this.settle(),
      );
    }
    void this.live();
  }

  get connected(): boolean {
    return this.link !== null;
  }

  status(): NatsStatus {
    return {
      connected: this.connected,
      server: this.link?.server ?? null,
      ...this.figures,
      ...this.log.figures,
      undecodable: this.figures.undecodable + this.log.figures.undecodable,
      buffered: this.outbox.length,
      bufferedBytes: this.outbox.bytes,
      pendingAcks: this.log.unfinished,
      consumerLag: this.log.lag,
    };
  }

  publishRegistration(registration: Registration): void {
    const subject = this.subjects.worker("reg", this.options.place, registration.worker);
    this.notify(`reg ${registration.worker} ${registration.rank}`, subject, encodeRegistration(registration));
  }

  onRegistration(handler: (registration: Registration) => void): Unsubscribe {
    return this.channels.hear(
      this.subjects.all("reg"),
      ({ data, subject }) => ofItsSubject(decodeRegistration(data), subject),
      handler,
    );
  }

  publishRetirement(key: IncarnationKey): void {
    const subject = this.subjects.worker("gone", this.options.place, key.worker);
    this.notify(`gone ${key.worker} ${key.rank} ${key.incarnation}`, subject, encodeKey(key));
  }

  onRetirement(handler: (key: IncarnationKey) => void): Unsubscribe {
    return this.channels.hear(
      this.subjects.all("gone"),
      ({ data, subject }) => ofItsSubject(decodeKey(data), subject),
      handler,
    );
  }

  publishKv(batch: KvBatch): void {
    if (this.closed) return;
    const subject = this.subjects.worker("kv", this.options.place, batch.worker);
    this.outbox.push({ subject, data: encodeKvBatch(batch), messageId: messageId(batch, batch.sequence) });
  }

  onKv(handler: KvHandler): Unsubscribe {
    return this.log.add(handler);
  }

  publishLoad(report: LoadReport): void {
    this.loads.add(report);
  }

  onLoad(handler: (report: LoadReport) => void): Unsubscribe {
    return this.channels.hear(
      this.subjects.all("load"),
      ({ data }) => decodeLoads(data),
      (reports) => {
        for (const report of reports) handler(report);
      },
    );
  }

  publishHeartbeat(indexer: string): void {
    this.link?.publish(this.subjects.beat(this.options.place.region, indexer), encodeHeartbeat(indexer));
  }

  onHeartbeat(handler: (indexer: string) => void): Unsubscribe {
    const { region } = this.options.place;
    return this.channels.hear(this.subjects.beats(region), ({ data }) => decodeHeartbeat(data), handler);
  }

  callRoll(): void {
    // Without a connection nothing is lost: every new one begins with a roll call.
    this.link?.publish(this.subjects.roll, new Uint8Array());
  }

  onRollCall(handler: () => void): Unsubscribe {
    const own = () => handler();
    this.rollHandlers.add(own);
    const leave = this.channels.hear(this.subjects.roll, () => undefined, own);
    return () => {
      this.rollHandlers.delete(own);
      leave();
    };
  }

  async requestSnapshot(key: IncarnationKey): Promise<KvSnapshot | null> {
    const { link } = this;
    if (link === null) return null;
    const options = {
      timers: this.options.timers,
      timeoutMs: this.options.snapshotTimeoutMs,
      onError: (error: KedgeError) => this.fail(error, "reading a snapshot"),
    };
    const place = this.places.get(token(key.worker));
    if (place !== undefined) {
      const answer = await askSnapshot(link, `${this.options.prefix}.snap.${place}`, key, options);
      // Nobody there: the worker may have moved to a place that was not heard of yet.
      if (answer !== "absent") return typeof answer === "string" ? null : answer;
    }
    const answer = await askSnapshot(link, this.subjects.anySnapshot, key, options);
    return typeof answer === "string" ? null : answer;
  }

  serveSnapshots(handler: SnapshotHandler): Unsubscribe {
    const own: SnapshotHandler = (key) => handler(key);
    this.snapshotHandlers.add(own);
    if (this.snapshotHandlers.size === 1) this.listenForSnapshots();
    return () => {
      this.snapshotHandlers.delete(own);
      if (this.snapshotHandlers.size === 0) for (const leave of this.snapshotListeners.splice(0)) leave();
    };
  }

  private listenForSnapshots(): void {
    const answer = (isBroadcast: boolean) => (message: LinkMessage) => {
      const { link } = this;
      if (link === null) return;
      void answerSnapshot(link, message, [...this.snapshotHandlers], isBroadcast, (error) =>
        this.fail(error, "answering for a snapshot"),
      );
    };
    this.snapshotListeners.push(
      this.channels.hear(this.subjects.node("snap", this.options.place), asItIs, answer(false)),
      this.channels.hear(this.subjects.anySnapshot, asItIs, answer(true)),
    );
  }

  /** Resolves when all that was published before has reached the server, or after `timeoutMs`: false, then. */
  flush(timeoutMs = FLUSH_TIMEOUT_MS): Promise<boolean> {
    this.settle();
    this.loads.flush();
    const done = async () => {
      await this.outbox.emptied();
      await this.link?.flush();
      return this.connected;
    };
    return this.within(
      timeoutMs,
      done().catch(() => false),
    );
  }

  /** Sends what it can within 2 s, hands unfinished batches back to the log, and ends. Safe to call twice. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    if (this.connected) await this.flush(CLOSE_TIMEOUT_MS);
    // Whoever consumes next gets them now and not after the acknowledgement time.
    this.log.handBack();
    const { link } = this;
    if (link !== null) {
      await this.within(
        CLOSE_TIMEOUT_MS,
        link.flush().then(
          () => true,
          () => false,
        ),
      );
      link.close();
      this.end();
    }
    for (const wake of [...this.sleepers]) wake();
  }

  /** Connects, and again whenever a connection has ended, until it is closed. */
  private async live(): Promise<void> {
    const { servers, reconnectMs, reconnectMaxMs, random, timers } = this.options;
    let next = Math.floor(random() * servers.length);
    let waitMs = reconnectMs;
    while (!this.closed) {
      const server = servers[next % servers.length];
      next += 1;
      try {
        const link = await this.open(server);
        if (this.closed) {
          link.close();
          return;
        }
        this.begin(link);
        // A server that accepts and hangs up again is no reason to hurry.
        const steady = timers.setTimeout(() => {
          waitMs = reconnectMs;
        }, STEADY_MS);
        const why = await link.ended;
        timers.clearTimeout(steady);
        this.end();
        if (!this.closed) this.fail(lost(server, why), "connection");
      } catch (thrown) {
        this.fail(thrown, "connection");
      }
      if (this.closed) return;
      await this.pause(waitMs * (0.5 + random() / 2));
      waitMs = Math.min(waitMs * 2, reconnectMaxMs);
    }
  }

  private async open(server: string): Promise<Link> {
    const { credentials, name, place, role, connectTimeoutMs, pingMs, openSocket } = this.options;
    return openLink({
      server,
      credentials: typeof credentials === "function" ? credentials() : credentials,
      name,
      inboxPrefix:
        role === "agent" ? this.subjects.agentInbox(place) : this.subjects.indexerInbox(place.region, name),
      connectTimeoutMs,
      pingMs,
      ...(openSocket !== undefined && { openSocket }),
      onRefusal: (error) => this.fail(error, "permission"),
    });
  }

  private begin(link: Link): void {
    this.link = link;
    this.figures.connects += 1;
    this.channels.attach(link);
    this.settling = this.options.timers.setTimeout(() => this.settle(), SETTLE_MS);
    if (this.figures.connects === 1) this.settle();
    this.log.attach(link);
    this.outbox.start((parcel) => link.log(parcel.subject, parcel.data, parcel.messageId));
    if (this.options.role === "agent") {
      // What was said while nobody could hear it, an indexer has missed.
      for (const handler of [...this.rollHandlers]) this.guard(handler, "roll call");
    } else {
      this.callRoll();
      // Agents need it also while this indexer stands by.
      if (!this.log.isWanted) void this.ensureStream(link).catch((thrown) => this.fail(thrown, "stream"));
    }
    this.tellStatus();
  }

  /** Whoever was to connect again has: what was kept for this is said. */
  private settle(): void {
    const { link } = this;
    if (link === null || this.settling === null) return;
    this.options.timers.clearTimeout(this.settling);
    this.settling = null;
    for (const { subject, data } of this.notices.values()) link.publish(subject, data);
    this.notices.clear();
    this.loads.flush();
  }

  private end(): void {
    if (this.link === null) return;
    this.link = null;
    this.options.timers.clearTimeout(this.settling);
    this.settling = null;
    this.outbox.stop();
    this.log.detach();
    this.channels.detach();
    this.tellStatus();
  }

  private tellStatus(): void {
    this.guard(() => this.options.onStatus?.(this.status()), "telling the status");
  }

  private ensureStream(link: Link): Promise<void> {
    const { stream, streamLimits = {} } = this.options;
    return link.ensureStream({
      name: stream,
      subjects: [this.subjects.all("kv")],
      maxAgeMs: streamLimits.maxAgeMs ?? 3_600_000,
      maxBytes: streamLimits.maxBytes ?? 1_024 ** 3,
      replicas: streamLimits.replicas ?? 1,
      duplicateWindowMs: DUPLICATE_WINDOW_MS,
    });
  }

  private learnPlace(place: string): void {
    const worker = place.slice(place.lastIndexOf(".") + 1);
    this.places.delete(worker);
    this.places.set(worker, place);
    if (this.places.size > MAX_PLACES) this.places.delete(this.places.keys().next().value!);
  }

  /** Sends now, or with the next connection; only the last word on a subject matters. */
  private notify(about: string, subject: string, data: Uint8Array): void {
    const { link } = this;
    if (link !== null && data.length > link.maxPayload) {
      const told = `A message of ${data.length} bytes for ${subject} is larger than the server's max_payload (${link.maxPayload}).`;
      this.fail(new KedgeError("payload_too_large", told), subject);
      return;
    }
    if (this.settling === null && link?.publish(subject, data)) return;
    this.notices.delete(about);
    this.notices.set(about, { subject, data });
    if (this.notices.size > MAX_KEPT_NOTICES) this.notices.delete(this.notices.keys().next().value!);
  }

  /** In halves, if they are too many for one message. */
  private sendLoads(reports: readonly LoadReport[]): boolean {
    const { link } = this;
    if (link === null || this.settling !== null) return false;
    const data = encodeLoads(reports);
    if (data.length <= MAX_LOADS_BYTES || reports.length === 1) {
      link.publish(this.subjects.load(this.options.place), data);
    } else {
      const middle = reports.length >> 1;
      this.sendLoads(reports.slice(0, middle));
      this.sendLoads(reports.slice(middle));
    }
    return true;
  }

  private drop(subject: string, why: unknown): void {
    this.figures.dropped += 1;
    // One word per time of trouble, not one per batch.
    if (this.isDropping) return;
    this.isDropping = true;
    const reason = why instanceof Error ? why.message : String(why);
    const told = `Batches for ${subject} are dropped: ${reason}. The view gets them by snapshot.`;
    this.fail(new KedgeError("overloaded", told, { cause: why }), "publishing a batch");
  }

  private guard(act: () => void, doing: string): void {
    try {
      act();
    } catch (thrown) {
      this.fail(thrown, doing);
    }
  }

  private fail(thrown: unknown, doing: string): void {
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    const error =
      thrown instanceof KedgeError
        ? thrown
        : new KedgeError("internal_error", `NATS bus, ${doing}: ${message}`, { cause: thrown });
    this.options.onError(error, doing);
  }

  /** Ends early when the bus is closed. */
  private pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        this.options.timers.clearTimeout(timer);
        this.sleepers.delete(wake);
        resolve();
      };
      const timer = this.options.timers.setTimeout(wake, delayMs);
      this.sleepers.add(wake);
    });
  }

  private within(timeoutMs: number, done: Promise<boolean>): Promise<boolean> {
    const { timers } = this.options;
    return new Promise((resolve) => {
      const timer = timers.setTimeout(() => resolve(false), timeoutMs);
      void done.then((value) => {
        timers.clearTimeout(timer);
        resolve(value);
      });
    });
  }
}

function asItIs(message: LinkMessage): LinkMessage {
  return message;
}

function lost(server: string, why: string): KedgeError {
  return new KedgeError("view_unavailable", `The connection to NATS at ${server} has ended: ${why}.`);
}
