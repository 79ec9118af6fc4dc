/** The comparison: every mode under the same load and seed, one run at a time, each on a fleet that has seen nothing. */

import type { RunKey } from "./curve.ts";
import type { Job, JobResult, WorkloadSpec } from "./job.ts";
import type { Load } from "./load.ts";
import { type MachineUse, meter, processesMeter } from "./machine.ts";
import type { Probe } from "./probe.ts";
import type { Progress } from "./progress.ts";
import { buildReport, type CompareReport, type MeasuredRun } from "./report.ts";
import type { JobHooks } from "./runner.ts";
import { figures } from "./stats.ts";
import type { SharedPromptsSpec } from "./workload.ts";

/** A fleet that is ready for one run. */
export interface Fleet {
  readonly url: string;
  /** Sent with every request of the run. */
  readonly headers: Readonly<Record<string, string>>;
  /** Opens every prompt of the run, where other runs have left caches behind; empty on a fresh fleet. */
  readonly salt: string;
  /** The gateway runs in this process. */
  readonly hostsGateway: boolean;
  /** Engines on this machine whose CPU time is worth counting. */
  readonly enginePids: readonly number[];
  close(): Promise<void>;
}

export type SharedPromptsParameters = Omit<SharedPromptsSpec, "seed" | "salt" | "tokensPerWord">;

export interface ComparePlan {
  /** The first is the baseline. */
  readonly modes: readonly string[];
  readonly seeds: readonly number[];
  /** Concurrencies, or simulated requests per second; one 0 for a file that brings its arrival times. */
  readonly loads: readonly number[];
  readonly loadUnit: CompareReport["loadUnit"];
  readonly workload:
    | { readonly kind: "shared-prompts"; readonly parameters: SharedPromptsParameters }
    | { readonly kind: "file"; readonly text: string };
  /** Measured requests of a run; null: ten per conversation of the load and at least 200, 600 in an open loop, all of a file. */
  readonly requests: number | null;
  /** Unmeasured ones before; null: two per conversation of the load, 100 in an open loop, none of a file. */
  readonly warmUpRequests: number | null;
  /** Wall-clock bound of one run. */
  readonly maxSeconds: number;
  readonly requestTimeoutMs: number;
  readonly speed: number;
  readonly sloTtftMs: number;
  /** For the report. */
  readonly setup: Readonly<Record<string, unknown>>;
}

export interface CompareDeps {
  readonly openFleet: (run: RunKey) => Promise<Fleet>;
  readonly probe: (fleet: Fleet) => Promise<Probe>;
  readonly runJob: (job: Job, hooks: JobHooks) => Promise<JobResult>;
  readonly progress: Progress;
  /** Ends the comparison early, with what was measured so far. */
  readonly signal: AbortSignal;
  readonly isoNow: () => string;
}

/** Beyond this an open loop's fleet is past saturation. */
const MAX_IN_FLIGHT = 1024;

/** Errors: those of opening and probing a fleet, and of the load process. */
export async function compare(plan: ComparePlan, deps: CompareDeps): Promise<CompareReport> {
  const keys = plan.seeds.flatMap((seed) =>
    plan.loads.flatMap((load) => plan.modes.map((mode): RunKey => ({ mode, load, seed }))),
  );
  const runs: MeasuredRun[] = [];
  // Words are calibrated once, so that every run asks the very same questions.
  const calibration: Calibration = { probed: null };
  for (const [i, key] of keys.entries()) {
    if (deps.signal.aborted) break;
    deps.progress.runStarts(i + 1, keys.length, `${key.mode} at ${key.load}, seed ${key.seed}`);
    const run = await measure(plan, key, calibration, deps);
    if (run === null) continue;
    runs.push(run);
    deps.progress.runEnds(summary(run));
  }
  deps.progress.close();
  const { loadUnit, speed, sloTtftMs } = plan;
  const setup = {
    ...plan.setup,
    model: calibration.probed?.model,
    tokensPerWord: calibration.probed?.tokensPerWord,
  };
  return buildReport(
    {
      finishedAt: deps.isoNow(),
      complete: runs.length === keys.length && !deps.signal.aborted,
      loadUnit,
      speed,
      sloTtftMs,
      baseline: plan.modes[0] ?? "",
      setup,
    },
    runs,
  );
}

