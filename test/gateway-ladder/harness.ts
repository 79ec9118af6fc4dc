/** A gateway over a view that fails, hangs and comes back when told to, on a clock that only the test moves. */

import { defineConfig, type KedgeConfigInput } from "../../src/config/index.ts";
import { KedgeError } from "../../src/errors/index.ts";
import type { FleetRow, Registration } from "../../src/fleet/types.ts";
import { createGateway, type GatewayDeps } from "../../src/gateway/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { TransportResponse } from "../../src/plan/transport.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { seededRandom } from "../../src/routing/testing.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import type { MaybePromise, ViewStore } from "../../src/store/types.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { ManualClock, MODEL } from "../e2e/gateway-fleet.ts";

/** How the view answers: later in this turn, as a failure, with an exception, never, or after so many milliseconds. */
export type Mood = "ok" | "fail" | "throw" | "hang" | { readonly slowMs: number };

export class MoodyStore implements ViewStore {
  mood: Mood = "ok";
  /** Calls by name since the start. */
  readonly calls = { read: 0, fleet: 0, reserve: 0, release: 0, thresholds: 0 };
  readonly inner: MemoryStore;
  private readonly clock: ManualClock;

  constructor(clock: ManualClock) {
    this.clock = clock;
    this.inner = new MemoryStore({ now: () => clock.now(), random: seededRandom(7), fleetMaxAgeMs: 0 });
  }

  get epoch(): string {
    return this.inner.epoch;
  }

  read(model: string, keys: BigUint64Array) {
    this.calls.read++;
    return this.answer(() => {
      const { lookup, ...rest } = this.inner.read(model, keys);
      // The memory store has one result for all lookups; answers that wait need their own.
      return { ...rest, lookup: structuredClone({ ...lookup }) };
    });
  }

  fleet(): MaybePromise<readonly FleetRow[]> {
    this.calls.fleet++;
    return this.answer(() => this.inner.fleet());
  }

  reserve(write: Parameters<ViewStore["reserve"]>[0]) {
    this.calls.reserve++;
    return this.answer(() => this.inner.reserve(write));
  }

  release(...args: Parameters<ViewStore["release"]>) {
    this.calls.release++;
    return this.answer(() => this.inner.release(...args));
  }

  getThresholds(model: string) {
    this.calls.thresholds++;
    return this.answer(() => this.inner.getThresholds(model));
  }

  setThresholds(...args: Parameters<ViewStore["setThresholds"]>) {
    return this.answer(() => this.inner.setThresholds(...args));
  }

  register(one: Registration) {
    return this.inner.register(one);
  }

  retire(...args: Parameters<ViewStore["retire"]>) {
    return this.inner.retire(...args);
  }

  apply(...args: Parameters<ViewStore["apply"]>) {
    return this.inner.apply(...args);
  }

  applySnapshot(...args: Parameters<ViewStore["applySnapshot"]>) {
    return this.inner.applySnapshot(...args);
  }

  report(...args: Parameters<ViewStore["report"]>) {
    return this.inner.report(...args);
  }

  reset() {
    return this.inner.reset();
  }

  private async settle<T>(work: () => T): Promise<T> {
    if (this.mood === "fail") throw new KedgeError("view_unavailable", "The view is out of reach.");
    return work();
  }

  private answer<T>(work: () => T): Promise<T> {
    const { mood } = this;
    if (mood === "throw") throw new TypeError("a defect of the store");
    if (mood === "hang") return new Promise(() => {});
    if (typeof mood !== "object") return this.settle(work);
    return new Promise((resolve) => this.clock.setTimeout(() => resolve(work()), mood.slowMs));
  }
}

export interface LadderOptions {
  readonly registrations?: readonly Registration[];
  readonly config?: KedgeConfigInput;
  readonly deps?: Partial<GatewayDeps>;
  /** Workers that nobody reaches. */
  readonly dead?: ReadonlySet<string>;
}

export interface Answered {
  readonly status: number;
  readonly headers: Headers;
  // biome-ignore lint/suspicious/noExplicitAny: answers of several routes, read by name.
  readonly json: any;
  /** What the answer cost on the test's clock. */
  readonly costMs: number;
}

