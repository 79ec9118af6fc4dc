/** What processes take: resident memory over time, and whether it stays what it was; processor time. */

import { readFileSync } from "node:fs";

const PAGE_BYTES = 4_096;
/** Linux counts processor time in hundredths of a second. */
const TICK_MS = 10;
/** Of a part's first half, by which its second half's median may exceed it; below, what garbage collectors leave for later. */
const GROWTH_ALLOWED = 0.1;
const GROWTH_ALLOWED_MB = 8;

export interface Growth {
  readonly part: string;
  /** Medians. */
  readonly firstHalfMb: number;
  readonly secondHalfMb: number;
  readonly isFlat: boolean;
}

export class MemoryLog {
  private readonly parts: Readonly<Record<string, () => number | undefined>>;
  private readonly samplesMb = new Map<string, number[]>();

  /** `parts`: process ids by name. */
  constructor(parts: Readonly<Record<string, () => number | undefined>>) {
    this.parts = parts;
  }

  /** What each part takes now, in MB. */
  sample(): Readonly<Record<string, number>> {
    const now: Record<string, number> = {};
    for (const [part, pid] of Object.entries(this.parts)) {
      const mb = residentMb(pid());
      now[part] = Math.round(mb);
      const samples = this.samplesMb.get(part);
      if (samples === undefined) this.samplesMb.set(part, [mb]);
      else samples.push(mb);
    }
    return now;
  }

  /** The samples from the `warmUp`th on, the second half of them against the first. */
  growth(warmUp: number): Growth[] {
    return [...this.samplesMb].map(([part, all]) => {
      const samples = all.slice(warmUp);
      const half = Math.floor(samples.length / 2);
      const firstHalfMb = median(samples.slice(0, half));
      const secondHalfMb = median(samples.slice(half));
      const allowedMb = Math.max(GROWTH_ALLOWED_MB, GROWTH_ALLOWED * firstHalfMb);
      return { part, firstHalfMb, secondHalfMb, isFlat: secondHalfMb - firstHalfMb <= allowedMb };
    });
  }
}

/** Processor time of a process so far. Not a number: there is no such process. */
export function cpuMs(pid: number | undefined): number {
  try {
    // Behind the name, which may hold anything: the third field and those after it.
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)!.split(" ");
    return (Number(fields[11]) + Number(fields[12])) * TICK_MS;
  } catch {
    return Number.NaN;
  }
}

/** Not a number: there is no such process. */
function residentMb(pid: number | undefined): number {
  try {
    const pages = Number(readFileSync(`/proc/${pid}/statm`, "utf8").split(" ")[1]);
    return (pages * PAGE_BYTES) / 2 ** 20;
  } catch {
    return Number.NaN;
  }
}

export function median(figures: readonly number[]): number {
  return quantile(figures, 0.5);
}

export function quantile(figures: readonly number[], share: number): number {
  const sorted = [...figures].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}
