/** Counts of a replay: what was compared, what differs, and how recorded answers compare where Kedge means to differ. */

export interface Difference {
  /** Line of the file and the session's name. */
  readonly line: number;
  readonly session: string;
  readonly what: string;
  readonly expected: string;
  readonly actual: string;
}

type Value = string | number | boolean | null;

export class Tally {
  sessions = 0;
  compared = 0;
  readonly differences: Difference[] = [];
  /** Name → how often the recorded answer equals Kedge's, and how often not. */
  readonly notes = new Map<string, { same: number; different: number }>();
  readonly #onDifference: ((difference: Difference) => void) | null;
  #line = 0;
  #session = "";

  constructor(onDifference: ((difference: Difference) => void) | null = null) {
    this.#onDifference = onDifference;
  }

  begin(line: number, session: string): void {
    this.sessions += 1;
    this.#line = line;
    this.#session = session;
  }

  check(what: string, expected: Value, actual: Value): void {
    this.compared += 1;
    if (expected === actual) return;
    this.#differ(what, expected, actual);
  }

  /** Equal within `tolerance`. */
  near(what: string, expected: number, actual: number | null, tolerance: number): void {
    this.compared += 1;
    if (actual !== null && Math.abs(expected - actual) <= tolerance) return;
    this.#differ(what, expected, actual);
  }

  note(name: string, same: boolean): void {
    const counts = this.notes.get(name) ?? { same: 0, different: 0 };
    if (same) counts.same += 1;
    else counts.different += 1;
    this.notes.set(name, counts);
  }

  #differ(what: string, expected: Value, actual: Value): void {
    const difference = {
      line: this.#line,
      session: this.#session,
      what,
      expected: String(expected),
      actual: String(actual),
    };
    this.differences.push(difference);
    this.#onDifference?.(difference);
  }
}
