/** How busy machine and process are while something is measured: on a saturated machine the figures are not about routing. */

import { readFileSync } from "node:fs";
import { cpus } from "node:os";
import { monitorEventLoopDelay } from "node:perf_hooks";

export interface MachineUse {
  /** Share of all cores that were not idle, whoever used them (0 … 1). */
  readonly busy: number;
  /** Cores that this process used. */
  readonly processCores: number;
  /** How late this process's event loop ran, 99th percentile. */
  readonly loopLagP99Ms: number;
}

/** Interval of the event-loop probe; what it reads is taken off the result. */
const RESOLUTION_MS = 10;

/** Starts measuring; the returned function stops and tells. */
export function meter(): () => MachineUse {
  const startedMs = performance.now();
  const machine = coreTimes();
  const own = process.cpuUsage();
  const lag = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  lag.enable();
  return () => {
    lag.disable();
    const used = process.cpuUsage(own);
    const now = coreTimes();
    const total = now.total - machine.total;
    return {
      busy: total === 0 ? 0 : (now.busy - machine.busy) / total,
      processCores: (used.user + used.system) / 1000 / Math.max(1, performance.now() - startedMs),
      loopLagP99Ms: Math.max(0, lag.percentile(99) / 1e6 - RESOLUTION_MS),
    };
  };
}

function coreTimes(): { busy: number; total: number } {
  let busy = 0;
  let total = 0;
  for (const { times } of cpus()) {
    const active = times.user + times.nice + times.sys + times.irq;
    busy += active;
    total += active + times.idle;
  }
  return { busy, total };
}

/** What /proc counts in; the same on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

/** Starts counting other processes' CPU time; the returned function gives the cores they used, null where /proc does not tell. */
export function processesMeter(pids: readonly number[]): () => number | null {
  const startedMs = performance.now();
  const before = cpuSeconds(pids);
  return () => {
    const after = cpuSeconds(pids);
    if (before === null || after === null) return null;
    return ((after - before) * 1000) / Math.max(1, performance.now() - startedMs);
  };
}

function cpuSeconds(pids: readonly number[]): number | null {
  let ticks = 0;
  try {
    for (const pid of pids) {
      const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
      // Fields count from behind the command, which may hold blanks: utime and stime are the 12th and 13th after it.
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
      ticks += Number(fields[11]) + Number(fields[12]);
    }
  } catch {
    return null;
  }
  return pids.length === 0 ? null : ticks / TICKS_PER_SECOND;
}
