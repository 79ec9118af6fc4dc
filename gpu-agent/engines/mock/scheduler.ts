/** Continuous batching of one rank: who runs in a step, for how many tokens, and what comes out at its end. */

import type { BlockManager, ChainFacts, KvEvent } from "./block-manager.ts";
import type { Clock } from "./clock.ts";
import { RankMetrics } from "./metrics.ts";
import { type FinishReason, outputTokens, type Sequence, type SequenceRequest } from "./sequence.ts";
import { type StepWork, stepMs, type TimingProfile, type TransferProfile, transferMs } from "./timing.ts";

export interface SchedulerOptions {
  readonly blocks: BlockManager;
  readonly clock: Clock;
  readonly profile: TimingProfile;
  readonly transfer: TransferProfile;
  /** Simulated milliseconds per real one. */
  readonly speed: number;
  readonly maxBatchedTokens: number;
  readonly maxSequences: number;
  readonly policy: "fcfs" | "priority";
  /** The KV events of one step, in order; called before the step's tokens go out. */
  readonly onEvents: (events: readonly KvEvent[]) => void;
}

interface Share {
  readonly sequence: Sequence;
  readonly tokens: number;
}

/** How far steps may run behind the clock before simulated time is given up. */
const MAX_CARRY_MS = 250;

export class Scheduler {
  readonly metrics = new RankMetrics();
  readonly #options: SchedulerOptions;
  readonly #blocks: BlockManager;
  readonly #waiting: Sequence[] = [];
  readonly #running: Sequence[] = [];
  readonly #transferring = new Set<Sequence>();
  #step: { readonly shares: Share[]; readonly startMs: number; readonly dueMs: number } | null = null;
  #cancelStep: (() => void) | null = null;
  #finishing = false;
  #stopped = false;
  #lostMs = 0;

  constructor(options: SchedulerOptions) {
    this.#options = options;
    this.#blocks = options.blocks;
  }

  get running(): number {
    return this.#running.length;
  }

  /** Waiting for room, not counting those that wait for another engine's KV. */
  get waiting(): number {
    return this.#waiting.length;
  }

  get deferred(): number {
    return this.#transferring.size;
  }

  /** Real milliseconds by which the machine was too slow for the simulated engine: above 0, timings are not to be trusted. */
  get lostMs(): number {
    return this.#lostMs;
  }

