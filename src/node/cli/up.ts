/** `kedge up`: the whole of Kedge on one machine, with mock engines or engines that already run. */

import { Command } from "commander";
import { isLoopback, type KedgeConfig } from "../../config/index.ts";
import { type AllInOne, startAllInOne } from "../all-in-one.ts";
import { addEngineOptions, ENGINE_HELP, type EngineFlags, mocksOf } from "./engine-flags.ts";
import { logLine, stopSignal } from "./lifecycle.ts";
import { addSettings, configFrom } from "./settings.ts";

interface Flags extends EngineFlags {
  readonly json?: boolean;
  readonly logDecisions?: boolean;
}

const DEFAULT_MOCKS = 2;
const ABANDON_MS = 3_000;

export function upCommand(): Command {
  const command = new Command("up").description(
    "Run gateway and agent on this machine, in front of mock engines or of engines that already run.",
  );
  addEngineOptions(command, `${DEFAULT_MOCKS}, with --engine 0`)
    .option("--log-decisions", "print every decision as Dynamo does")
    .option("--json", "print what runs as one line of JSON");
  return addSettings(command).addHelpText("after", HELP).action(run);
}

const HELP = `
${ENGINE_HELP}

Examples:
  kedge up
  kedge up --mock 4 --router-mode round-robin
  kedge up --engine http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558,model=./Qwen3-8B`;

async function run(flags: Flags, command: Command): Promise<void> {
  const config = configFrom(command);
  const workers = flags.mock ?? (flags.engine.length === 0 ? DEFAULT_MOCKS : 0);
  const { scheme, timeZone } = flags;
  const stopped = stopSignal();
  const starting = startAllInOne({
    config,
    engines: flags.engine,
    mock: mocksOf(flags, workers),
    model: { scheme, timeZone },
    logDecisions: flags.logDecisions ?? false,
    log: logLine,
  });
  const running = await Promise.race([starting, stopped]);
  if (running === undefined) return abandon(starting);
  console.log(flags.json ? JSON.stringify(summary(running)) : banner(running, config, workers > 0));
  await stopped;
  console.error("kedge: stopping; requests under way may finish (again to stop at once)");
  await running.close();
}

/** Stopped while engines were still awaited: ends what has come up by then. */
async function abandon(starting: Promise<AllInOne>): Promise<void> {
  setTimeout(() => process.exit(130), ABANDON_MS).unref();
  await starting.then((running) => running.close()).catch(() => undefined);
  process.exit(130);
}

function summary({ url, engines, store }: AllInOne): object {
  return { url, engines, models: servedNames(store) };
}

function servedNames(store: AllInOne["store"]): string[] {
  return [...new Set(store.fleet().flatMap((row) => row.servedNames))];
}

function banner({ url, engines, store }: AllInOne, config: KedgeConfig, withMocks: boolean): string {
  const [model = "MODEL"] = servedNames(store);
  const key = config.apiKeyDigests.length > 0 ? ` -H "authorization: Bearer $KEY"` : "";
  const lines = [
    `kedge: gateway on ${url}, router mode ${config.router.mode}${config.router.kvEvents ? "" : ", without KV events"}`,
    ...engines.map(({ worker, url: at, role, serving, events }) => {
      const cache = !serving
        ? "does not answer yet"
        : events === null
          ? "cache predicted"
          : `KV events ${events}`;
      return `  ${worker.padEnd(12)} ${at}  ${role}  ${cache}`;
    }),
    "",
    withMocks ? "Mock engines speak vLLM's protocols and make words up. Try:" : "Try:",
    `  curl -sN ${callable(url)}/v1/chat/completions -H 'content-type: application/json'${key} \\`,
    `    -d '{"model":"${model}","stream":true,"messages":[{"role":"user","content":"Hello"}]}'`,
  ];
  if (config.explain) {
    lines.push(
      "And see how it was routed:",
      `  curl -s ${callable(url)}/v1/route -H 'content-type: application/json'${key} \\`,
      `    -d '{"model":"${model}","messages":[{"role":"user","content":"Hello"}]}'`,
    );
  }
  if (!isLoopback(config.host) && config.apiKeyDigests.length === 0) {
    lines.push(
      "",
      "No API keys are set: off loopback every service route answers 503. Set KEDGE_API_KEYS to SHA-256 digests.",
    );
  }
  return lines.join("\n");
}

/** An address that listens everywhere, as one that can be called. */
function callable(url: string): string {
  return url.replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:");
}