const ANSWER = new TextEncoder().encode('{"choices":[{"index":0,"finish_reason":"stop"}]}');

export async function ladder(options: LadderOptions = {}) {
  const clock = new ManualClock();
  const store = new MoodyStore(clock);
  for (const one of options.registrations ?? []) {
    store.register(one);
    idle(store, one);
  }
  const plans: Plan[] = [];
  /** Requests wait here for their answer while it is set. */
  const held: (() => void)[] = [];
  const state = { hold: false };
  const warnings: string[] = [];
  const registry = new Registry();
  const app = createGateway({
    config: defineConfig({ host: "127.0.0.1", explain: true, ...options.config }),
    store,
    transport: {
      send: async (plan): Promise<TransportResponse> => {
        plans.push(plan);
        if (options.dead?.has(plan.worker)) throw new KedgeError("upstream_unreachable", "Nobody there.");
        if (state.hold) await new Promise<void>((resolve) => held.push(resolve));
        return {
          status: 200,
          headers: { "content-type": "application/json" },
          body: {
            start: (sink) => {
              sink.data(ANSWER);
              sink.end();
            },
            resume: () => {},
            cancel: () => {},
          },
        };
      },
    },
    hasher: await createHasher(),
    clock,
    random: seededRandom(11),
    log: { warn: (message, fields) => warnings.push(`${message} ${JSON.stringify(fields ?? {})}`) },
    registry,
    directoryMaxAgeMs: 10_000,
    ...options.deps,
  });

  /** Lets time pass while the answer is awaited, in steps of a millisecond. */
  const paid = async (answer: Promise<Response> | Response): Promise<Answered> => {
    const startMs = clock.now();
    let response: Response | null = null;
    let failure: unknown = null;
    Promise.resolve(answer).then(
      (one) => {
        response = one;
      },
      (error) => {
        failure = error;
      },
    );
    for (let step = 0; step < 5_000; step++) {
      for (let turn = 0; turn < 4; turn++) await new Promise(setImmediate);
      if (failure !== null) throw failure;
      if (response !== null) break;
      clock.advance(1);
    }
    const costMs = clock.now() - startMs;
    const { status, headers } = response as unknown as Response;
    const text = await (response as unknown as Response).text();
    return { status, headers, costMs, json: text.startsWith("{") ? JSON.parse(text) : text };
  };
  const call = (path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Answered> =>
    paid(
      app.request(path, {
        ...(body !== undefined && {
          method: "POST",
          body: JSON.stringify(body),
        }),
        headers: { ...(body !== undefined && { "content-type": "application/json" }), ...headers },
      }),
    );
  const chat = (content: string, extra: object = {}, headers: Record<string, string> = {}) =>
    call("/v1/chat/completions", { model: MODEL, messages: [{ role: "user", content }], ...extra }, headers);
  const route = (content: string, extra: object = {}, headers: Record<string, string> = {}) =>
    call("/v1/route", { model: MODEL, messages: [{ role: "user", content }], ...extra }, headers);
  return {
    app,
    clock,
    store,
    plans,
    warnings,
    call,
    chat,
    route,
    paid,
    /** From now on requests stay under way at their worker; the returned function lets them all end. */
    hold: () => {
      state.hold = true;
      return () => {
        state.hold = false;
        for (const go of held.splice(0)) go();
      };
    },
    /** The value of a metric line; 0 if absent. */
    metric: (line: string): number => {
      const found = registry
        .encode()
        .split("\n")
        .find((one) => one.startsWith(`${line} `));
      return found === undefined ? 0 : Number(found.slice(line.length + 1));
    },
  };
}

export type Ladder = Awaited<ReturnType<typeof ladder>>;

let sequence = 0;

/** Reports a rank's load. */
export function idle(store: ViewStore, { worker, rank, incarnation }: Registration, activeBlocks = 0): void {
  sequence++;
  void store.report([
    {
      worker,
      rank,
      incarnation,
      sequence,
      activeBlocks,
      prefillTokens: 0,
      running: 0,
      waiting: 0,
      admitted: [],
      publishedSequence: 0,
    },
  ]);
}
