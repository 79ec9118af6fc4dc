/** Random histories of an engine, its restarts, a lossy connection and its replays: what comes out is one life's batches without a hole. */

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Sequencer, type Step } from "./sequencer.ts";

interface Batch {
  readonly life: number;
  readonly sequence: number;
}

type Action =
  | { readonly kind: "publish"; readonly lost: boolean }
  /** Hands on so many of the messages that are on their way. */
  | { readonly kind: "live"; readonly count: number }
  | { readonly kind: "replay"; readonly count: number }
  | { readonly kind: "disconnect" }
  | { readonly kind: "connect" }
  /** A new process; without a word to the agent unless it `notices`, as by the engine's metrics. */
  | { readonly kind: "restart"; readonly notices: boolean }
  | { readonly kind: "wait"; readonly ms: number };

const actions: fc.Arbitrary<Action> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("publish" as const), lost: fc.boolean() }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("live" as const), count: fc.nat(4) }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("replay" as const), count: fc.nat(4) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("disconnect" as const) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("connect" as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("restart" as const), notices: fc.boolean() }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant("wait" as const), ms: fc.constantFrom(100, 1_000, 11_000) }),
  },
);

/** An engine and what connects it to a sequencer. */
class World {
  life = 0;
  next = 0;
  /** Batches since the last reset, as they came out. */
  out: Batch[] = [];
  private readonly keep: number;
  private readonly sequencer = new Sequencer({ replayable: true });
  private nowMs = 0;
  private connected = false;
  private lostLast = false;
  private buffer: Batch[] = [];
  private underWay: Batch[] = [];
  /** The replay last asked for; `answers`: null until the engine has read the question, so one that died says nothing. */
  private replay: { from: number; life: number; answers: Batch[] | null } | null = null;

  /** `keep`: batches that the engine keeps for replays. */
  constructor(keep: number) {
    this.keep = keep;
  }

  act(action: Action): void {
    if (action.kind === "publish") this.publish(action.lost);
    else if (action.kind === "live") for (let i = 0; i < action.count; i++) this.hearLive();
    else if (action.kind === "replay") for (let i = 0; i <= action.count; i++) this.hearReplay();
    else if (action.kind === "disconnect") this.connected = false;
    else if (action.kind === "connect") this.connect();
    else if (action.kind === "restart") this.restart(action.notices);
    else this.wait(action.ms);
  }

  /** All that is under way arrives, and every replay that can be had is had. */
  settle(): void {
    this.connect();
    // Nothing tells of a lost last batch but the one after it.
    if (this.lostLast) this.publish(false);
    for (let round = 0; round < 6; round++) {
      for (let i = 0; i < 200; i++) this.hearLive();
      for (let i = 0; i < 200; i++) this.hearReplay();
      this.nowMs += 31_000;
      this.take(this.sequencer.tick(this.nowMs));
    }
  }

  private publish(lost: boolean): void {
    const batch = { life: this.life, sequence: this.next++ };
    this.buffer = [...this.buffer, batch].slice(-this.keep);
    this.lostLast = this.connected && lost;
    if (this.connected && !lost) this.underWay.push(batch);
  }

  private hearLive(): void {
    const batch = this.underWay.shift();
    if (batch !== undefined) this.take(this.sequencer.live(batch.sequence, payloadOf(batch), this.nowMs));
  }

  private hearReplay(): void {
    const { replay } = this;
    if (replay === null) return;
    if (replay.answers === null) {
      if (replay.life === this.life)
        replay.answers = this.buffer.filter((one) => one.sequence >= replay.from);
      return;
    }
    const batch = replay.answers.shift();
    if (batch === undefined) {
      // The end mark dies with the engine as every other answer does.
      if (replay.life !== this.life) return;
      this.replay = null;
      this.take(this.sequencer.replayEnded(this.nowMs));
    } else this.take(this.sequencer.replayed(batch.sequence, payloadOf(batch), this.nowMs));
  }

  private wait(ms: number): void {
    this.nowMs += ms;
    if (ms > 10_000 && this.replay !== null && this.replay.life !== this.life) {
      this.replay = null;
      this.take(this.sequencer.replayFailed(this.nowMs));
    }
    this.take(this.sequencer.tick(this.nowMs));
  }

  private connect(): void {
    if (this.connected) return;
    while (this.underWay.length > 0) this.hearLive();
    this.connected = true;
    this.take(this.sequencer.connected(this.nowMs));
  }

  private restart(notices: boolean): void {
    this.life++;
    this.next = 0;
    this.lostLast = false;
    this.buffer = [];
    this.connected = false;
    if (!notices) return;
    this.underWay = [];
    this.out = [];
    this.sequencer.restarted();
    this.take(this.sequencer.connected(this.nowMs));
  }

  private take(steps: readonly Step[]): void {
    for (const step of steps) {
      if (step.kind === "replay") this.replay = { from: step.from, life: this.life, answers: null };
      else if (step.kind === "reset") this.out = [];
      else this.out.push({ life: step.payload[0]!, sequence: step.sequence });
    }
    for (const [i, batch] of this.out.entries()) {
      const before = this.out[i - 1];
      if (before === undefined) continue;
      if (batch.life !== before.life || batch.sequence !== before.sequence + 1) {
        throw new Error(`${before.life}/${before.sequence} is followed by ${batch.life}/${batch.sequence}`);
      }
    }
  }
}

const payloadOf = ({ life, sequence }: Batch): Uint8Array => Uint8Array.from([life, sequence]);

describe("whatever happens to the engine and to what connects it", () => {
  test("batches of one life follow one another, and the last of them is soon there", () => {
    fc.assert(
      fc.property(fc.array(actions, { maxLength: 60 }), fc.constantFrom(2, 1_000), (history, keep) => {
        const world = new World(keep);
        world.act({ kind: "connect" });
        for (const action of history) world.act(action);
        world.settle();
        if (world.next === 0) expect(world.out).toEqual([]);
        else expect(world.out.at(-1)).toEqual({ life: world.life, sequence: world.next - 1 });
        const replaysAnswer = history.every(
          (action) => action.kind !== "restart" && (action.kind !== "wait" || action.ms < 10_000),
        );
        if (keep === 1_000 && replaysAnswer && world.next > 0) expect(world.out[0]!.sequence).toBe(0);
      }),
      { numRuns: 3_000, seed: 7 },
    );
  });
});
