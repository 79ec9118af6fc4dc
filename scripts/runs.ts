/** Which runs of vitest a test command means, and what they add up to. */

export interface Run {
  readonly config: string;
  readonly args: readonly string[];
}

export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

/** What is read of vitest's JSON report. */
export interface Results {
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
  readonly testResults: readonly { readonly status: string; readonly assertionResults: readonly unknown[] }[];
}

const NORMAL = "vitest.config.ts";
const WORKERD = "vitest.workerd.config.ts";
export const LONG = "vitest.long.config.ts";

/** Without a path both kinds of suites are meant, with paths those that the paths are below. */
export function planRuns(args: readonly string[], exists: (path: string) => boolean): Run[] {
  if (args.includes("--long")) return [{ config: LONG, args: args.filter((arg) => arg !== "--long") }];
  const inWorkerd = args.filter((arg) => /^(\.\/)?test\/workerd\b/.test(arg));
  const others = args.filter((arg) => !inWorkerd.includes(arg));
  const paths = others.filter((arg) => !arg.startsWith("-") && exists(arg));
  const options = others.filter((arg) => !paths.includes(arg));
  const runs: Run[] = [];
  if (inWorkerd.length === 0 || paths.length > 0) runs.push({ config: NORMAL, args: others });
  if (inWorkerd.length > 0 || args.length === 0) {
    runs.push({ config: WORKERD, args: [...options, ...inWorkerd] });
  }
  return runs.filter(({ config }) => exists(config));
}

export const NO_COUNTS: Counts = { passed: 0, failed: 0, skipped: 0 };

/** A file that failed before it had a test counts as one failure. */
export function countsOf(results: Results): Counts {
  const broken = results.testResults.filter(
    ({ status, assertionResults }) => status === "failed" && assertionResults.length === 0,
  );
  return {
    passed: results.numPassedTests,
    failed: results.numFailedTests + broken.length,
    skipped: results.numPendingTests,
  };
}

export function addCounts(a: Counts, b: Counts): Counts {
  return { passed: a.passed + b.passed, failed: a.failed + b.failed, skipped: a.skipped + b.skipped };
}

export function summary({ passed, failed, skipped }: Counts): string {
  return `tests: ${passed} passed, ${failed} failed${skipped === 0 ? "" : `, ${skipped} skipped`}`;
}
