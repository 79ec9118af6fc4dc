/** `kedge fleet`: who is in the view, as a table or as the JSON that a seed fleet is made of. */

import { Command } from "commander";
import type { FleetRow, Registration } from "../../fleet/types.ts";
import { openStore } from "../redis-store.ts";
import { addSettings, configFrom } from "./settings.ts";

interface Flags {
  readonly json?: boolean;
}

export function fleetCommand(): Command {
  const command = new Command("fleet")
    .description("Print the workers that the view in Redis knows.")
    .option("--json", "registrations as JSON, as KEDGE_SEED_FLEET and --seed-fleet take them");
  return addSettings(command, ["store"]).action(run);
}

async function run(flags: Flags, command: Command): Promise<void> {
  const rows = await openStore(configFrom(command)).fleet(0);
  console.log(flags.json ? JSON.stringify(rows.map(registrationOf)) : table(rows));
}

/** The part of a row that its agent announced. */
export function registrationOf(row: FleetRow): Registration {
  const { slots, load, reserved, feed, ageMs, ...registration } = row;
  return registration;
}

const HEAD = [
  "WORKER",
  "RANK",
  "MODEL",
  "ROLE",
  "PLACE",
  "RUNNING",
  "WAITING",
  "BLOCKS",
  "RESERVED",
  "LAG",
  "AGE",
];

/** One line per rank; an unknown value is a dash. */
export function table(rows: readonly FleetRow[]): string {
  if (rows.length === 0) return "No workers.";
  const lines = rows.map((row) => [
    row.worker,
    String(row.rank),
    row.servedNames[0] ?? row.model,
    row.role,
    `${row.region}/${row.cluster}/${row.node}`,
    known(row.load.running),
    known(row.load.waiting),
    `${known(row.load.activeBlocks)}/${known(row.totalBlocks)}`,
    String(row.reserved.requests),
    row.kvEvents ? `${row.feed.lagEvents} (${Math.round(row.feed.lagMs)} ms)` : "predicted",
    age(row.ageMs),
  ]);
  const widths = HEAD.map((title, i) => Math.max(title.length, ...lines.map((line) => line[i]!.length)));
  return [HEAD, ...lines]
    .map((line) =>
      line
        .map((cell, i) => cell.padEnd(widths[i]!))
        .join("  ")
        .trimEnd(),
    )
    .join("\n");
}

function known(value: number | null): string {
  return value === null ? "-" : String(value);
}

function age(ms: number): string {
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 1) return `${Math.floor(ms / 1_000)}s`;
  return minutes < 60 ? `${minutes}m` : `${Math.floor(minutes / 60)}h${minutes % 60}m`;
}