  /** Queues a request. After `stop` it is taken and never heard of again. */
  submit(request: SequenceRequest, facts: ChainFacts): Sequence {
    const sequence: Sequence = {
      request,
      tokens: [...request.prompt],
      hold: this.#blocks.hold(facts),
      state: "waiting",
      computed: 0,
      cachedTokens: null,
      pulled: false,
      preemptions: 0,
      queuedMs: this.#options.clock.nowMs(),
      admittedMs: null,
      firstTokenMs: null,
      lastTokenMs: null,
      finalBlocks: [],
    };
    if (this.#stopped) return sequence;
    this.#enqueue(sequence);
    if (this.#step === null && !this.#finishing) this.#startStep(this.#options.clock.nowMs());
    return sequence;
  }

  /** The client went away: blocks are free at once, nothing more is sent. Safe at any time. */
  abort(sequence: Sequence): void {
    if (sequence.state === "finished") return;
    this.#leave(sequence);
    this.#blocks.release(sequence.hold);
  }

  /** Ends everything without a word, as a dying process does. */
  stop(): void {
    this.#stopped = true;
    for (const sequence of [...this.#waiting, ...this.#running, ...this.#transferring]) this.abort(sequence);
    this.#cancelStep?.();
    this.#step = null;
  }

  #enqueue(sequence: Sequence): void {
    const { priority } = sequence.request;
    let at = this.#waiting.length;
    if (this.#options.policy === "priority") {
      while (at > 0 && this.#waiting[at - 1]!.request.priority > priority) at--;
    }
    this.#waiting.splice(at, 0, sequence);
  }

  #leave(sequence: Sequence): void {
    remove(this.#waiting, sequence);
    remove(this.#running, sequence);
    this.#transferring.delete(sequence);
    sequence.state = "finished";
  }

  #startStep(startMs: number): void {
    const work: StepWork = { prefillTokens: 0, prefillAttention: 0, decodingSequences: 0, contextTokens: 0 };
    const shares: Share[] = [];
    const budget = this.#continueRunning(shares, this.#options.maxBatchedTokens);
    if (budget !== null) this.#admitWaiting(shares, budget);
    else if (shares.length === 0) this.#admitWaiting(shares, this.#options.maxBatchedTokens);
    for (const { sequence, tokens } of shares) addWork(work, sequence, tokens);
    if (shares.length === 0) {
      this.#step = null;
      this.#flush();
      return;
    }
    const dueMs = startMs + stepMs(this.#options.profile, work) / this.#options.speed;
    this.#step = { shares, startMs, dueMs };
    this.metrics.stepTokens.observe(work.prefillTokens + work.decodingSequences);
    this.#cancelStep = this.#options.clock.at(dueMs, () => this.#finishStep());
  }

  /** Gives running sequences their tokens, preempting from the end when blocks run out. Null: someone was preempted. */
  #continueRunning(shares: Share[], budget: number): number | null {
    let left = budget;
    let preempted = false;
    for (let i = 0; i < this.#running.length && left > 0; i++) {
      const sequence = this.#running[i]!;
      const tokens = Math.min(sequence.tokens.length - sequence.computed, left);
      while (!this.#blocks.allocate(sequence.hold, sequence.computed + tokens)) {
        preempted = true;
        if (this.#preemptLast() === sequence) break;
      }
      if (sequence.state !== "running") break;
      shares.push({ sequence, tokens });
      left -= tokens;
    }
    return preempted ? null : left;
  }

  #preemptLast(): Sequence {
    const victim = this.#running.pop()!;
    this.#blocks.release(victim.hold);
    victim.state = "waiting";
    victim.computed = 0;
    victim.preemptions++;
    this.metrics.preemptions++;
    this.#waiting.unshift(victim);
    return victim;
  }

  #admitWaiting(shares: Share[], budget: number): void {
    let left = budget;
    while (left > 0 && this.#waiting.length > 0 && this.#running.length < this.#options.maxSequences) {
      const sequence = this.#waiting[0]!;
      const { request, hold } = sequence;
      const fresh = sequence.computed === 0;
      const reused = fresh && !request.ignoreCache ? this.#blocks.lookup(hold, sequence.tokens) : 0;
      // The whole prompt must fit, or two half-admitted prompts could block each other for ever.
      if (fresh && this.#blocks.needed(hold, sequence.tokens.length, reused) > this.#blocks.freeBlocks)
        return;
      this.#waiting.shift();
      if (fresh) this.#takeCached(sequence, reused);
      if (request.remotePrefill !== null && !sequence.pulled) {
        this.#startTransfer(sequence);
        continue;
      }
      const tokens = Math.min(sequence.tokens.length - sequence.computed, left);
      this.#blocks.allocate(hold, sequence.computed + tokens);
      sequence.state = "running";
      this.#running.push(sequence);
      shares.push({ sequence, tokens });
      left -= tokens;
    }
  }

  #takeCached(sequence: Sequence, reused: number): void {
    const { metrics } = this;
    this.#blocks.reuse(sequence.hold, reused);
    sequence.computed = reused * this.#blocks.blockSize;
    if (sequence.admittedMs !== null) return;
    sequence.admittedMs = this.#options.clock.nowMs();
    sequence.cachedTokens = sequence.request.remotePrefill?.cachedTokens ?? sequence.computed;
    metrics.prefixQueries += sequence.tokens.length;
    metrics.prefixHits += sequence.computed;
    if (sequence.request.reportFull) this.#blocks.announceAgain(sequence.hold, sequence.tokens, reused);
  }

  /** Pulls the prompt's KV from the prefill side: blocks are taken now, announced when the pull is done. */
  #startTransfer(sequence: Sequence): void {
    const { clock, profile, transfer, speed } = this.#options;
    const { prompt, remotePrefill } = sequence.request;
    const pulled = Math.min(remotePrefill!.tokens, prompt.length);
    this.#blocks.allocate(sequence.hold, prompt.length);
    sequence.state = "transferring";
    sequence.pulled = true;
    this.#transferring.add(sequence);
    this.metrics.externalQueries += prompt.length - sequence.computed;
    const missing = pulled - sequence.computed;
    clock.at(clock.nowMs() + transferMs(profile, transfer, missing) / speed, () => {
      if (sequence.state !== "transferring") return;
      this.#transferring.delete(sequence);
      if (remotePrefill!.fails) this.#end(sequence, "error");
      else this.#transferred(sequence, pulled);
    });
  }

  #transferred(sequence: Sequence, pulled: number): void {
    const external = Math.max(0, pulled - sequence.computed);
    this.metrics.externalHits += external;
    this.metrics.promptExternal += external;
    this.#blocks.register(sequence.hold, sequence.tokens, pulled);
    // The last prompt token is computed here: its logits are what the first output token is drawn from.
    sequence.computed = Math.min(pulled, sequence.request.prompt.length - 1);
    sequence.state = "waiting";
    this.#waiting.unshift(sequence);
    this.#flush();
    if (this.#step === null && !this.#finishing) this.#startStep(this.#options.clock.nowMs());
  }

  #finishStep(): void {
    const { shares, startMs, dueMs } = this.#step!;
    this.#finishing = true;
    for (const { sequence, tokens } of shares) {
      if (sequence.state !== "running") continue;
      sequence.computed += tokens;
      this.#blocks.register(sequence.hold, sequence.tokens, sequence.computed);
    }
    this.#flush();
    const nowMs = this.#options.clock.nowMs();
    for (const { sequence } of shares) {
      if (sequence.state === "running" && sequence.computed === sequence.tokens.length)
        this.#draw(sequence, nowMs);
    }
    this.#finishing = false;
    this.#step = null;
    // An engine without delays has no schedule to keep.
    this.#startStep(dueMs === startMs ? nowMs : this.#carried(dueMs, nowMs));
  }

  /** The next step starts when this one was due, not when the timer fired, so that lateness does not add up. */
  #carried(dueMs: number, nowMs: number): number {
    const late = nowMs - dueMs;
    if (late <= MAX_CARRY_MS) return dueMs;
    this.#lostMs += late - MAX_CARRY_MS;
    return nowMs - MAX_CARRY_MS;
  }

