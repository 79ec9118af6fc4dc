/** Order of one rank's event batches, without sockets: gaps, replays, restarts. What comes out has no silent hole (design D5). */

/** Why all that was said before is void: a new incarnation. */
export type ResetReason = "restart" | "gap";

export type Step =
  /** Apply this payload next. */
  | { readonly kind: "batch"; readonly sequence: number; readonly payload: Uint8Array }
  | { readonly kind: "reset"; readonly reason: ResetReason }
  /** Ask the engine for everything from this sequence number on. Replaces a replay that is still running. */
  | { readonly kind: "replay"; readonly from: number };

export interface SequencerOptions {
  /** The engine has a replay socket. */
  readonly replayable: boolean;
  /** Between the end of one replay and the next; live events wait meanwhile. Default 1 s. */
  readonly replaySpacingMs?: number;
  /** After a failed replay none is asked for: a gap is then a reset at once. Default 30 s. */
  readonly replayCooldownMs?: number;
  /** A replay without progress for so long has failed. Default 10 s. */
  readonly replayTimeoutMs?: number;
  /** Live batches kept during a replay; past it the replay has failed. Default 20,000. */
  readonly maxBuffered?: number;
}

interface Message {
  readonly sequence: number;
  readonly payload: Uint8Array;
}

/**
 * `from`: first number asked for; `askAtMs`: not asked yet, for replays are spaced out; `verify`: the first answer must be the last
 * batch of before, or the engine is another one; `knownTo`: highest number known to be published when it was asked: what is lost after
 * that, the answer cannot contain.
 */
interface Replay {
  readonly from: number;
  knownTo: number;
  verify: boolean;
  askAtMs: number | null;
  progressMs: number;
}

/**
 * Rules: numbers follow one another; a number that is not above the last one is a restart (but the very same batch again is
 * a duplicate); a jump is a gap, replayed if it can be, else a reset. The first batch ever seen sets the watermark, and
 * with a replay socket everything from 0 is asked for first. Times are monotonic milliseconds.
 */
export class Sequencer {
  readonly #options: SequencerOptions;
  #last: Message | null = null;
  #replay: Replay | null = null;
  #buffer: Message[] = [];
  #noReplayBeforeMs = 0;
  #lastReplayFailed = false;
  /** The connection was lost since the last batch: a jump may then join two lives of the engine. */
  #reconnected = false;
  /** A replay to be asked for as soon as one can be had: nothing else may ever tell of what is missing. */
  #owed = false;
  #steps: Step[] = [];

  constructor(options: SequencerOptions) {
    this.#options = options;
  }

  /** Highest sequence number given out; null: none yet in this life. */
  get watermark(): number | null {
    return this.#last?.sequence ?? null;
  }

  get replaying(): boolean {
    return this.#replay !== null;
  }

  /**
   * The subscription stands, perhaps again. What was published before it is asked for, and after a lost connection the last batch
   * once more: only the same engine process has it.
   */
  connected(nowMs: number): readonly Step[] {
    this.#abandonReplay(nowMs);
    if (!this.#catchUp(nowMs)) {
      this.#reconnected = this.#last !== null;
      this.#owed = true;
    }
    return this.#take();
  }

  /** The engine is known to have begun a new life; the caller has voided what it said before. */
  restarted(): void {
    this.#last = null;
    this.#replay = null;
    this.#buffer = [];
    this.#reconnected = false;
    this.#owed = false;
  }

  live(sequence: number, payload: Uint8Array, nowMs: number): readonly Step[] {
    this.#live({ sequence, payload }, nowMs);
    return this.#take();
  }

