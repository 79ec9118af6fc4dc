/** Progress on stderr: one line that rewrites itself on a terminal, a line per finished run elsewhere. */

import type { LoadProgress } from "./load.ts";

export interface ProgressStream {
  write(text: string): unknown;
  readonly isTTY?: boolean | undefined;
  readonly columns?: number | undefined;
}

export interface Progress {
  runStarts(number: number, of: number, name: string): void;
  note(what: string): void;
  /** A line that stays. */
  say(what: string): void;
  update(progress: LoadProgress): void;
  runEnds(summary: string): void;
  /** Leaves the terminal's line clean. */
  close(): void;
}

export function progress(stream: ProgressStream, now: () => number): Progress {
  const live = stream.isTTY === true;
  let label = "";
  let startMs = 0;
  const rewrite = (text: string): void => {
    const width = (stream.columns ?? 80) - 1;
    if (live) stream.write(`\r\u001b[2K${text.slice(0, width)}`);
  };
  const seconds = (): string => `${Math.round((now() - startMs) / 1000)} s`;
  return {
    runStarts: (number, of, name) => {
      label = `[${number}/${of}] ${name}`;
      startMs = now();
      rewrite(`${label}: starting`);
    },
    note: (what) => rewrite(`${label}: ${what}`),
    say: (what) => {
      rewrite("");
      stream.write(`${what}\n`);
    },
    update: ({ phase, done, total, inFlight, errors }) => {
      const failed = errors > 0 ? `, ${errors} errors` : "";
      rewrite(
        `${label}: ${phase} ${done}${total === Number.MAX_SAFE_INTEGER ? "" : `/${total}`}, ${inFlight} in flight${failed}, ${seconds()}`,
      );
    },
    runEnds: (summary) => {
      rewrite("");
      stream.write(`${label}: ${summary} (${seconds()})\n`);
    },
    close: () => rewrite(""),
  };
}

/** Says nothing. */
export const SILENT: Progress = {
  runStarts: () => {},
  note: () => {},
  say: () => {},
  update: () => {},
  runEnds: () => {},
  close: () => {},
};
