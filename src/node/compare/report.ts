/** The result of a comparison as data: the documented shape of `kedge compare --json`. */

import { type CurvePoint, curve, type Gain, gains, type Knee, knees, type Run } from "./curve.ts";
import type { MachineUse } from "./machine.ts";

/** Raised when a field changes its meaning or goes; new fields may appear without. */
export const REPORT_SCHEMA = "kedge.compare/1";

export interface MachineFigures {
  /** Share of all cores that were not idle within the window, whoever used them. */
  readonly busy: number;
  readonly client: MachineUse;
  /** Gateway and agent; null on a live fleet, where they are another process's. */
  readonly gateway: MachineUse | null;
  /** Cores that the engine processes used; null where unknown. */
  readonly engineCores: number | null;
}

export interface MeasuredRun extends Run {
  readonly machine: MachineFigures;
}

/** All times in ms and rates per second are of the simulated clock (wall-clock × speed) unless named `wall…`; shares are 0 … 1. */
export interface CompareReport {
  readonly schema: typeof REPORT_SCHEMA;
  /** ISO time of the end. */
  readonly finishedAt: string;
  /** False: interrupted, what is here is what was measured by then. */
  readonly complete: boolean;
  /** What `load` counts: conversations at a time, simulated requests per second, or arrivals of the file (load 0). */
  readonly loadUnit: "concurrency" | "requests-per-second" | "file";
  /** Engine time per wall-clock time. */
  readonly speed: number;
  readonly sloTtftMs: number;
  readonly baseline: string;
  /** Fleet, workload and bounds as they were given. */
  readonly setup: Readonly<Record<string, unknown>>;
  /** One per (seed, load, mode), in the order of running. */
  readonly runs: readonly MeasuredRun[];
  /** Medians over seeds. */
  readonly curve: readonly CurvePoint[];
  /** Against `baseline`, per seed, then the median. */
  readonly gains: readonly Gain[];
  readonly knees: readonly Knee[];
  /** What makes these figures less than they seem. */
  readonly warnings: readonly string[];
}

export type ReportHead = Pick<
  CompareReport,
  "finishedAt" | "complete" | "loadUnit" | "speed" | "sloTtftMs" | "setup" | "baseline"
>;

export function buildReport(head: ReportHead, runs: readonly MeasuredRun[]): CompareReport {
  const points = curve(runs);
  return {
    schema: REPORT_SCHEMA,
    ...head,
    runs,
    curve: points,
    gains: gains(runs),
    knees: knees(points),
    warnings: warnings(head, runs),
  };
}

/** Above this the engines' and the client's timers run late, and what is measured is the scheduler of the machine. */
const SATURATED = 0.85;
/** Share of the mean TTFT that the client's own lag may have. */
const LAG_SHARE = 0.1;

function warnings(head: ReportHead, runs: readonly MeasuredRun[]): string[] {
  const found: string[] = [];
  const name = (run: Run): string => `${run.mode} at ${run.load}, seed ${run.seed}`;
  if (!head.complete) found.push("Interrupted: the comparison is not complete.");
  for (const run of runs) {
    const { machine, figures } = run;
    if (machine.busy > SATURATED) {
      found.push(
        `${name(run)}: ${Math.round(machine.busy * 100)} % of all cores were busy; this measures the machine, not the routing. Lower --speed or the load.`,
      );
    }
    const wallTtftMs = figures.wallTtftMeanMs ?? 0;
    if (machine.client.loopLagP99Ms > Math.max(5, wallTtftMs * LAG_SHARE)) {
      found.push(
        `${name(run)}: the client's event loop ran ${Math.round(machine.client.loopLagP99Ms)} ms late (p99).`,
      );
    }
    if (figures.errors > 0) {
      const kinds = Object.entries(figures.errorKinds).map(([kind, count]) => `${count} × ${kind}`);
      found.push(
        `${name(run)}: ${figures.errors} of ${figures.requests} requests failed (${kinds.join(", ")}).`,
      );
    }
    if (figures.endedBy === "time") found.push(`${name(run)}: cut off by --max-seconds.`);
    if (figures.endedBy === "in-flight") found.push(`${name(run)}: given up, too many requests unanswered.`);
  }
  return found;
}
