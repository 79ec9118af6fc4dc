/** `kedge gateway`: a gateway of its own, in one process or several, over the view in Redis. */

import { availableParallelism } from "node:os";
import { Command, InvalidArgumentError, Option } from "commander";
import { isLoopback, type KedgeConfig } from "../../config/index.ts";
import { type GatewayHost, requireGatewaySettings, resetView, startGatewayHost } from "../gateway-host.ts";
import { type LoadedModel, loadModel } from "../models.ts";
import { isPoolMember, type MetricsPage, type Pool, serveInPool, startPool } from "../process-pool.ts";
import { logLine, stopSignal } from "./lifecycle.ts";
import { addSettings, configFrom } from "./settings.ts";

interface ModelOption {
  /** Null: the folder's name. */
  readonly name: string | null;
  readonly folder: string;
}

interface Flags {
  readonly processes: number;
  readonly model: readonly ModelOption[];
  readonly json?: boolean;
  readonly logDecisions?: boolean;
}

const MAX_PROCESSES = 256;
/** What a member may take beyond its requests. */
const END_GRACE_MS = 5_000;

export function gatewayCommand(): Command {
  const command = new Command("gateway")
    .description("Run a gateway over the view in Redis; it reaches agents by signed plans.")
    .addOption(
      new Option("--processes <n|auto>", "processes that share the port; auto: one per core")
        .argParser(processes)
        .default(1),
    )
    .addOption(
      new Option("--model <[name=]folder>", "tokenizer of a model of scheme tokens (repeatable)")
        .argParser((text: string, before: readonly ModelOption[]) => [...before, modelOption(text)])
        .default([], "none"),
    )
    .option("--log-decisions", "print every decision as Dynamo does")
    .option("--json", "print what runs as one line of JSON");
  return addSettings(command, ["gateway", "signing", "store", "place"])
    .addHelpText("after", HELP)
    .action(run);
}

const HELP = `
Needs --redis-url, --redis-token and --plan-key (or their environment). Agents need the public half of the plan key, which the gateway
also serves at /.well-known/jwks.json. Off loopback it needs --api-keys.
While Redis is out of reach, requests are routed over the last known fleet; a gateway that has seen none begins with --seed-fleet.
--router-reset-states empties the view once, at the start. --no-router-replica-sync counts only what this gateway has just sent.
With several processes, series of /metrics carry a label process; breakers and learnt figures are each process's own.

Examples:
  kedge gateway --redis-url http://127.0.0.1:8079 --redis-token "$TOKEN" --plan-key plan-key.json
  kedge gateway --processes auto --host 0.0.0.0 --api-keys "$(printf %s "$KEY" | sha256sum)"`;

async function run(flags: Flags, command: Command): Promise<void> {
  const config = configFrom(command);
  if (isPoolMember) {
    await serveInPool((page) => start(flags, config, page));
    return;
  }
  requireGatewaySettings(config);
  // Members of a pool must not each empty what the others have begun to fill.
  if (config.router.resetStates) {
    await resetView(config);
    logLine("info", "a new epoch of the view has begun");
  }
  const running = flags.processes === 1 ? await alone(flags, config) : await pool(flags, config);
  const stopped = stopSignal(() => running.kill());
  console.log(
    flags.json
      ? JSON.stringify({ url: running.url, processes: running.pids() })
      : banner(running.url, flags, config),
  );
  await stopped;
  console.error("kedge: stopping; requests under way may finish (again to stop at once)");
  await running.close();
}

async function start(flags: Flags, config: KedgeConfig, page: MetricsPage | null): Promise<GatewayHost> {
  return startGatewayHost({
    config,
    models: await Promise.all(flags.model.map(load)),
    log: logLine,
    logDecisions: flags.logDecisions ?? false,
    ...(page !== null && { page }),
  });
}

async function alone(flags: Flags, config: KedgeConfig): Promise<Pool> {
  const host = await start(flags, config, null);
  return { ...host, pids: () => [process.pid], kill: () => {} };
}

function pool({ processes }: Flags, { limits }: KedgeConfig): Promise<Pool> {
  return startPool({
    processes,
    endTimeoutMs: limits.drainTimeoutMs + END_GRACE_MS,
    log: (message) => logLine("warn", message),
  });
}

function load({ name, folder }: ModelOption): Promise<LoadedModel> {
  return loadModel(folder, { scheme: "tokens", ...(name !== null && { model: name }) });
}

function banner(url: string, { processes }: Flags, config: KedgeConfig): string {
  const many = processes === 1 ? "" : ` in ${processes} processes`;
  const closed = !isLoopback(config.host) && config.apiKeyDigests.length === 0;
  const line = `kedge: gateway on ${url}${many}, router mode ${config.router.mode}`;
  return closed
    ? `${line}\nNo API keys are set: off loopback every service route answers 503. Set KEDGE_API_KEYS to SHA-256 digests.`
    : line;
}

function processes(text: string): number {
  const count = text === "auto" ? availableParallelism() : Number(text);
  if (!/^(auto|\d{1,4})$/.test(text) || count < 1 || count > MAX_PROCESSES)
    throw new InvalidArgumentError(`auto or a number from 1 to ${MAX_PROCESSES} is expected.`);
  return count;
}

function modelOption(text: string): ModelOption {
  const split = text.indexOf("=");
  const option =
    split < 0 ? { name: null, folder: text } : { name: text.slice(0, split), folder: text.slice(split + 1) };
  if (option.folder === "" || option.name === "")
    throw new InvalidArgumentError(
      "A folder with tokenizer.json is expected, with or without NAME= before it.",
    );
  return option;
}
