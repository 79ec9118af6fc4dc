/** Several processes behind one port: started, restarted when they die, ended together; their metrics on one page. */

import cluster, { type Worker } from "node:cluster";
import { type ErrorCode, KedgeError } from "../errors/index.ts";
import { mergeMetrics } from "./merged-metrics.ts";

export interface PoolMember {
  readonly url: string;
  close(): Promise<void>;
}

export interface PoolOptions {
  readonly processes: number;
  /** How long members may take to end before they are killed, in milliseconds. */
  readonly endTimeoutMs: number;
  readonly log: (message: string) => void;
}

export interface Pool {
  readonly url: string;
  /** Process ids of the members that run now. */
  pids(): number[];
  /** Lets every member end what is under way. Safe to call twice. */
  close(): Promise<void>;
  /** Ends every member at once. */
  kill(): void;
}

type ToMember =
  | { readonly pool: "stop" }
  | { readonly pool: "report"; readonly id: number }
  | { readonly pool: "page"; readonly id: number; readonly text: string };

type FromMember =
  | { readonly pool: "ready"; readonly url: string }
  | { readonly pool: "failed"; readonly code: ErrorCode; readonly message: string }
  | { readonly pool: "reported"; readonly id: number; readonly text: string }
  | { readonly pool: "wanted"; readonly id: number };

const FIRST_DELAY_MS = 100;
const LONGEST_DELAY_MS = 10_000;
/** Who lived longer than this died of something new. */
const SETTLED_MS = 10_000;
/** A member that is too busy to report is left out of the page. */
const REPORT_TIMEOUT_MS = 1_000;

/**
 * To be called by the first process, which runs the same command again for each member. Resolves when all members listen. Errors: those of
 * the first member that cannot start; the others are ended before.
 */
export async function startPool(options: PoolOptions): Promise<Pool> {
  const pool = new Primary(options);
  try {
    const url = await pool.start();
    return { url, pids: () => pool.pids(), close: () => pool.close(), kill: () => pool.kill() };
  } catch (thrown) {
    await pool.close();
    throw thrown;
  }
}

interface Slot {
  readonly index: number;
  worker: Worker | null;
  sinceMs: number;
  /** Deaths in a row soon after the start. */
  deaths: number;
  timer: NodeJS.Timeout | null;
}

class Primary {
  private readonly options: PoolOptions;
  private readonly slots: Slot[];
  private readonly reports = new Map<number, (text: string) => void>();
  private nextReport = 1;
  private closing: Promise<void> | null = null;
  private starting: { resolve: (url: string) => void; reject: (error: KedgeError) => void } | null = null;
  private readonly ready = new Set<Worker>();

  constructor(options: PoolOptions) {
    this.options = options;
    this.slots = Array.from({ length: options.processes }, (_, index) => ({
      index,
      worker: null,
      sinceMs: 0,
      deaths: 0,
      timer: null,
    }));
  }

  start(): Promise<string> {
    return new Promise((resolve, reject) => {
      this.starting = { resolve, reject };
      for (const slot of this.slots) this.fork(slot);
    });
  }

  pids(): number[] {
    return this.slots.flatMap(({ worker }) => worker?.process.pid ?? []);
  }

  close(): Promise<void> {
    this.closing ??= this.end();
    return this.closing;
  }

  kill(): void {
    for (const { worker } of this.slots) worker?.process.kill("SIGKILL");
  }

  private fork(slot: Slot): void {
    const worker = cluster.fork();
    slot.worker = worker;
    slot.sinceMs = performance.now();
    worker.on("message", (message: FromMember) => this.hear(worker, message));
    worker.on("error", () => {});
    worker.once("exit", (code, signal) => this.died(slot, worker, signal ?? `code ${code}`));
  }

  private hear(worker: Worker, message: FromMember): void {
    switch (message.pool) {
      case "ready":
        this.ready.add(worker);
        if (this.ready.size === this.slots.length) this.started(message.url);
        return;
      case "failed":
        this.starting?.reject(new KedgeError(message.code, message.message));
        this.starting = null;
        return;
      case "reported":
        this.reports.get(message.id)?.(message.text);
        return;
      case "wanted":
        void this.page().then((text) => tell(worker, { pool: "page", id: message.id, text }));
    }
  }

  private started(url: string): void {
    this.starting?.resolve(url);
    this.starting = null;
  }