  replayed(sequence: number, payload: Uint8Array, nowMs: number): readonly Step[] {
    const replay = this.#replay;
    if (replay === null || replay.askAtMs !== null) return [];
    replay.progressMs = nowMs;
    if (!replay.verify) this.#inOrder({ sequence, payload });
    else if (this.#last?.sequence === sequence && sameBytes(payload, this.#last.payload))
      replay.verify = false;
    else this.#startOver(nowMs);
    return this.#take();
  }

  replayEnded(nowMs: number): readonly Step[] {
    const replay = this.#replay;
    if (replay !== null && replay.askAtMs === null) {
      if (replay.verify) this.#startOver(nowMs);
      else this.#finishReplay(nowMs, false);
    }
    return this.#take();
  }

  replayFailed(nowMs: number): readonly Step[] {
    if (this.#replay?.askAtMs === null) this.#finishReplay(nowMs, true);
    return this.#take();
  }

  /** To be called now and then, at least every second: asks for replays that had to wait, gives up those that hang. */
  tick(nowMs: number): readonly Step[] {
    const replay = this.#replay;
    if (replay?.askAtMs !== null && replay !== null && nowMs >= replay.askAtMs) this.#askNow(replay, nowMs);
    else if (
      replay?.askAtMs === null &&
      nowMs - replay.progressMs > (this.#options.replayTimeoutMs ?? 10_000)
    ) {
      this.#finishReplay(nowMs, true);
    } else if (this.#owed && replay === null && nowMs >= this.#noReplayBeforeMs) {
      this.#lastReplayFailed = false;
      this.#catchUp(nowMs);
    }
    return this.#take();
  }

  /** Its answers and what came live meanwhile may be of two processes; what is good of both is asked for again. */
  #abandonReplay(nowMs: number): void {
    const replay = this.#replay;
    if (replay === null) return;
    this.#replay = null;
    this.#buffer = [];
    if (replay.askAtMs === null) this.#noReplayBeforeMs = nowMs + (this.#options.replaySpacingMs ?? 1_000);
  }

  /** Asks for what may have been missed. False if no replay can be had. */
  #catchUp(nowMs: number): boolean {
    const last = this.#last?.sequence;
    if (!this.#ask(last ?? 0, last ?? -1, nowMs, last !== undefined)) return false;
    this.#owed = false;
    return true;
  }

  #take(): readonly Step[] {
    const steps = this.#steps;
    this.#steps = [];
    return steps;
  }

  #live(message: Message, nowMs: number): void {
    if (this.#replay !== null) {
      this.#whileReplaying(message, nowMs);
      return;
    }
    const last = this.#last;
    if (last === null) {
      if (message.sequence > 0 && this.#ask(0, message.sequence, nowMs)) this.#buffer.push(message);
      else this.#accept(message);
    } else if (message.sequence === last.sequence + 1) {
      this.#accept(message);
    } else if (message.sequence <= last.sequence) {
      if (message.sequence === last.sequence && sameBytes(message.payload, last.payload)) return;
      this.#reset("restart");
      this.#live(message, nowMs);
    } else if (this.#reconnected) {
      this.#reset("gap");
      this.#live(message, nowMs);
    } else if (this.#ask(last.sequence + 1, message.sequence, nowMs)) {
      this.#buffer.push(message);
    } else {
      this.#inOrder(message);
    }
  }

  #whileReplaying(message: Message, nowMs: number): void {
    const before = this.#buffer.at(-1);
    if (before !== undefined && message.sequence <= before.sequence) {
      if (message.sequence === before.sequence && sameBytes(message.payload, before.payload)) return;
      this.#replay = null;
      this.#buffer = [];
      this.#reset("restart");
      this.#live(message, nowMs);
      return;
    }
    this.#buffer.push(message);
    if (this.#buffer.length > (this.#options.maxBuffered ?? 20_000)) this.#finishReplay(nowMs, true);
  }

  /** Live batches that came meanwhile follow; those that the replay contained are not counted twice. */
  #finishReplay(nowMs: number, failed: boolean): void {
    const replay = this.#replay;
    if (failed && replay?.verify === true) this.#reset("gap");
    this.#replay = null;
    this.#lastReplayFailed = failed;
    const pause = failed
      ? (this.#options.replayCooldownMs ?? 30_000)
      : (this.#options.replaySpacingMs ?? 1_000);
    this.#noReplayBeforeMs = nowMs + pause;
    this.#drain(replay, failed, nowMs);
    if (failed && this.#last === null) this.#owed = true;
  }

  /** What was lost while the replay ran is asked for by another one. */
  #drain(replay: Replay | null, failed: boolean, nowMs: number): void {
    const buffered = this.#buffer;
    this.#buffer = [];
    for (const [i, message] of buffered.entries()) {
      const next = (this.#last?.sequence ?? -1) + 1;
      const isFresh = !failed && replay !== null && next > replay.knownTo;
      if (message.sequence > next && isFresh && this.#ask(next, message.sequence, nowMs)) {
        this.#buffer = buffered.slice(i);
        return;
      }
      this.#inOrder(message);
    }
  }

  /** Another engine process answers: all of its batches are asked for, those that came live still follow. */
  #startOver(nowMs: number): void {
    this.#reset("restart");
    this.#replay = { from: 0, knownTo: -1, verify: false, askAtMs: null, progressMs: nowMs };
    this.#askNow(this.#replay, nowMs);
  }

  /** Accepts what is new; what is missing before it is missing for good. */
  #inOrder(message: Message): void {
    const last = this.#last;
    if (last !== null && message.sequence <= last.sequence) return;
    if (last !== null && message.sequence > last.sequence + 1) this.#reset("gap");
    this.#accept(message);
  }

  #accept(message: Message): void {
    this.#last = message;
    this.#reconnected = false;
    this.#steps.push({ kind: "batch", sequence: message.sequence, payload: message.payload });
  }

  #reset(reason: ResetReason): void {
    this.#last = null;
    this.#reconnected = false;
    this.#steps.push({ kind: "reset", reason });
  }

  /** False if no replay can be had. */
  #ask(from: number, knownTo: number, nowMs: number, verify = false): boolean {
    if (!this.#options.replayable) return false;
    const early = nowMs < this.#noReplayBeforeMs;
    if (early && this.#lastReplayFailed) return false;
    const askAtMs = early ? this.#noReplayBeforeMs : null;
    this.#replay = { from, knownTo, verify, askAtMs, progressMs: nowMs };
    if (!early) this.#askNow(this.#replay, nowMs);
    return true;
  }

  #askNow(replay: Replay, nowMs: number): void {
    replay.askAtMs = null;
    replay.progressMs = nowMs;
    replay.knownTo = Math.max(replay.knownTo, this.#buffer.at(-1)?.sequence ?? -1);
    this.#steps.push({ kind: "replay", from: replay.from });
  }
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}
