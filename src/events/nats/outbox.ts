/** Batches on their way to the log: in order, some at a time, sent again until they are stored; bounded by bytes. */

/** One-shot timers of the host. */
export interface Timers {
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

export interface Parcel {
  readonly subject: string;
  readonly data: Uint8Array;
  readonly messageId: string;
}

/** Sends one; rejects with an error whose `forGood` says that it will never be taken. */
export type Send = (parcel: Parcel) => Promise<void>;

export interface OutboxOptions {
  readonly timers: Timers;
  /** Bytes kept, sent or not, until they are stored. */
  readonly maxBytes: number;
  readonly maxInFlight: number;
  readonly onStored: () => void;
  readonly onDropped: (parcel: Parcel, why: unknown) => void;
  /** The log did not take one; it is sent again. */
  readonly onRetry: (why: unknown) => void;
}

interface Entry {
  readonly parcel: Parcel;
  stored: boolean;
}

const FIRST_RETRY_MS = 100;
const LAST_RETRY_MS = 5_000;

/** Entries that are done with and still in the list. */
const COMPACT_FROM = 1_024;

/** What an entry costs besides its data. */
const ENTRY_BYTES = 256;

/**
 * After a failure all that is not known to be stored is sent again from the first on, so that each worker's batches are stored in
 * order; message ids keep those that had been stored from being stored twice.
 */
export class Outbox {
  private readonly options: OutboxOptions;
  private readonly entries: Entry[] = [];
  /** Entries before this one are done with. */
  private head = 0;
  /** Entries from the head on that were sent in this run, or need not be. */
  private sent = 0;
  private bytesKept = 0;
  private send: Send | null = null;
  /** Distinguishes the answers of this run of sends from those of an earlier one. */
  private run = 0;
  private retry: unknown = null;
  private retryMs = FIRST_RETRY_MS;
  private waiting: (() => void)[] = [];

  constructor(options: OutboxOptions) {
    this.options = options;
  }

  get length(): number {
    return this.entries.length - this.head;
  }

  get bytes(): number {
    return this.bytesKept;
  }

  push(parcel: Parcel): void {
    const bytes = parcel.data.length + ENTRY_BYTES;
    if (this.bytesKept + bytes > this.options.maxBytes) {
      this.options.onDropped(parcel, "the buffer is full");
      return;
    }
    this.bytesKept += bytes;
    this.entries.push({ parcel, stored: false });
    this.pump();
  }

  /** There is a connection: all that is kept goes out by it. */
  start(send: Send): void {
    this.stop();
    this.send = send;
    this.retryMs = FIRST_RETRY_MS;
    this.pump();
  }

  /** There is none any more. */
  stop(): void {
    this.send = null;
    this.rewind();
  }

  /** Resolves when all that is kept now or comes meanwhile is stored or dropped. */
  emptied(): Promise<void> {
    if (this.length === 0) return Promise.resolve();
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  private rewind(): void {
    this.run += 1;
    this.sent = 0;
    this.options.timers.clearTimeout(this.retry);
    this.retry = null;
  }

  private pump(): void {
    const { send } = this;
    if (send === null || this.retry !== null) return;
    while (this.sent < Math.min(this.length, this.options.maxInFlight)) {
      const entry = this.entries[this.head + this.sent];
      this.sent += 1;
      if (!entry.stored) this.dispatch(entry, send);
    }
  }

  private dispatch(entry: Entry, send: Send): void {
    const { run } = this;
    send(entry.parcel).then(
      () => {
        entry.stored = true;
        this.options.onStored();
        if (run === this.run) this.retryMs = FIRST_RETRY_MS;
        this.shed();
      },
      (why: { readonly forGood?: boolean }) => {
        if (why.forGood === true) {
          entry.stored = true;
          this.options.onDropped(entry.parcel, why);
          this.shed();
        } else if (run === this.run) {
          this.again(why);
        }
      },
    );
  }

  private again(why: unknown): void {
    this.options.onRetry(why);
    this.rewind();
    this.retry = this.options.timers.setTimeout(() => {
      this.retry = null;
      this.pump();
    }, this.retryMs);
    this.retryMs = Math.min(this.retryMs * 2, LAST_RETRY_MS);
  }

  /** Forgets the front as far as it is stored. */
  private shed(): void {
    while (this.head < this.entries.length && this.entries[this.head].stored) {
      this.bytesKept -= this.entries[this.head].parcel.data.length + ENTRY_BYTES;
      this.head += 1;
      this.sent = Math.max(0, this.sent - 1);
    }
    if (this.head === this.entries.length || this.head > COMPACT_FROM) {
      this.entries.splice(0, this.head);
      this.head = 0;
    }
    this.pump();
    if (this.length > 0) return;
    for (const resolve of this.waiting.splice(0)) resolve();
  }
}
