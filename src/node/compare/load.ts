/** Puts a workload on a fleet, closed or open loop, and records every request. Bounded in requests and in time. */

import type { Exchange } from "./client.ts";
import { exponential, type Random } from "./random.ts";
import type { ChatRequest, Session, Workload } from "./workload.ts";

export type Load =
  /** So many conversations at a time, each asking again as soon as it was answered. */
  | { readonly kind: "closed"; readonly concurrency: number }
  /** Poisson arrivals of requests per second of the client's clock, whatever the answers take. */
  | { readonly kind: "open"; readonly ratePerSecond: number }
  /** Arrivals that the workload brings along, its ms stretched by `stretch`. */
  | { readonly kind: "trace"; readonly stretch: number };

export interface LoadOptions {
  readonly workload: Workload;
  readonly load: Load;
  /** Measured requests. */
  readonly requests: number;
  /** Requests of the same kind before the measured ones. */
  readonly warmUpRequests: number;
  readonly maxWallMs: number;
  /** Open loops give up beyond this many unanswered requests: the fleet is past saturation and nothing is learnt by more. */
  readonly maxInFlight: number;
  readonly random: Random;
}

export interface LoadDeps {
  readonly send: (request: ChatRequest, signal: AbortSignal) => Promise<Exchange>;
  readonly now: () => number;
  /** Resolves after so many ms, or at once when the signal fires. */
  readonly sleep: (ms: number, signal: AbortSignal) => Promise<void>;
  /** Ends the run early; what was measured so far is the result. */
  readonly signal: AbortSignal;
  readonly onWindow?: (at: "start" | "end") => void;
  readonly onProgress?: (progress: LoadProgress) => void;
}

export interface LoadProgress {
  readonly phase: "warm-up" | "measure";
  readonly done: number;
  readonly total: number;
  readonly inFlight: number;
  readonly errors: number;
}

export type EndedBy = "requests" | "workload" | "time" | "in-flight" | "stopped";

export interface LoadResult {
  /** Measured exchanges, in order of completion. */
  readonly exchanges: readonly Exchange[];
  /** The unmeasured ones before them; what they still did within the window counts as throughput. */
  readonly warmUps: readonly Exchange[];
  /** From the first measured request's start to the last one's: the load is constant within. */
  readonly windowStartMs: number;
  readonly windowEndMs: number;
  readonly endedBy: EndedBy;
}

export async function runLoad(options: LoadOptions, deps: LoadDeps): Promise<LoadResult> {
  const run = new Run(options, deps);
  return await run.go();
}

class Run {
  readonly #options: LoadOptions;
  readonly #deps: LoadDeps;
  readonly #exchanges: Exchange[] = [];
  readonly #warmUps: Exchange[] = [];
  readonly #stop = new AbortController();
  #endedBy: EndedBy | null = null;
  #issued = 0;
  #completed = 0;
  #inFlight = 0;
  #errors = 0;
  #nextSession = 0;
  #windowStartMs: number | null = null;
  #windowEndMs: number | null = null;

  constructor(options: LoadOptions, deps: LoadDeps) {
    this.#options = options;
    this.#deps = deps;
  }