  #draw(sequence: Sequence, nowMs: number): void {
    const { request } = sequence;
    const token = request.source.next(outputTokens(sequence));
    sequence.tokens.push(token);
    this.#countToken(sequence, nowMs);
    let finish: FinishReason | null = null;
    if (token === request.source.endToken) finish = "stop";
    else if (outputTokens(sequence) >= request.maxTokens) finish = "length";
    if (finish !== null) sequence.finalBlocks = [...sequence.hold.blocks];
    if (request.onToken(token, finish) && finish === null) finish = "stop";
    if (finish !== null && sequence.state === "running") this.#finish(sequence, finish);
  }

  #countToken(sequence: Sequence, nowMs: number): void {
    const { metrics } = this;
    metrics.generationTokens++;
    if (sequence.firstTokenMs === null) {
      const { request } = sequence;
      sequence.firstTokenMs = nowMs;
      metrics.promptTokens += request.prompt.length;
      metrics.promptCached += sequence.cachedTokens ?? 0;
      metrics.promptComputed += request.prompt.length - (sequence.cachedTokens ?? 0);
      metrics.firstTokenSeconds.observe((nowMs - request.arrivalMs) / 1000);
    } else metrics.tokenGapSeconds.observe((nowMs - sequence.lastTokenMs!) / 1000);
    sequence.lastTokenMs = nowMs;
  }

  #finish(sequence: Sequence, reason: FinishReason): void {
    this.#leave(sequence);
    this.#blocks.release(sequence.hold);
    const { metrics } = this;
    const { request } = sequence;
    const seconds = (fromMs: number | null, toMs: number | null): number =>
      ((toMs ?? 0) - (fromMs ?? 0)) / 1000;
    const generated = outputTokens(sequence);
    metrics.success[reason]++;
    metrics.promptLength.observe(request.prompt.length);
    metrics.generationLength.observe(generated);
    metrics.maxGeneration.observe(generated);
    metrics.paramMaxTokens.observe(request.maxTokens);
    metrics.totalSeconds.observe(seconds(request.arrivalMs, sequence.lastTokenMs));
    metrics.queueSeconds.observe(seconds(sequence.queuedMs, sequence.admittedMs));
    metrics.prefillSeconds.observe(seconds(sequence.admittedMs, sequence.firstTokenMs));
    metrics.decodeSeconds.observe(seconds(sequence.firstTokenMs, sequence.lastTokenMs));
    metrics.inferenceSeconds.observe(seconds(sequence.admittedMs, sequence.lastTokenMs));
    metrics.requestPreemptions.observe(sequence.preemptions);
    metrics.prefillComputed.observe(request.prompt.length - (sequence.cachedTokens ?? 0));
    if (generated > 1) {
      metrics.perTokenSeconds.observe(seconds(sequence.firstTokenMs, sequence.lastTokenMs) / (generated - 1));
    }
  }

  #end(sequence: Sequence, reason: FinishReason): void {
    this.#leave(sequence);
    this.#blocks.release(sequence.hold);
    this.metrics.success[reason]++;
    sequence.request.onToken(null, reason);
  }

  #flush(): void {
    const events = this.#blocks.takeEvents();
    if (events.length > 0) this.#options.onEvents(events);
  }
}

function addWork(work: StepWork, sequence: Sequence, tokens: number): void {
  const decoding = sequence.computed >= sequence.request.prompt.length && tokens === 1;
  if (decoding) {
    work.decodingSequences++;
    work.contextTokens += sequence.tokens.length;
    return;
  }
  work.prefillTokens += tokens;
  work.prefillAttention += tokens * (sequence.computed + tokens / 2);
}

function remove(list: Sequence[], sequence: Sequence): void {
  const index = list.indexOf(sequence);
  if (index >= 0) list.splice(index, 1);
}
