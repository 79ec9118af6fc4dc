/** `kedge indexer`: folds the agents' log into the view of a region. */

import { Command } from "commander";
import type { KedgeConfig } from "../../config/index.ts";
import { startIndexer } from "../indexer.ts";
import { logLine, stopSignal } from "./lifecycle.ts";
import { addSettings, configFrom, givenSettings } from "./settings.ts";

interface Flags {
  readonly json?: boolean;
}

/** Beside the gateway's 8787 and the agent's 8788. */
const DEFAULT_PORT = 8789;

export function indexerCommand(): Command {
  const command = new Command("indexer")
    .description("Fold what agents publish over NATS into the view in Redis, for one region.")
    .option("--json", "print what runs as one line of JSON");
  return addSettings(command, ["indexer", "store", "nats", "place"], DEFAULT_PORT)
    .addHelpText("after", HELP)
    .action(run);
}

const HELP = `
Needs --redis-url, --redis-token and --nats-url (or their environment). Several may run for one view: one works, the others stand by and
take over within seconds.
Serves /live, /ready, /status and /metrics.

Example:
  kedge indexer --redis-url http://127.0.0.1:8079 --redis-token "$TOKEN" --nats-url ws://127.0.0.1:8080 --region eu`;

async function run(flags: Flags, command: Command): Promise<void> {
  const config = configFrom(command);
  const host = await startIndexer({
    config,
    host: config.host,
    port: portOf(command, config),
    log: logLine,
  });
  const { region } = config.place;
  console.log(
    flags.json
      ? JSON.stringify({ url: host.url, region })
      : `kedge: indexer of region ${region} on ${host.url}`,
  );
  await stopSignal();
  await host.close();
}

function portOf(command: Command, config: KedgeConfig): number {
  const names = ["KEDGE_PORT", "DYN_HTTP_PORT"] as const;
  const isGiven =
    "port" in givenSettings(command) || names.some((name) => /^\s*\d/.test(process.env[name] ?? ""));
  return isGiven ? config.port : DEFAULT_PORT;
}
