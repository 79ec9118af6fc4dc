/** The log's reading end: batches through a durable consumer, handed out, and acknowledged when all handlers are done with them. */

import { KedgeError } from "../../errors/index.ts";
import type { KvBatch } from "../../store/types.ts";
import type { Unsubscribe } from "../bus.ts";
import { decodeKvBatch } from "../codec.ts";
import type { ConsumerSettings, Link, LogMessage } from "./connection.ts";
import { ofItsSubject } from "./subjects.ts";

export type KvHandler = (batch: KvBatch, done: () => void) => void;

export interface LogReaderOptions {
  readonly consumer: ConsumerSettings;
  /** Makes the stream, if it is not there. */
  readonly ensureStream: (link: Link) => Promise<void>;
  /** Wait between two attempts to consume, doubled up to the largest. */
  readonly retryMs: number;
  readonly retryMaxMs: number;
  readonly pause: (delayMs: number) => Promise<void>;
  readonly onError: (thrown: unknown, doing: string) => void;
}

export interface LogFigures {
  received: number;
  redelivered: number;
  undecodable: number;
}

/** One run of consuming, which ends when its connection does or nobody listens. */
interface Run {
  isOver: boolean;
  stop: (() => void) | null;
}

export class LogReader {
  readonly figures: LogFigures = { received: 0, redelivered: 0, undecodable: 0 };
  private readonly options: LogReaderOptions;
  private readonly handlers = new Set<KvHandler>();
  /** By their place in the log, so that one that comes again is not counted twice. */
  private readonly undone = new Map<number, LogMessage>();
  private link: Link | null = null;
  private run: Run | null = null;
  private pending: number | null = null;

  constructor(options: LogReaderOptions) {
    this.options = options;
  }

  /** Messages still to come, as last told; null: it is not consumed. */
  get lag(): number | null {
    return this.pending;
  }

  /** Batches handed out that somebody is not done with. */
  get unfinished(): number {
    return this.undone.size;
  }

  get isWanted(): boolean {
    return this.handlers.size > 0;
  }

  add(handler: KvHandler): Unsubscribe {
    // A wrapper of its own, so that the same function may subscribe twice and leave once.
    const own: KvHandler = (batch, done) => handler(batch, done);
    this.handlers.add(own);
    this.begin();
    return () => {
      this.handlers.delete(own);
      // What was handed out may still be done with.
      if (this.handlers.size === 0) this.end();
    };
  }

  attach(link: Link): void {
    this.link = link;
    this.begin();
  }

  /** The connection is over: what was not acknowledged comes again by another. */
  detach(): void {
    this.link = null;
    this.end();
    this.undone.clear();
  }

  /** Hands what is not done, and what still comes, back to the log, for whoever consumes next. */
  handBack(): void {
    this.handlers.clear();
    this.end();
    for (const message of this.undone.values()) message.nak();
    this.undone.clear();
  }

  private begin(): void {
    if (this.link === null || this.run !== null || !this.isWanted) return;
    this.run = { isOver: false, stop: null };
    void this.keepConsuming(this.link, this.run);
  }

  private end(): void {
    const { run } = this;
    if (run === null) return;
    this.run = null;
    this.pending = null;
    run.isOver = true;
    run.stop?.();
  }

  /** A stream or consumer that goes is made again. */
  private async keepConsuming(link: Link, run: Run): Promise<void> {
    const { consumer, ensureStream, retryMs, retryMaxMs, pause, onError } = this.options;
    let waitMs = retryMs;
    while (!run.isOver) {
      try {
        await ensureStream(link);
        if (run.isOver) return;
        const consumption = await link.consume(consumer, (message) => this.receive(message));
        run.stop = () => consumption.stop();
        if (run.isOver) consumption.stop();
        waitMs = retryMs;
        await consumption.lost;
        if (!run.isOver)
          throw new KedgeError("view_unavailable", `The consumer of ${consumer.stream} is gone.`);
      } catch (thrown) {
        if (run.isOver) return;
        onError(thrown, "consuming the log");
        await pause(waitMs);
        waitMs = Math.min(waitMs * 2, retryMaxMs);
      }
    }
  }

  private receive(message: LogMessage): void {
    if (this.run !== null) this.pending = message.pending;
    this.figures.received += 1;
    if (message.redelivered) this.figures.redelivered += 1;
    let batch: KvBatch;
    try {
      batch = ofItsSubject(decodeKvBatch(message.data), message.subject);
    } catch (thrown) {
      // It would be no better the next time.
      message.term();
      this.figures.undecodable += 1;
      this.options.onError(thrown, "kv");
      return;
    }
    const handlers = [...this.handlers];
    if (handlers.length === 0) message.nak();
    else this.handOut(batch, message, handlers);
  }

  private handOut(batch: KvBatch, message: LogMessage, handlers: readonly KvHandler[]): void {
    this.undone.set(message.sequence, message);
    const open = new Set(handlers);
    for (const handler of handlers) {
      const done = () => {
        if (open.delete(handler) && open.size === 0) this.finish(message);
      };
      try {
        handler(batch, done);
      } catch (thrown) {
        this.options.onError(thrown, "kv");
      }
    }
  }

  /** Acknowledges its latest delivery, for the connection of this one may have ended. */
  private finish(message: LogMessage): void {
    const latest = this.undone.get(message.sequence);
    // The place may be another message's by now, in a log that was made again.
    if (latest === undefined || (latest !== message && !latest.redelivered)) return;
    this.undone.delete(message.sequence);
    latest.ack();
  }
}
