/** The queue between the log and the view: order kept, batches joined by time and size, one write at a time, failures tried again. */

import type { KedgeError } from "../errors/index.ts";
import { toKedgeError } from "../errors/index.ts";
import type { IncarnationKey, Registration } from "../fleet/types.ts";
import type { MaybePromise } from "../store/types.ts";
import type { Held } from "./feeds.ts";
import { finallyDo, guarded, type Timers } from "./maybe.ts";
import { nameOf } from "./ranks.ts";

export type Work = RegistrationWork | { readonly kind: "retirement"; readonly key: IncarnationKey } | KvWork;

export interface RegistrationWork {
  readonly kind: "registration";
  readonly registration: Registration;
  /** The view has forgotten the rank, and needs a snapshot as well. */
  readonly revive: boolean;
  /** Was in a write that the store refused as malformed, and is tried by itself. */
  readonly alone?: boolean;
}

export interface KvWork extends Held {
  readonly kind: "kv";
  /** As of registrations. */
  readonly alone?: boolean;
  /** Was refused because of a gap that a snapshot had closed by then. */
  readonly again?: boolean;
}

export interface WriterOptions {
  readonly perform: (run: readonly Work[]) => MaybePromise<void>;
  /** A failed write; it is tried again unless `abandoned`. */
  readonly onFailed: (error: KedgeError, run: readonly Work[], abandoned: boolean) => void;
  /** Null: what is queued is written at once, and nothing is tried again. */
  readonly timers: Timers | null;
  /** Work waits at most this long for more. */
  readonly joinMs: number;
  /** True if the view answered something since the last call. A write that fails all the same is itself at fault. */
  readonly viewAnswers: () => boolean;
}

/** Most batches, and about the most keys, handed to the store in one call. */
const MAX_RUN = 256;
const MAX_RUN_KEYS = 4_000;
/** Registrations of different ranks that are written side by side. */
const MAX_REGISTRATIONS = 16;
/** So many keys are worth a write of their own. */
const ENOUGH_KEYS = 500;
const BACKOFF_MS = [100, 200, 400, 800, 1_600] as const;

export class Writer {
  readonly #options: WriterOptions;
  #queue: Work[] = [];
  #queuedKeys = 0;
  #writing = false;
  #timer: unknown = null;
  #tries = 0;
  #draining = false;
  #whenEmpty: (() => void)[] = [];

  constructor(options: WriterOptions) {
    this.#options = options;
  }

  /** Work not yet written. */
  get queued(): number {
    return this.#queue.length;
  }

  /** Nothing is queued or being written. */
  get idle(): boolean {
    return this.#queue.length === 0 && !this.#writing;
  }

  add(...work: readonly Work[]): void {
    if (work.length === 0) return;
    for (const each of work) {
      this.#queue.push(each);
      this.#queuedKeys += keysOf(each);
    }
    this.#wake();
  }

  /** Writes without waiting for more. Resolves when nothing is queued any more; what fails now is let go. */
  async drain(): Promise<void> {
    this.#draining = true;
    this.#pump();
    if (this.#writing) await new Promise<void>((resolve) => this.#whenEmpty.push(resolve));
    this.#draining = false;
  }

  #wake(): void {
    const { timers, joinMs } = this.#options;
    if (this.#writing) return;
    if (timers === null || this.#draining) {
      this.#pump();
    } else if (this.#tries === 0) {
      if (this.#queuedKeys < ENOUGH_KEYS) this.#arm(joinMs);
      else this.#pump();
    }
  }

  #arm(delayMs: number): void {
    this.#timer ??= this.#options.timers?.setTimeout(() => {
      this.#timer = null;
      this.#pump();
    }, delayMs);
  }

  #disarm(): void {
    if (this.#timer !== null) this.#options.timers?.clearTimeout(this.#timer);
    this.#timer = null;
  }

  #pump(): void {
    if (this.#writing) return;
    this.#disarm();
    this.#writing = true;
    while (this.#queue.length > 0) {
      const run = this.#takeRun();
      let again = false;
      const done = guarded(
        () => this.#options.perform(run),
        (thrown) => {
          again = this.#failed(run, toKedgeError(thrown));
        },
      );
      if (done instanceof Promise) {
        finallyDo(done, () => this.#finished(again));
        return;
      }
      if (again) break;
      this.#tries = 0;
    }
    this.#writing = false;
    for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }

  #finished(again: boolean): void {
    this.#writing = false;
    if (again) return;
    this.#tries = 0;
    if (this.#queue.length > 0) this.#wake();
    else for (const resolve of this.#whenEmpty.splice(0)) resolve();
  }

  /** The next piece of work with those of its kind that follow directly, where the store takes many at once. */
  #takeRun(): Work[] {
    const first = this.#queue[0]!;
    const most = Math.min(this.#queue.length, first.kind === "registration" ? MAX_REGISTRATIONS : MAX_RUN);
    const ranks = new Set<string>();
    let length = 0;
    let keys = 0;
    for (; length < most; length++) {
      const next = this.#queue[length]!;
      if (next !== first && !this.#joins(first, next)) break;
      if (next.kind === "registration") {
        if (ranks.has(nameOf(next.registration))) break;
        ranks.add(nameOf(next.registration));
      }
      keys += keysOf(next);
      if (keys > MAX_RUN_KEYS && length > 0) break;
    }
    const run = this.#queue.splice(0, length);
    for (const each of run) this.#queuedKeys -= keysOf(each);
    return run;
  }

  #joins(first: Work, next: Work): boolean {
    if (first.kind === "retirement" || next.kind !== first.kind) return false;
    if (first.alone === true || next.alone === true) return false;
    return first.kind === "kv" || this.#options.timers !== null;
  }

  /** True: the run is in the queue again and waits for better times. */
  #failed(run: readonly Work[], error: KedgeError): boolean {
    if (error.code === "invalid_request" && run.length > 1) {
      // What is malformed must not take the others of its write with it.
      this.#putBack(run.map((work) => (work.kind === "retirement" ? work : { ...work, alone: true })));
      return false;
    }
    const abandoned = !this.#triesAgain(error);
    this.#options.onFailed(error, run, abandoned);
    if (abandoned) {
      // There is no time to fail once for each.
      if (this.#draining && error.code !== "invalid_request") this.#forget();
      return false;
    }
    const delayMs = BACKOFF_MS[Math.min(this.#tries, BACKOFF_MS.length - 1)]!;
    this.#tries += 1;
    this.#putBack(run);
    this.#arm(delayMs);
    return true;
  }

  #triesAgain(error: KedgeError): boolean {
    if (this.#options.timers === null || this.#draining || error.code === "invalid_request") return false;
    const answers = this.#options.viewAnswers();
    return this.#tries < BACKOFF_MS.length || !answers;
  }

  #forget(): void {
    this.#queue = [];
    this.#queuedKeys = 0;
  }

  #putBack(run: readonly Work[]): void {
    this.#queue.unshift(...run);
    for (const each of run) this.#queuedKeys += keysOf(each);
  }
}

function keysOf(work: Work): number {
  if (work.kind !== "kv") return 0;
  let keys = 0;
  for (const op of work.batch.ops) keys += op.keys.length;
  return keys;
}
