/** The memory store's part of the benchmark: the matrix of views and prompts, and the targets of one core. */

import { type LookupFigures, measureBytes, measureLookups, measurePredictions } from "./measure.ts";
import type { Shape } from "./population.ts";
import { count, type Options, type Verdict } from "./report.ts";

/** Above this many holders in all, each chain is held by 16 of the workers instead of by all. */
const MAX_HOLDERS = 30_000_000;

export interface MemoryFigures {
  readonly lookups: readonly LookupFigures[];
  readonly bytesPerEntry: { readonly tables: number; readonly process: number };
  readonly predictionsPerS: readonly { readonly keys: number; readonly perS: number }[];
}

/** Takes 20 s when quick, else 5 to 9 minutes. */
export function measureMemory({ seed, quick, say }: Options): {
  figures: MemoryFigures;
  verdicts: Verdict[];
} {
  say("the view in memory; one core, one thread");
  say(HEADER);
  // First, while nothing else was allocated that may be collected meanwhile.
  const bytesPerEntry = measureBytes(1_000_000, seed);
  measureLookups(shapeOf(20_000, 512, 16, 16), seed, quick); // Compiles what is measured.
  const lookups = shapes(quick).map((shape) => {
    const figures = measureLookups(shape, seed, quick);
    say(row(figures));
    return figures;
  });
  const predictionsPerS = [512, 8_192].map((keys) => ({ keys, perS: measurePredictions(keys, seed, quick) }));
  const { tables, process: grown } = bytesPerEntry;
  say(
    `bytes per entry, two holders, 1 M entries: ${tables.toFixed(1)} in tables, ${grown.toFixed(1)} of process`,
  );
  for (const { keys, perS } of predictionsPerS)
    say(`reserve and predict, ${count(keys)} keys: ${count(perS)}/s`);
  const figures = { lookups, bytesPerEntry, predictionsPerS };
  return { figures, verdicts: judge(figures) };
}

function shapes(quick: boolean): Shape[] {
  if (quick) return [4, 16].map((depths) => shapeOf(1_000_000, 512, 16, depths));
  const all: Shape[] = [];
  for (const entries of [1_000, 100_000, 1_000_000]) {
    for (const promptKeys of [64, 512, 8_192]) {
      for (const workers of [1, 16, 256]) {
        for (const depths of [4, 16]) {
          if (depths === 4 || workers >= 16) all.push(shapeOf(entries, promptKeys, workers, depths));
        }
      }
    }
  }
  return all;
}

function shapeOf(entries: number, promptKeys: number, workers: number, depths: number): Shape {
  const holders = entries * workers > MAX_HOLDERS ? 16 : workers;
  return { entries, promptKeys, workers, holders, depths: Math.min(depths, workers) };
}

function row(figures: LookupFigures): string {
  const { shape, churn, mapWalksPerS: map } = figures;
  return [
    count(shape.entries).padStart(9),
    count(shape.promptKeys).padStart(6),
    String(shape.workers).padStart(7),
    String(shape.holders).padStart(7),
    String(shape.depths).padStart(6),
    count(figures.lookupsPerS).padStart(11),
    count(figures.lookupsPerSInterrupted).padStart(11),
    figures.p50Us.toFixed(2).padStart(6),
    figures.p99Us.toFixed(2).padStart(6),
    figures.probes.toFixed(1).padStart(6),
    count(figures.firstPerS).padStart(10),
    figures.firstProbes.toFixed(1).padStart(6),
    count(figures.hotPerS).padStart(10),
    (map === null ? "" : `${(figures.lookupsPerS / map).toFixed(0)}×`).padStart(7),
    count(figures.fillKeysPerS).padStart(10),
    count(churn.keysPerS).padStart(10),
    churn.batchP99Us.toFixed(1).padStart(7),
    churn.batchMaxUs.toFixed(0).padStart(7),
  ].join(" ");
}

const HEADER =
  "  entries   keys workers holders depths   lookups/s interrupted p50 µs p99 µs probes    first/s probes      hot/s" +
  "  ÷ Map fill key/s churn k/s  p99 µs  max µs";

/** The targets of one core: 512-key prompts, 16 workers, a view of 1 M entries. */
function judge({ lookups, bytesPerEntry }: MemoryFigures): Verdict[] {
  const of = (depths: number) =>
    lookups.find(
      ({ shape }) =>
        shape.entries === 1_000_000 &&
        shape.promptKeys === 512 &&
        shape.workers === 16 &&
        shape.depths === depths,
    )!;
  const few = of(4);
  const many = of(16);
  const least = Math.min(...[few, many].map((figures) => figures.lookupsPerS / (figures.mapWalksPerS ?? 0)));
  return [
    { target: "≥ 500,000 lookups/s at 4 depths", value: count(few.lookupsPerS), met: few.lookupsPerS >= 5e5 },
    {
      target: "≥ 100,000 lookups/s at 16 depths",
      value: count(many.lookupsPerS),
      met: many.lookupsPerS >= 1e5,
    },
    { target: "≥ 10 × a walk over a Map", value: `${least.toFixed(1)}×`, met: least >= 10 },
    {
      target: "≤ 100 bytes per entry with two holders",
      value: bytesPerEntry.process.toFixed(1),
      met: Math.max(bytesPerEntry.process, bytesPerEntry.tables) <= 100,
    },
  ];
}
