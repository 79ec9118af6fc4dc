/** What both parts of the store's benchmark are told and give back. */

export interface Options {
  readonly seed: number;
  readonly quick: boolean;
  /** A line for the reader; nothing with `--json`. */
  readonly say: (line: string) => void;
  /** A word on what goes on, for whoever waits. */
  readonly progress: (text: string) => void;
}

/** One target or budget, and whether it was kept. */
export interface Verdict {
  readonly target: string;
  readonly value: string;
  readonly met: boolean;
}

export const count = (value: number): string => Math.round(value).toLocaleString("en-US");
