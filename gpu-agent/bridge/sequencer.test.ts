/** Batches come out in order, once, and every hole is either filled or said. */

import { describe, expect, test } from "vitest";
import { Sequencer, type SequencerOptions, type Step } from "./sequencer.ts";

const payloadOf = (sequence: number, life = 0): Uint8Array => Uint8Array.from([sequence, life]);

/** Steps in short: numbers are batches. */
function short(steps: readonly Step[]): (number | string)[] {
  return steps.map((step) => {
    if (step.kind === "batch") return step.sequence;
    return step.kind === "reset" ? step.reason : `replay ${step.from}`;
  });
}

class Run {
  readonly sequencer: Sequencer;
  nowMs = 0;
  constructor(options: Partial<SequencerOptions> = {}) {
    this.sequencer = new Sequencer({ replayable: true, ...options });
  }
  live(sequence: number, life = 0): (number | string)[] {
    return short(this.sequencer.live(sequence, payloadOf(sequence, life), this.nowMs));
  }
  replayed(sequence: number, life = 0): (number | string)[] {
    return short(this.sequencer.replayed(sequence, payloadOf(sequence, life), this.nowMs));
  }
  ended(): (number | string)[] {
    return short(this.sequencer.replayEnded(this.nowMs));
  }
  connected(): (number | string)[] {
    return short(this.sequencer.connected(this.nowMs));
  }
  tick(): (number | string)[] {
    return short(this.sequencer.tick(this.nowMs));
  }
}

/** Live up to and including `sequence`, without a replay under way. */
function runTo(sequence: number, options: Partial<SequencerOptions> = {}): Run {
  const run = new Run(options);
  for (let i = 0; i <= sequence; i++) run.live(i);
  return run;
}

describe("without a replay socket", () => {
  test("the first batch sets the watermark", () => {
    const run = new Run({ replayable: false });
    expect([run.live(100), run.live(101)]).toEqual([[100], [101]]);
  });

  test("a jump is a gap: what came before is void", () => {
    expect(runTo(2, { replayable: false }).live(5)).toEqual(["gap", 5]);
  });

  test.each([0, 1, 2])("a number that is not higher (%i after 2) is a restart", (sequence) => {
    expect(runTo(2, { replayable: false }).live(sequence, 1)).toEqual(["restart", sequence]);
  });

  test("the very same batch again is a duplicate", () => {
    const run = runTo(2, { replayable: false });
    expect([run.live(2), run.live(3)]).toEqual([[], [3]]);
  });

  test("a jump after a lost connection may join two lives: void, and the jump is a first batch", () => {
    const run = runTo(2, { replayable: false });
    expect([run.connected(), run.live(7)]).toEqual([[], ["gap", 7]]);
  });
});

describe("with a replay socket", () => {
  test("on connecting, everything is asked for; live batches wait and are not counted twice", () => {
    const run = new Run();
    expect(run.connected()).toEqual(["replay 0"]);
    expect([run.live(2), run.live(3)]).toEqual([[], []]);
    expect([run.replayed(0), run.replayed(1), run.replayed(2)]).toEqual([[0], [1], [2]]);
    expect([run.ended(), run.live(4)]).toEqual([[3], [4]]);
  });

  test("a first batch that is not number 0 asks for what was before", () => {
    const run = new Run();
    expect(run.live(5)).toEqual(["replay 0"]);
    expect([run.replayed(3), run.replayed(4), run.ended()]).toEqual([[3], [4], [5]]);
  });

  test("a gap is filled", () => {
    const run = runTo(2);
    expect(run.live(5)).toEqual(["replay 3"]);
    expect(run.live(6)).toEqual([]);
    expect([run.replayed(3), run.replayed(4), run.replayed(5), run.ended()]).toEqual([[3], [4], [5], [6]]);
    expect(run.live(7)).toEqual([7]);
  });

  test.each([
    ["begins too late", [4], ["gap", 4]],
    ["is empty", [], ["gap", 5]],
  ])("a replay that %s is a gap", (_, answers, expected) => {
    const run = runTo(2);
    run.live(5);
    const seen = [...answers.flatMap((sequence) => run.replayed(sequence)), ...run.ended()];
    expect(seen.slice(0, 2)).toEqual(expected);
  });

  test("a replay that hangs is given up; the next gap in its cool-down is not replayed", () => {
    const run = runTo(2, { replayTimeoutMs: 1_000, replayCooldownMs: 5_000 });
    run.live(5);
    run.nowMs = 1_001;
    expect(run.tick()).toEqual(["gap", 5]);
    expect(run.live(8)).toEqual(["gap", 8]);
    run.nowMs = 7_000;
    expect(run.live(10)).toEqual(["replay 9"]);
  });

  test("replays are spaced out: the second gap waits for its turn", () => {
    const run = runTo(2, { replaySpacingMs: 1_000 });
    run.live(4);
    run.replayed(3);
    expect(run.ended()).toEqual([4]);
    expect(run.live(6)).toEqual([]);
    run.nowMs = 999;
    expect(run.tick()).toEqual([]);
    run.nowMs = 1_000;
    expect(run.tick()).toEqual(["replay 5"]);
    expect([run.replayed(5), run.ended()]).toEqual([[5], [6]]);
  });

  test("a restart while a replay runs voids what it gave", () => {
    const run = runTo(2);
    run.live(5);
    run.replayed(3);
    expect(run.live(0, 1)).toEqual(["restart", 0]);
    expect([run.replayed(4), run.ended(), run.live(1, 1)]).toEqual([[], [], [1]]);
  });

  test("after a lost connection the last batch is asked for again: the same engine has it", () => {
    const run = runTo(2);
    expect(run.connected()).toEqual(["replay 2"]);
    expect([run.replayed(2), run.replayed(3), run.ended(), run.live(4)]).toEqual([[], [3], [], [4]]);
  });

  test("another process has another batch, or none, under that number: all of its own are asked for", () => {
    const other = runTo(2);
    other.connected();
    expect(other.replayed(2, 1)).toEqual(["restart", "replay 0"]);
    expect([other.replayed(0, 1), other.replayed(1, 1), other.replayed(2, 1)]).toEqual([[0], [1], [2]]);
    const young = runTo(2);
    young.connected();
    young.live(0, 1);
    expect(young.ended()).toEqual(["restart", "replay 0"]);
    expect([young.replayed(0, 1), young.ended()]).toEqual([[0], []]);
  });

  test("what waits during a replay is bounded", () => {
    const run = runTo(2, { maxBuffered: 3 });
    const seen = [5, 6, 7, 8, 9].flatMap((sequence) => run.live(sequence));
    expect(seen).toEqual(["replay 3", "gap", 5, 6, 7, 8, 9]);
  });
});
