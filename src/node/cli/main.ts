/** The `kedge` command: dispatches to its subcommands and turns errors into one clear line and an exit code. */

import { Command } from "commander";
import { KedgeError } from "../../errors/index.ts";
import { version } from "./version.ts";

/** Name → loader, so that a command pays only for what it uses. */
const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  up: async () => (await import("./up.ts")).upCommand(),
  gateway: async () => (await import("./gateway.ts")).gatewayCommand(),
  agent: async () => (await import("./agent.ts")).agentCommand(),
  "plan-key": async () => (await import("./plan-key.ts")).planKeyCommand(),
  "mock-engine": async () => (await import("./mock-engine.ts")).mockEngineCommand(),
  decide: async () => (await import("./decide.ts")).decideCommand(),
  "replay-scenario": async () => (await import("./replay-scenario.ts")).replayScenarioCommand(),
  compare: async () => (await import("./compare.ts")).compareCommand(),
  card: async () => (await import("./card.ts")).cardCommand(),
  indexer: async () => (await import("./indexer.ts")).indexerCommand(),
  fleet: async () => (await import("./fleet.ts")).fleetCommand(),
  "redis-rest": async () => (await import("./redis-rest.ts")).redisRestCommand(),
};

async function program(wanted: string | undefined): Promise<Command> {
  const root = new Command("kedge")
    .description("One OpenAI-compatible entry for your GPU clusters, routed by KV-cache state.")
    .version(version())
    .showHelpAfterError("(--help lists what it takes)");
  const one = wanted === undefined ? undefined : COMMANDS[wanted];
  const loaders = one === undefined ? Object.values(COMMANDS) : [one];
  for (const load of loaders) root.addCommand(await load());
  return root;
}

function report(thrown: unknown): void {
  if (thrown instanceof KedgeError) {
    console.error(`kedge: ${thrown.code}: ${thrown.message}`);
    process.exitCode = thrown.code === "config_invalid" ? 2 : 1;
    return;
  }
  console.error("kedge: unexpected error:", thrown);
  process.exitCode = 70;
}

// A reader such as `head` may close the pipe early: that is its right, not a failure.
process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  if (error.code === "EPIPE") process.exit(0);
  throw error;
});

try {
  await (await program(process.argv[2])).parseAsync();
} catch (thrown) {
  report(thrown);
}