  private died(slot: Slot, worker: Worker, how: string): void {
    slot.worker = null;
    this.ready.delete(worker);
    if (this.closing !== null) return;
    if (this.starting !== null) {
      this.starting.reject(new KedgeError("internal_error", `A process ended at its start (${how}).`));
      this.starting = null;
      return;
    }
    slot.deaths = performance.now() - slot.sinceMs > SETTLED_MS ? 0 : slot.deaths + 1;
    const delayMs = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** slot.deaths);
    this.options.log(`process ${slot.index} ended (${how}); another starts in ${delayMs} ms`);
    slot.timer = setTimeout(() => this.fork(slot), delayMs);
  }

  /** Everybody's metrics, of those that answer in time. */
  private async page(): Promise<string> {
    const pages = await Promise.all(
      this.slots.map(
        async ({ index, worker }): Promise<[string, string]> => [
          String(index),
          worker === null ? "" : await this.report(worker),
        ],
      ),
    );
    return mergeMetrics(new Map(pages));
  }

  private report(worker: Worker): Promise<string> {
    const id = this.nextReport++;
    return new Promise((resolve) => {
      const done = (text: string): void => {
        clearTimeout(timer);
        this.reports.delete(id);
        resolve(text);
      };
      const timer = setTimeout(() => done(""), REPORT_TIMEOUT_MS);
      this.reports.set(id, done);
      tell(worker, { pool: "report", id });
    });
  }

  private async end(): Promise<void> {
    const ends = this.slots.map(({ worker, timer }) => {
      if (timer !== null) clearTimeout(timer);
      if (worker === null || worker.isDead()) return Promise.resolve();
      return new Promise<void>((resolve) => {
        const kill = setTimeout(() => worker.process.kill("SIGKILL"), this.options.endTimeoutMs);
        worker.once("exit", () => {
          clearTimeout(kill);
          resolve();
        });
        tell(worker, { pool: "stop" });
      });
    });
    await Promise.all(ends);
  }
}

function tell(worker: Worker, message: ToMember): void {
  if (worker.isConnected()) worker.send(message, () => {});
}

/** True in a process that a pool has started. */
export const isPoolMember = cluster.isWorker;

/**
 * The life of a member: starts, serves until the pool stops it, ends the process. Signals are the first process's to hear, for a terminal
 * sends them to all. If that one dies, so does this.
 */
export async function serveInPool(start: (metricsText: MetricsPage) => Promise<PoolMember>): Promise<void> {
  process.on("SIGINT", () => {});
  process.on("SIGTERM", () => {});
  const stopped = new Promise<void>((resolve) => {
    process.on("message", (message: ToMember) => {
      if (message.pool === "stop") resolve();
    });
  });
  let member: PoolMember;
  try {
    member = await start(new MetricsPage());
  } catch (thrown) {
    const { code, message } =
      thrown instanceof KedgeError ? thrown : { code: "internal_error" as const, message: String(thrown) };
    await say({ pool: "failed", code, message });
    process.exit(1);
  }
  await say({ pool: "ready", url: member.url });
  await stopped;
  await member.close();
  process.exit(0);
}

/** A member's view of all members' metrics. */
export class MetricsPage {
  private own: () => string = () => "";
  private readonly waiting = new Map<number, (text: string) => void>();
  private nextId = 1;

  constructor() {
    process.on("message", (message: ToMember) => {
      if (message.pool === "report") void say({ pool: "reported", id: message.id, text: this.own() });
      else if (message.pool === "page") this.waiting.get(message.id)?.(message.text);
    });
  }

  /** What this member reports. */
  setOwn(own: () => string): void {
    this.own = own;
  }

  /** The page of all members; this member's alone if the pool does not answer. */
  text(): Promise<string> {
    const id = this.nextId++;
    return new Promise((resolve) => {
      const done = (text: string): void => {
        clearTimeout(timer);
        this.waiting.delete(id);
        resolve(text);
      };
      const timer = setTimeout(() => done(this.own()), 2 * REPORT_TIMEOUT_MS);
      this.waiting.set(id, done);
      void say({ pool: "wanted", id });
    });
  }
}

/** Resolves when it is on its way; a pool that is gone hears nothing. */
function say(message: FromMember): Promise<void> {
  return new Promise((resolve) => {
    if (process.connected) process.send!(message, undefined, undefined, () => resolve());
    else resolve();
  });
}