  async go(): Promise<LoadResult> {
    const { signal, now, sleep } = this.#deps;
    const onStop = (): void => this.#end("stopped", true);
    signal.addEventListener("abort", onStop, { once: true });
    if (signal.aborted) onStop();
    const timer = new AbortController();
    void sleep(this.#options.maxWallMs, timer.signal).then(() => {
      if (!timer.signal.aborted) this.#end("time", true);
    });
    await this.#warmUp();
    await this.#loop();
    timer.abort();
    signal.removeEventListener("abort", onStop);
    this.#closeWindow();
    const end = this.#windowEndMs ?? now();
    return {
      exchanges: this.#exchanges,
      warmUps: this.#warmUps,
      windowStartMs: this.#windowStartMs ?? end,
      windowEndMs: end,
      endedBy: this.#endedBy ?? "requests",
    };
  }

  async #warmUp(): Promise<void> {
    const requests = [...this.#options.workload.warmUp()];
    const { load } = this.#options;
    const lanes = load.kind === "closed" ? load.concurrency : 8;
    const total = requests.length;
    const lane = async (): Promise<void> => {
      for (
        let request = requests.pop();
        request !== undefined && this.#endedBy === null;
        request = requests.pop()
      ) {
        await this.#deps.send(request, this.#stop.signal);
        this.#deps.onProgress?.({
          phase: "warm-up",
          done: total - requests.length,
          total,
          inFlight: lanes,
          errors: 0,
        });
      }
    };
    await Promise.all(Array.from({ length: Math.min(lanes, total) }, lane));
  }

  async #loop(): Promise<void> {
    const { load, workload } = this.#options;
    if (load.kind === "closed") {
      await Promise.all(Array.from({ length: load.concurrency }, () => this.#user()));
    } else if (load.kind === "open") {
      await this.#poisson(load.ratePerSecond);
    } else {
      await this.#arrivals((workload.arrivalsMs ?? []).map((atMs) => atMs * load.stretch));
    }
  }

  /** One of the closed loop's users: conversation after conversation, turn after turn. */
  async #user(): Promise<void> {
    for (let session = this.#session(); session !== null; session = this.#session()) {
      let answer: string | null = null;
      for (let request = session.next(null); request !== null; request = session.next(answer)) {
        const exchange = await this.#request(request);
        if (exchange === null) return;
        answer = exchange.error === null ? exchange.text : null;
      }
    }
  }

  /** Each arrival takes up a conversation that waits for its next turn, or begins one, in the proportion of the workload's turns. */
  async #poisson(ratePerSecond: number): Promise<void> {
    const { random, workload } = this.#options;
    const waiting: { session: Session; request: ChatRequest }[] = [];
    const running = new Set<Promise<void>>();
    const begin = (): { session: Session; request: ChatRequest } | null => {
      const session = this.#session();
      const request = session?.next(null) ?? null;
      return session === null || request === null ? null : { session, request };
    };
    let dueMs = this.#deps.now();
    while (this.#endedBy === null) {
      dueMs += exponential(1000 / ratePerSecond, random);
      await this.#until(dueMs);
      if (this.#endedBy !== null) break;
      const continues = random() < (workload.turns - 1) / workload.turns;
      const turn = (continues ? waiting.shift() : undefined) ?? begin();
      if (turn === null) break;
      this.#launch(running, turn.request, dueMs, (answer) => {
        const request = answer === null ? null : turn.session.next(answer);
        if (request !== null) waiting.push({ session: turn.session, request });
      });
    }
    await Promise.all(running);
  }

  async #arrivals(timesMs: readonly number[]): Promise<void> {
    const running = new Set<Promise<void>>();
    const startMs = this.#deps.now();
    for (const atMs of timesMs) {
      await this.#until(startMs + atMs);
      const request = this.#endedBy === null ? (this.#session()?.next(null) ?? null) : null;
      if (request === null) break;
      this.#launch(running, request, startMs + atMs, () => {});
    }
    await Promise.all(running);
  }

  #launch(
    running: Set<Promise<void>>,
    request: ChatRequest,
    dueMs: number,
    answered: (answer: string | null) => void,
  ): void {
    if (this.#inFlight >= this.#options.maxInFlight) {
      this.#end("in-flight", true);
      return;
    }
    const sent = this.#request(request, dueMs).then((exchange) => {
      if (exchange !== null) answered(exchange.error === null ? exchange.text : null);
      running.delete(sent);
    });
    running.add(sent);
  }

  async #until(dueMs: number): Promise<void> {
    const waitMs = dueMs - this.#deps.now();
    if (waitMs > 0) await this.#deps.sleep(waitMs, this.#stop.signal);
  }

  #session(): Session | null {
    if (this.#endedBy !== null) return null;
    const session = this.#options.workload.session(this.#nextSession++);
    if (session === null) this.#end("workload", false);
    return session;
  }

  /** Null: the run has ended, nothing was sent. `dueMs`: when an open loop wanted it sent; a late client counts as waiting. */
  async #request(request: ChatRequest, dueMs?: number): Promise<Exchange | null> {
    // Conversations that are under way when the workload runs out go on to their end.
    if (this.#endedBy !== null && this.#endedBy !== "workload") return null;
    return await this.#send(request, dueMs);
  }

  async #send(request: ChatRequest, dueMs: number | undefined): Promise<Exchange> {
    const { requests, warmUpRequests } = this.#options;
    const number = this.#issued++;
    const measured = number >= warmUpRequests;
    if (measured && this.#windowStartMs === null) this.#openWindow();
    if (this.#issued >= warmUpRequests + requests) this.#end("requests", false);
    this.#inFlight++;
    const sent = await this.#deps.send(request, this.#stop.signal);
    this.#inFlight--;
    this.#completed++;
    const exchange = dueMs === undefined ? sent : { ...sent, startMs: Math.min(sent.startMs, dueMs) };
    // Requests that the run itself cut off say nothing about the fleet.
    if (measured && !(exchange.error === "aborted" && this.#stop.signal.aborted))
      this.#exchanges.push(exchange);
    if (exchange.error !== null) this.#errors++;
    this.#progress();
    return exchange;
  }

  #openWindow(): void {
    this.#windowStartMs = this.#deps.now();
    this.#deps.onWindow?.("start");
  }

  #closeWindow(): void {
    if (this.#windowStartMs === null || this.#windowEndMs !== null) return;
    this.#windowEndMs = this.#deps.now();
    this.#deps.onWindow?.("end");
  }

  /** The load is no longer kept up from here on, so the window ends; `abort` also cuts what is in flight. */
  #end(reason: EndedBy, abort: boolean): void {
    this.#endedBy ??= reason;
    this.#closeWindow();
    if (abort) {
      this.#endedBy = reason;
      this.#stop.abort();
    }
  }

  #progress(): void {
    const { requests, warmUpRequests } = this.#options;
    const warm = this.#completed <= warmUpRequests;
    this.#deps.onProgress?.({
      phase: warm ? "warm-up" : "measure",
      done: warm ? this.#completed : this.#completed - warmUpRequests,
      total: warm ? warmUpRequests : requests,
      inFlight: this.#inFlight,
      errors: this.#errors,
    });
  }
}
