/** Eight gateways over one view in Redis, and eight workers that an indexer folds into it; requests stay under way until told to end. */

import { expect } from "vitest";
import { defineConfig } from "../../src/config/index.ts";
import { InProcessBus } from "../../src/events/in-process.ts";
import { createGateway } from "../../src/gateway/index.ts";
import { Indexer } from "../../src/indexer/index.ts";
import { parseJson } from "../../src/json/index.ts";
import { monotonicClock } from "../../src/node/clock.ts";
import type { RestServer } from "../../src/node/redis-rest/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import type { BodySink, TransportResponse, WorkerTransport } from "../../src/plan/transport.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { createPromptKeyer } from "../../src/prefix/prompt-keyer.ts";
import { ChatRenderer } from "../../src/prefix/render/index.ts";
import { seededRandom } from "../../src/routing/testing.ts";
import { RedisStore, redisStoreOptions, type SendPipeline } from "../../src/store/redis/index.ts";
import { restPipeline } from "../../src/store/redis/rest.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { CARD, MODEL, registration } from "../e2e/gateway-fleet.ts";

export const GATEWAYS = 8;
export const WORKERS = 8;
/** As the workers count them; known to the view only of what is held. */
const TOKENS_PER_KEY = 32;
/** Long, for this is about decisions and not about time. */
const DEADLINE_MS = 10_000;
const BEAT_MS = 500;
const WITHIN_MS = 10_000;
const ANSWER = new TextEncoder().encode('{"choices":[{"index":0,"finish_reason":"stop"}]}');

export interface HerdOptions {
  readonly rest: RestServer;
  readonly token: string;
  readonly seed: number;
  /** One way from the furthest gateway to the view; the others are nearer. */
  readonly farMs: number;
}

/** One worker as its agent knows it: what it admitted, what it reports. */
class Worker {
  readonly registration;
  readonly admitted: string[] = [];
  private activeBlocks = 0;
  private reports = 0;
  private batches = 0;
  private readonly bus: InProcessBus;

  constructor(bus: InProcessBus, name: string) {
    this.bus = bus;
    this.registration = registration(name);
    bus.onRollCall(() => bus.publishRegistration(this.registration));
    bus.publishRegistration(this.registration);
    this.report([]);
  }

  /** Its load from now on, which covers all that it has admitted so far. */
  load(activeBlocks: number): void {
    this.activeBlocks = activeBlocks;
    this.report(this.admitted.splice(0));
  }

  /** Sign of life; what it was sent meanwhile it has yet to look at. */
  beat(): void {
    this.report([]);
  }

  private report(admitted: readonly string[]): void {
    this.bus.publishLoad({
      ...this.registration,
      sequence: ++this.reports,
      activeBlocks: this.activeBlocks,
      prefillTokens: 0,
      running: 0,
      waiting: 0,
      admitted,
      publishedSequence: this.batches,
    });
  }

  hold(keys: BigUint64Array): void {
    const tokens = Uint32Array.from(keys, (_, i) => (i + 1) * TOKENS_PER_KEY);
    const op = { op: "store", tier: "device", root: keys[0]!, parent: null, keys, tokens } as const;
    this.bus.publishKv({ ...this.registration, sequence: ++this.batches, ops: [op] });
  }
}

/** Takes every plan, and answers when told to. */
class HeldWork implements WorkerTransport {
  readonly plans: Plan[] = [];
  private readonly open: (() => void)[] = [];
  private readonly taken: (plan: Plan) => void;

  constructor(taken: (plan: Plan) => void) {
    this.taken = taken;
  }

  async send(plan: Plan): Promise<TransportResponse> {
    this.plans.push(plan);
    this.taken(plan);
    await new Promise<void>((resolve) => this.open.push(resolve));
    const start = (sink: BodySink) => {
      sink.data(ANSWER);
      sink.end();
    };
    const body = { start, resume: () => {}, cancel: () => {} };
    return { status: 200, headers: { "content-type": "application/json" }, body };
  }

  answerAll(): void {
    for (const go of this.open.splice(0)) go();
  }
}

export interface Explained {
  readonly rung: string;
  readonly overlap_tokens: number;
  readonly chosen: { readonly worker: string };
}

