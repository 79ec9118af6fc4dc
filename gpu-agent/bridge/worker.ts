/** One engine under the agent's care: found, watched, mirrored rank by rank, retired when lost, begun anew when back. */

import { KedgeError } from "../../src/errors/index.ts";
import type { EventBus } from "../../src/events/bus.ts";
import type { IncarnationKey } from "../../src/fleet/types.ts";
import type { KvSnapshot } from "../../src/store/types.ts";
import type { AgentModel } from "../engines/model.ts";
import { type Discovery, discover, figuresOf, isHealthy, modelsOf } from "../engines/vllm/discover.ts";
import type { EngineFigures } from "../engines/vllm/metrics.ts";
import type { LoadLedger, Timers } from "../load/ledger.ts";
import { decodeBatch } from "./decode.ts";
import {
  blocksPerRank,
  type EngineFacts,
  type EngineSpec,
  engineName,
  factsOf,
  registrationOf,
} from "./facts.ts";
import { RankPublisher } from "./publisher.ts";
import { socketsOf } from "./sockets.ts";
import { type PlanStanding, statusOf, type WorkerState, type WorkerStatus } from "./status.ts";
import { RankStream } from "./stream.ts";

export type Log = (
  level: "info" | "warn" | "error",
  message: string,
  fields?: Readonly<Record<string, unknown>>,
) => void;

export interface WorkerOptions {
  readonly bus: EventBus;
  readonly models: readonly AgentModel[];
  readonly ledger: LoadLedger;
  readonly timers: Timers;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  readonly newIncarnation: () => string;
  readonly log: Log;
  /** False: no engine's events are used. */
  readonly kvEvents: boolean;
  /** Health and metrics are asked for so often; default 1 s. */
  readonly pollMs?: number;
  /** Failed polls in a row after which the engine is lost, failed scrapes after which its load is unknown; default 3. */
  readonly lostAfter?: number;
  readonly reassertMs?: number;
  readonly onState?: (state: WorkerState) => void;
}

interface Rank {
  readonly publisher: RankPublisher;
  readonly stream: RankStream | null;
  /** Incarnation at the last poll: one that changed since has seen the engine's restart itself. */
  polledIncarnation: string;
  /** No publisher has come to the event socket in time, so its events are not counted on. */
  unheard: boolean;
}

const ADAPTERS_EVERY_POLLS = 10;
/** Engines connect, or can be connected to, within a fraction of a second. */
const PUBLISHER_WITHIN_MS = 3_000;

export class EngineWorker {
  readonly spec: EngineSpec;
  readonly #options: WorkerOptions;
  #state: WorkerState = "waiting";
  #fault: KedgeError | null = null;
  #discovery: Discovery | null = null;
  #blockSize: number | null = null;
  #ranks: Rank[] = [];
  /** When its event sockets were opened. */
  #sinceMs = 0;
  #failures = 0;
  #failedScrapes = 0;
  #polls = 0;
  #timer: unknown = null;
  #wake: (() => void) | null = null;
  #serving: (() => void)[] = [];

  constructor(spec: EngineSpec, options: WorkerOptions) {
    this.spec = spec;
    this.#options = options;
  }

  get state(): WorkerState {
    return this.#state;
  }

