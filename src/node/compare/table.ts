/** The result of a comparison as text for people. */

import type { CurvePoint, Gain, Knee, Ratio } from "./curve.ts";
import type { CompareReport, MeasuredRun } from "./report.ts";

export function renderReport(report: CompareReport): string {
  if (report.runs.length === 0) return "Nothing was measured.\n";
  const parts = [
    headline(report),
    grid(curveRows(report)),
    gainLines(report).join("\n"),
    kneeLines(report).join("\n"),
    workerLines(report).join("\n"),
    report.warnings.map((warning) => `warning: ${warning}`).join("\n"),
  ];
  return `${parts.filter((part) => part !== "").join("\n\n")}\n`;
}

function headline(report: CompareReport): string {
  const seeds = new Set(report.runs.map((run) => run.seed)).size;
  const clock =
    report.speed === 1
      ? "times in ms"
      : `times in ms and rates per second of simulated time (wall-clock × ${report.speed}; engines run at speed ${report.speed})`;
  return `${clock}; ${seeds === 1 ? "one seed" : `medians of ${seeds} seeds`}; hits as % of prompt tokens`;
}

/** Column titles in two lines. */
const COLUMNS: readonly (readonly [string, string])[] = [
  ["load", ""],
  ["mode", ""],
  ["TTFT", "mean"],
  ["", "p50"],
  ["", "p90"],
  ["", "p99"],
  ["ITL", "mean"],
  ["", "p50"],
  ["", "p99"],
  ["out", "tok/s"],
  ["req/s", ""],
  ["hit %", "pred"],
  ["", "rep"],
  ["pred−rep", "%"],
  ["busiest", "worker"],
  ["in SLO", "%"],
  ["err", ""],
  ["cpu", "%"],
  ["own", "cores"],
];

function curveRows(report: CompareReport): string[][] {
  return [
    COLUMNS.map(([title]) => title),
    COLUMNS.map(([, unit]) => unit),
    ...report.curve.map((point) => [
      String(point.load),
      point.mode,
      ...[point.ttftMeanMs, point.ttftP50Ms, point.ttftP90Ms, point.ttftP99Ms].map((ms) => number(ms, 0)),
      ...[point.itlMeanMs, point.itlP50Ms, point.itlP99Ms].map((ms) => number(ms, 1)),
      number(point.outputTokensPerSecond, 0),
      number(point.requestsPerSecond, 2),
      percent(point.hitPredicted),
      percent(point.hitReported),
      signed(point.hitBias),
      point.imbalance === null ? "–" : `×${point.imbalance.toFixed(2)}`,
      percent(point.withinSlo),
      String(point.errors),
      ...cpu(report.runs, point),
    ]),
  ];
}

/** Of a point's busiest run, for one saturated run spoils a median: all cores of the machine, and cores used by gateway, engines and client. */
function cpu(runs: readonly MeasuredRun[], point: CurvePoint): [string, string] {
  const machines = runs
    .filter((run) => run.mode === point.mode && run.load === point.load)
    .map((run) => run.machine);
  const own = machines.map((m) =>
    m.gateway === null || m.engineCores === null
      ? null
      : m.gateway.processCores + m.engineCores + m.client.processCores,
  );
  const known = own.filter((cores) => cores !== null);
  return [
    percent(Math.max(...machines.map((machine) => machine.busy))),
    number(known.length === 0 ? null : Math.max(...known), 2),
  ];
}

function gainLines(report: CompareReport): string[] {
  if (report.gains.length === 0) return [];
  return [`against ${report.baseline} (median over seeds, least … most):`, ...report.gains.map(gainLine)];
}

function gainLine(gain: Gain): string {
  return (
    `  load ${gain.load}  ${gain.mode}: TTFT mean ${change(gain.ttftMean)}, ` +
    `output ${change(gain.outputTokensPerSecond)}, requests/s ${change(gain.requestsPerSecond)}`
  );
}

function change(ratio: Ratio | null): string {
  if (ratio === null) return "–";
  const range = ratio.min === ratio.max ? "" : ` (${signed(ratio.min)} … ${signed(ratio.max)})`;
  return `${signed(ratio.median)} %${range}`;
}

function kneeLines(report: CompareReport): string[] {
  if (new Set(report.curve.map((point) => point.load)).size < 2) return [];
  return [
    `knees (last load before throughput grew by less than half of its share) and last load with 90 % of TTFTs ≤ ${report.sloTtftMs} ms:`,
    ...report.knees.map(kneeLine),
  ];
}

function kneeLine(knee: Knee): string {
  const at = knee.load === null ? "–" : `${knee.beyond ? "≥ " : ""}${knee.load}`;
  return `  ${knee.mode}: knee ${at}, SLO kept up to ${knee.sloLoad ?? "none of these loads"}`;
}

/** Who served: only for the largest load, where it tells most. */
function workerLines(report: CompareReport): string[] {
  const load = Math.max(...report.runs.map((run) => run.load));
  const runs = report.runs.filter((run) => run.load === load);
  return [
    "requests per worker:",
    ...runs.map((run) => `  ${run.mode}, seed ${run.seed}: ${counts(run.figures.perWorker)}${rungs(run)}`),
  ];
}

function rungs(run: MeasuredRun): string {
  const text = counts(run.figures.perRung);
  return text === "" ? "" : `; rung ${text}`;
}

function counts(of: Readonly<Record<string, number>>): string {
  return Object.entries(of)
    .map(([name, count]) => `${name} ${count}`)
    .join(", ");
}

function number(value: number | null, digits: number): string {
  return value === null ? "–" : value.toFixed(digits);
}

function percent(share: number | null): string {
  return share === null ? "–" : (share * 100).toFixed(1);
}

function signed(ratio: number | null): string {
  if (ratio === null) return "–";
  const text = (Math.abs(ratio) * 100).toFixed(1);
  return text === "0.0" ? text : `${ratio < 0 ? "−" : "+"}${text}`;
}

/** Columns as wide as their widest cell; the first two to the left, numbers to the right. */
export function grid(rows: readonly (readonly string[])[]): string {
  const columns = Math.max(...rows.map((row) => row.length));
  const widths = Array.from({ length: columns }, (_, i) =>
    Math.max(...rows.map((row) => (row[i] ?? "").length)),
  );
  return rows
    .map((row) =>
      widths
        .map((width, i) => (i < 2 ? (row[i] ?? "").padEnd(width) : (row[i] ?? "").padStart(width)))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}