export async function startHerd({ rest, token, seed, farMs }: HerdOptions) {
  const config = defineConfig({
    explain: true,
    feed: { lagMsThreshold: DEADLINE_MS },
    store: { url: rest.url, token, view: `herd-${seed}`, deadlineMs: DEADLINE_MS },
  });
  const hasher = await createHasher();
  const open = (random: () => number, send: SendPipeline) =>
    new RedisStore({ ...redisStoreOptions(config), clock: monotonicClock, random, send });

  const errors: string[] = [];
  const bus = new InProcessBus({ onHandlerError: (thrown) => errors.push(String(thrown)) });
  const store = open(seededRandom(seed), restPipeline(rest.url, token));
  const indexer = new Indexer({
    bus,
    store,
    now: monotonicClock.now,
    name: "herd",
    remote: { timers: monotonicClock, joinMs: 1, foldMs: 5 },
    onError: ({ message }, doing) => errors.push(`${doing}: ${message}`),
  });
  indexer.start();
  const workers = Array.from({ length: WORKERS }, (_, i) => new Worker(bus, `w${i}`));
  const beats = setInterval(() => {
    for (const one of workers) one.beat();
  }, BEAT_MS);
  const worker = (name: string) => workers.find(({ registration }) => registration.worker === name)!;
  const work = new HeldWork((plan) => worker(plan.worker).admitted.push(plan.requestId));

  let reserving = 0;
  const gateways = Array.from({ length: GATEWAYS }, (_, i) => {
    const random = seededRandom(1_000 * seed + i);
    const view = open(random, atDistance(restPipeline(rest.url, token), (farMs * i) / (GATEWAYS - 1)));
    const reserve = view.reserve.bind(view);
    view.reserve = (write) => {
      reserving += 1;
      return reserve(write).finally(() => {
        reserving -= 1;
      });
    };
    return createGateway({
      config,
      store: view,
      transport: work,
      hasher,
      clock: monotonicClock,
      random,
      log: { warn: (message, fields) => errors.push(`${message} ${JSON.stringify(fields ?? {})}`) },
      registry: new Registry(),
      directoryMaxAgeMs: 10_000,
    });
  });
  const post = (gateway: number, path: string, content: string) =>
    gateways[gateway]!.request(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model: MODEL, messages: [{ role: "user", content }] }),
    });
  const eventually = (condition: () => Promise<boolean>) =>
    expect.poll(condition, { timeout: WITHIN_MS, interval: 2 }).toBe(true);

  return {
    errors,
    plans: work.plans,
    worker,
    keysOf: (content: string): BigUint64Array => {
      const messages = [{ role: "user", content }];
      const body = parseJson(JSON.stringify({ model: MODEL, messages }));
      const prompt = new ChatRenderer(CARD, { now: () => 0 }).renderChat(body);
      const identity = { model: MODEL, adapter: null, salt: null };
      return createPromptKeyer({ hasher, card: CARD }).keysOf(prompt, identity)!.keys;
    },
    /** Sends a prompt to a gateway; resolves when it has been answered, with its status and rung. */
    chat: async (gateway: number, content: string) => {
      const { status, headers } = await post(gateway, "/v1/chat/completions", content);
      return `${status} ${headers.get("x-kedge-rung")}`;
    },
    /** How a gateway would route it. */
    route: async (gateway: number, content: string) =>
      (await (await post(gateway, "/v1/route", content)).json()) as Explained,
    /** Resolves when so many requests in all have come to workers. */
    placed: (count: number) => eventually(async () => work.plans.length >= count),
    /** All that is under way ends, and the view knows it: reservations are covered, each worker's load is as said (default: idle). */
    settle: async (activeBlocks: Readonly<Record<string, number>> = {}) => {
      work.answerAll();
      await eventually(async () => {
        if (reserving > 0) return false;
        const rows = await store.fleet(0);
        const unsettled = rows.filter(
          ({ worker: name, reserved, load }) =>
            reserved.requests > 0 || load.activeBlocks !== (activeBlocks[name] ?? 0),
        );
        for (const { worker: name } of unsettled) worker(name).load(activeBlocks[name] ?? 0);
        return rows.length === WORKERS && unsettled.length === 0;
      });
    },
    /** Resolves when the view knows that a worker holds the keys. */
    known: (holder: string, keys: BigUint64Array) =>
      eventually(async () => {
        const { fleet, lookup } = await store.read(MODEL, keys);
        const slot = fleet.find((row) => row.worker === holder)!.slots.device;
        const at = lookup.slots.indexOf(slot);
        return at >= 0 && lookup.confirmedDepth[at] === keys.length;
      }),
    close: async () => {
      clearInterval(beats);
      await indexer.stop();
    },
  };
}

/** As over a line that takes so long each way. */
function atDistance(send: SendPipeline, oneWayMs: number): SendPipeline {
  if (oneWayMs === 0) return send;
  const travel = () => new Promise((resolve) => setTimeout(resolve, oneWayMs));
  return async (commands, signal) => {
    await travel();
    const outcomes = await send(commands, signal);
    await travel();
    return outcomes;
  };
}
