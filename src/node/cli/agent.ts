/** `kedge agent`: the agent of one GPU node, known to the view over NATS and to gateways by its door. */

import { Command } from "commander";
import type { KedgeConfig } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import { type AgentHost, startAgentHost } from "../agent-host.ts";
import { addEngineOptions, ENGINE_HELP, type EngineFlags, mocksOf } from "./engine-flags.ts";
import { logLine, stopSignal } from "./lifecycle.ts";
import { addSettings, configFrom, givenSettings } from "./settings.ts";

interface Flags extends EngineFlags {
  readonly json?: boolean;
}

/** Beside the gateway's 8787. */
const DEFAULT_PORT = 8788;
const ABANDON_MS = 3_000;

export function agentCommand(): Command {
  const command = new Command("agent").description(
    "Run the agent of this node: watch its engines, publish their caches and load, carry out gateways' signed plans.",
  );
  addEngineOptions(command, "0").option("--json", "print what runs as one line of JSON");
  return addSettings(command, ["agent", "nats", "place"], DEFAULT_PORT)
    .addHelpText("after", HELP)
    .action(run);
}

const HELP = `
Needs --nats-url, --plan-jwks (or their environment) and --engine or --mock. Engines may be down at the start: they join when they answer.
Workers without id=NAME are called region/cluster/node/host:port (without what is named local). Serves /live, /ready, /metrics to private networks and /status to this machine; all
else needs a signed plan. Engines should listen on loopback, so that the agent is the only way to them.

${ENGINE_HELP}

Example:
  kedge plan-key --write .
  kedge agent --nats-url ws://127.0.0.1:8080 --plan-jwks plan-jwks.json --agent-url https://node-1.example \\
    --engine http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558`;

async function run(flags: Flags, command: Command): Promise<void> {
  const given = configFrom(command);
  const config = { ...given, port: portOf(command, given) };
  const { scheme, timeZone, engine: engines, mock = 0 } = flags;
  if (engines.length === 0 && mock === 0) {
    throw new KedgeError(
      "config_invalid",
      "An agent needs engines: name them by --engine, or start mocks by --mock.",
      { param: "engine" },
    );
  }
  const stopped = stopSignal();
  const starting = startAgentHost({
    config,
    engines,
    mock: mocksOf(flags, mock),
    model: { scheme, timeZone },
    log: logLine,
  });
  const running = await Promise.race([starting, stopped]);
  if (running === undefined) return abandon(starting);
  console.log(flags.json ? JSON.stringify(summary(running)) : readyLine(running));
  await stopped;
  console.error("kedge: stopping; requests under way may finish (again to stop at once)");
  await running.close();
}

/** Stopped while engines were still awaited: ends what has come up by then. */
async function abandon(starting: Promise<AgentHost>): Promise<void> {
  setTimeout(() => process.exit(130), ABANDON_MS).unref();
  await starting.then((running) => running.close()).catch(() => undefined);
  process.exit(130);
}

function portOf(command: Command, config: KedgeConfig): number {
  const names = ["KEDGE_PORT", "DYN_HTTP_PORT"] as const;
  const isGiven =
    "port" in givenSettings(command) || names.some((name) => /^\s*\d/.test(process.env[name] ?? ""));
  return isGiven ? config.port : DEFAULT_PORT;
}

function summary({ url, agent, engines }: AgentHost): object {
  return { url, agent, engines: engines() };
}

function readyLine({ url, agent, engines }: AgentHost): string {
  const serving = engines().filter((engine) => engine.serving).length;
  return `kedge: agent ${agent.id} on ${url}, for gateways ${agent.url}; ${serving} of ${engines().length} engines serve`;
}