  /** Finds the engine and watches it until `stop`. Resolves when it serves for the first time, or is stopped. Errors: `engine_mismatch`, `config_invalid`. */
  async start(): Promise<void> {
    const first = new Promise<void>((resolve) => this.#serving.push(resolve));
    let failed: (reason: unknown) => void = () => undefined;
    const fatal = new Promise<never>((_, reject) => {
      failed = reject;
    });
    void this.#watch().catch((thrown) => {
      this.#giveUp(thrown);
      failed(thrown);
    });
    await Promise.race([first, fatal]);
  }

  stop(): void {
    if (this.#state === "stopped") return;
    this.#state = "stopped";
    this.#options.timers.clearTimeout(this.#timer);
    this.#wake?.();
    for (const resolve of this.#serving.splice(0)) resolve();
    this.#retire();
  }

  /** Registers every rank once more. */
  announce(): void {
    for (const { publisher } of this.#ranks) publisher.announce();
  }

  /** The caller has dropped the engine's cache, which the engine itself tells only with its next batch (engines.md §1.7). */
  cleared(): void {
    for (const { publisher } of this.#ranks) publisher.reset("cleared");
  }

  snapshot(key: IncarnationKey): KvSnapshot | null {
    for (const { publisher } of this.#ranks) {
      const snapshot = publisher.snapshot(key);
      if (snapshot !== null) return snapshot;
    }
    return null;
  }

  standing({ rank, incarnation }: IncarnationKey): PlanStanding {
    const entry = this.#ranks[rank];
    if (entry === undefined) return "absent";
    return entry.publisher.stands(incarnation) ? "current" : "void";
  }

  status(): WorkerStatus {
    return {
      worker: this.spec.id,
      state: this.#state,
      fault: this.#fault?.message ?? null,
      engine: this.#discovery === null ? null : engineName(this.#discovery),
      blockSize: this.#blockSize,
      ranks: this.#ranks.map(statusOf),
    };
  }

  /** Waits, serves, and waits again when the engine is lost. */
  async #watch(): Promise<void> {
    let announced = 0;
    while (this.#state !== "stopped") {
      if (this.#state === "serving") await this.#poll();
      else if (await isHealthy(this.spec)) await this.#tryBegin();
      else if (this.#options.now() >= announced) {
        announced = this.#options.now() + 10_000;
        this.#options.log("info", `waiting for the engine at ${this.spec.url}`, { worker: this.spec.id });
      }
      await this.#pause();
    }
  }

  #pause(): Promise<void> {
    if (this.#state === "stopped") return Promise.resolve();
    return new Promise((resolve) => {
      this.#wake = resolve;
      this.#timer = this.#options.timers.setTimeout(resolve, this.#options.pollMs ?? 1_000);
    });
  }

  /** An engine that is not quite up yet is asked again; one that does not fit is an error. */
  async #tryBegin(): Promise<void> {
    try {
      await this.#begin(await discover(this.spec));
    } catch (thrown) {
      if (!(thrown instanceof KedgeError) || !thrown.kind.retryable) throw thrown;
      this.#options.log("warn", thrown.message, { worker: this.spec.id });
    }
  }

  async #begin(discovery: Discovery): Promise<void> {
    if (this.#isStopped()) return;
    const facts = factsOf(this.spec, this.#options.models, discovery);
    this.#discovery = discovery;
    this.#blockSize = facts.blockSize;
    this.#fault = null;
    this.#ranks = [];
    this.#sinceMs = this.#options.now();
    for (let rank = 0; rank < facts.dpSize; rank++) await this.#beginRank(rank, facts);
    if (this.#isStopped()) {
      this.#retire();
      return;
    }
    this.#scrape(discovery.figures);
    this.#failures = 0;
    this.#state = "serving";
    this.#options.log("info", `serving ${discovery.servedNames.join(", ")}`, {
      worker: this.spec.id,
      engine: engineName(discovery),
      blockSize: facts.blockSize,
      ranks: facts.dpSize,
    });
    this.#options.onState?.("serving");
    for (const resolve of this.#serving.splice(0)) resolve();
  }

  async #beginRank(rank: number, facts: EngineFacts): Promise<void> {
    const { spec } = this;
    const { model, blockSize, dpSize } = facts;
    const sockets = this.#options.kvEvents ? socketsOf(spec, rank, facts.discovery) : null;
    const publisher = new RankPublisher({
      bus: this.#options.bus,
      registration: registrationOf(spec, rank, facts, sockets !== null),
      mirror: { keyer: model.keyer, model: model.card.model, blockSize, capacityBlocks: facts.blocksPerRank },
      now: this.#options.now,
      newIncarnation: this.#options.newIncarnation,
      ...(this.#options.reassertMs !== undefined && { reassertMs: this.#options.reassertMs }),
      onNewLife: () => this.#options.ledger.renewed(spec.id, rank),
      onMismatch: (error) => {
        this.#fault = error;
        this.#options.log("error", error.message, { worker: spec.id, rank });
      },
    });
    this.#options.ledger.addRank({
      worker: spec.id,
      rank,
      blockSize,
      scraped: true,
      describe: () => ({ key: publisher.key, sequence: publisher.sequence }),
    });
    const stream =
      sockets === null
        ? null
        : new RankStream({
            ...sockets,
            now: this.#options.now,
            onStep: (step) => {
              if (step.kind === "reset") publisher.reset(step.reason);
              else this.#apply(publisher, step.payload, rank, dpSize);
            },
            onProblem: (problem) => this.#options.log("warn", problem, { worker: spec.id, rank }),
          });
    this.#ranks.push({ publisher, stream, polledIncarnation: publisher.key.incarnation, unheard: false });
    await stream?.open();
  }

  /** Nobody publishes where events were to come from: to count on them would be to know nothing and call it exact. */
  #checkFeeds(): void {
    for (const [rank, entry] of this.#ranks.entries()) {
      const { stream, publisher } = entry;
      if (stream === null) continue;
      const unheard = !stream.hasConnected && this.#options.now() - this.#sinceMs >= PUBLISHER_WITHIN_MS;
      if (unheard === entry.unheard) continue;
      entry.unheard = unheard;
      publisher.update({ kvEvents: !unheard });
      const told = unheard
        ? `nobody publishes KV events at ${stream.endpoint}, so the engine's cache is predicted; check its --kv-events-config and events=`
        : `KV events come from ${stream.endpoint} now`;
      this.#options.log(unheard ? "warn" : "info", told, { worker: this.spec.id, rank });
    }
  }

  #apply(publisher: RankPublisher, payload: Uint8Array, rank: number, dpSize: number): void {
    try {
      const batch = decodeBatch(payload);
      if (dpSize > 1 && batch.rank !== null && batch.rank !== rank) {
        throw new KedgeError(
          "engine_mismatch",
          `Rank ${rank}'s event socket carries events of rank ${batch.rank}; check the ports.`,
        );
      }
      publisher.apply(batch);
    } catch (thrown) {
      // Whatever was in it is lost: nothing that was said before is certain any more.
      publisher.reset("unreadable");
      const why = thrown instanceof KedgeError ? thrown.message : String(thrown);
      this.#options.log("error", why, { worker: this.spec.id, rank });
    }
  }

  async #poll(): Promise<void> {
    const [healthy, figures] = await Promise.all([
      isHealthy(this.spec),
      figuresOf(this.spec).catch(() => null),
    ]);
    if (this.#isStopped()) return;
    if (!healthy) {
      this.#failures++;
      if (this.#failures >= this.#patience) this.#lose("is lost");
      return;
    }
    this.#failures = 0;
    this.#checkFeeds();
    if (figures !== null) this.#scrape(figures);
    else this.#noteFailedScrape();
    for (const rank of this.#ranks) {
      rank.publisher.tick();
      rank.polledIncarnation = rank.publisher.key.incarnation;
    }
    this.#polls++;
    if (this.#polls % ADAPTERS_EVERY_POLLS === 0) await this.#refreshNames();
  }

  get #patience(): number {
    return this.#options.lostAfter ?? 3;
  }

  /** A healthy engine without metrics: what they said last is soon no longer true. */
  #noteFailedScrape(): void {
    this.#failedScrapes++;
    if (this.#failedScrapes !== this.#patience) return;
    this.#options.log("warn", "the engine's metrics fail: its load is unknown", { worker: this.spec.id });
    for (const rank of this.#ranks.keys()) this.#options.ledger.scraped(this.spec.id, rank, null);
  }

  #scrape(figures: EngineFigures): void {
    this.#failedScrapes = 0;
    const before = this.#discovery?.figures;
    if (this.#discovery !== null) this.#discovery = { ...this.#discovery, figures };
    if (before !== undefined && isOtherProcess(before, figures)) {
      if (before.blockSize !== figures.blockSize || before.totalBlocks !== figures.totalBlocks) {
        this.#lose("was restarted with another cache");
        return;
      }
      this.#noteRestart();
    }
    const capacity = blocksPerRank(figures, this.#ranks.length);
    for (const [number, { cacheUsage, running, waiting }] of figures.ranks) {
      const activeBlocks =
        cacheUsage === null || capacity === null ? null : Math.round(cacheUsage * capacity);
      this.#options.ledger.scraped(this.spec.id, number, { activeBlocks, running, waiting });
    }
  }

  /** An idle engine that was restarted sends nothing that would say so. */
  #noteRestart(): void {
    for (const { publisher, stream, polledIncarnation } of this.#ranks) {
      if (publisher.key.incarnation !== polledIncarnation) continue;
      publisher.reset("restart");
      stream?.restarted();
    }
  }

  async #refreshNames(): Promise<void> {
    const names = await modelsOf(this.spec).catch(() => null);
    if (names === null || this.#isStopped()) return;
    const { servedNames, adapters } = names;
    for (const { publisher } of this.#ranks)
      publisher.update({ servedNames: [...servedNames, ...adapters], adapters });
  }

  /** What was known of the engine is void; when it answers it is found anew. */
  #lose(why: string): void {
    this.#options.log("error", `the engine at ${this.spec.url} ${why}`, { worker: this.spec.id });
    this.#retire();
    this.#state = "lost";
    this.#options.onState?.("lost");
  }

  #retire(): void {
    for (const [rank, { publisher, stream }] of this.#ranks.entries()) {
      stream?.close();
      publisher.stop();
      this.#options.ledger.removeRank(this.spec.id, rank);
    }
    this.#ranks = [];
  }

  #giveUp(thrown: unknown): void {
    this.#serving = [];
    this.stop();
    this.#fault =
      thrown instanceof KedgeError
        ? thrown
        : new KedgeError("internal_error", "The worker failed.", { cause: thrown });
    this.#options.log("error", this.#fault.message, { worker: this.spec.id });
  }

  /** Through a call, since the state changes while its reader awaits. */
  #isStopped(): boolean {
    return this.#state === "stopped";
  }
}

function isOtherProcess(before: EngineFigures, now: EngineFigures): boolean {
  const starts = [before.processStartSeconds, now.processStartSeconds];
  return !starts.includes(null) && starts[0] !== starts[1];
}