interface Calibration {
  probed: Probe | null;
}

async function measure(
  plan: ComparePlan,
  key: RunKey,
  calibration: Calibration,
  deps: CompareDeps,
): Promise<MeasuredRun | null> {
  const fleet = await deps.openFleet(key);
  try {
    calibration.probed ??= await deps.probe(fleet);
    const host = hostMeter(fleet);
    const result = await deps.runJob(jobOf(plan, key, fleet, calibration.probed), {
      signal: deps.signal,
      onProgress: deps.progress.update,
      onWindow: host.onWindow,
    });
    if (result.exchanges.length === 0) return null;
    return {
      ...key,
      figures: figures(result, { speed: plan.speed, sloTtftMs: plan.sloTtftMs }),
      machine: { busy: result.machine.busy, client: result.machine, ...host.use },
    };
  } finally {
    deps.progress.note("stopping");
    await fleet.close();
  }
}

/** Gateway and engines within the measurement window. */
function hostMeter(fleet: Fleet): {
  onWindow(at: "start" | "end"): void;
  readonly use: { gateway: MachineUse | null; engineCores: number | null };
} {
  const use: { gateway: MachineUse | null; engineCores: number | null } = {
    gateway: null,
    engineCores: null,
  };
  let stop: (() => void) | null = null;
  return {
    use,
    onWindow: (at) => {
      if (at === "end") return stop?.();
      const gateway = fleet.hostsGateway ? meter() : null;
      const engines = processesMeter(fleet.enginePids);
      stop = () => {
        use.gateway = gateway?.() ?? null;
        use.engineCores = engines();
      };
    },
  };
}

function jobOf(plan: ComparePlan, key: RunKey, fleet: Fleet, probed: Probe): Job {
  return {
    url: fleet.url,
    headers: fleet.headers,
    model: probed.model,
    workload: workloadSpec(plan, key, fleet, probed),
    load: loadOf(plan, key),
    seed: key.seed,
    ...bounds(plan, key),
    maxWallMs: plan.maxSeconds * 1000,
    requestTimeoutMs: plan.requestTimeoutMs,
    maxInFlight: MAX_IN_FLIGHT,
  };
}

/** Enough for a window of several whole requests per conversation, whatever the load. */
function bounds(plan: ComparePlan, key: RunKey): { requests: number; warmUpRequests: number } {
  const [requests, warmUpRequests] =
    plan.workload.kind === "file"
      ? [Number.MAX_SAFE_INTEGER, 0]
      : plan.loadUnit === "concurrency"
        ? [Math.max(200, 10 * key.load), 2 * key.load]
        : [600, 100];
  return { requests: plan.requests ?? requests, warmUpRequests: plan.warmUpRequests ?? warmUpRequests };
}

function workloadSpec(plan: ComparePlan, key: RunKey, fleet: Fleet, probed: Probe): WorkloadSpec {
  if (plan.workload.kind === "file") return { kind: "file", text: plan.workload.text, salt: fleet.salt };
  return {
    kind: "shared-prompts",
    ...plan.workload.parameters,
    seed: key.seed,
    salt: fleet.salt,
    tokensPerWord: probed.tokensPerWord,
  };
}

/** Rates and arrival times are of the simulated clock; the client lives by the wall clock. */
function loadOf(plan: ComparePlan, key: RunKey): Load {
  if (plan.loadUnit === "file") return { kind: "trace", stretch: 1 / plan.speed };
  if (plan.loadUnit === "concurrency") return { kind: "closed", concurrency: key.load };
  return { kind: "open", ratePerSecond: key.load * plan.speed };
}

function summary({ figures: f, machine }: MeasuredRun): string {
  const ttft = f.ttftMs === null ? "no answers" : `TTFT mean ${Math.round(f.ttftMs.mean)} ms`;
  const hits = f.cache.reported === null ? "" : `, hits ${Math.round(f.cache.reported * 100)} %`;
  return `${ttft}, ${Math.round(f.outputTokensPerSecond)} tok/s${hits}, cpu ${Math.round(machine.busy * 100)} %`;
}
