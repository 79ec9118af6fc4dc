/** `kedge up`: the whole of Kedge on one machine, with mock engines or engines that already run. */

import { Command, InvalidArgumentError, Option } from "commander";
import { isLoopback, type KedgeConfig } from "../../config/index.ts";
import { type AllInOne, startAllInOne } from "../all-in-one.ts";
import { type EngineOption, parseEngineOption } from "../engine-option.ts";
import { addSettings, configFrom } from "./settings.ts";

interface Flags {
  readonly engine: readonly EngineOption[];
  readonly mock?: number;
  readonly profile: string;
  readonly mockBlocks?: number;
  readonly speed: number;
  readonly scheme: "bytes" | "tokens";
  readonly timeZone: string;
  readonly json?: boolean;
  readonly logDecisions?: boolean;
}

const DEFAULT_MOCKS = 2;
const ABANDON_MS = 3_000;
const ONE_WISH_MS = 500;

export function upCommand(): Command {
  const command = new Command("up")
    .description(
      "Run gateway and agent on this machine, in front of mock engines or of engines that already run.",
    )
    .addOption(
      new Option("--engine <url[,key=value…]>", "a running engine (repeatable)")
        .argParser((text: string, before: readonly EngineOption[]) => [...before, parseEngineOption(text)])
        .default([], "none"),
    )
    .addOption(
      new Option(
        "--mock <n>",
        `mock engines to start (default: ${DEFAULT_MOCKS}, with --engine 0)`,
      ).argParser(whole),
    )
    .addOption(
      new Option("--profile <name>", "timing of the mock engines")
        .choices(["8b-h100", "70b-tp4-h100", "zero"])
        .default("8b-h100"),
    )
    .addOption(new Option("--speed <factor>", "speed of the mock engines").argParser(positive).default(1))
    .addOption(
      new Option("--mock-blocks <n>", "KV blocks of each mock engine (default: the profile's)").argParser(
        whole,
      ),
    )
    .addOption(
      new Option("--scheme <name>", "what prefix keys are made of")
        .choices(["bytes", "tokens"])
        .default("bytes"),
    )
    .option("--time-zone <zone>", "IANA zone in which chat templates print dates", "UTC")
    .option("--log-decisions", "print every decision as Dynamo does")
    .option("--json", "print what runs as one line of JSON");
  return addSettings(command).addHelpText("after", HELP).action(run);
}

const HELP = `
An engine: http://host:port[,events=tcp://host:port][,replay=tcp://host:port][,role=aggregated|prefill|decode]
           [,id=NAME][,model=FOLDER][,api-key=KEY]
  events, replay  where rank 0 publishes KV events and answers replays; rank r is at port + r.
                  Left out: as the engine says, else its cache is predicted.
  model           folder with tokenizer.json and chat template; left out: the folder the engine loaded, if it is here.
  role            prefill workers take no whole requests.

Examples:
  kedge up
  kedge up --mock 4 --router-mode round-robin
  kedge up --engine http://127.0.0.1:8000,events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558,model=./Qwen3-8B`;

async function run(flags: Flags, command: Command): Promise<void> {
  const config = configFrom(command);
  const workers = flags.mock ?? (flags.engine.length === 0 ? DEFAULT_MOCKS : 0);
  const { profile, speed, mockBlocks, scheme, timeZone } = flags;
  const stopped = stopSignal();
  const starting = startAllInOne({
    config,
    engines: flags.engine,
    mock: workers === 0 ? null : { workers, profile, speed, blocks: mockBlocks ?? null, streamInterval: 1 },
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

/** Standard error, so that standard output stays the banner or the JSON. */
function logLine(level: string, message: string, fields: Readonly<Record<string, unknown>> = {}): void {
  const facts = Object.entries(fields).map(([name, value]) => ` ${name}=${String(value)}`);
  console.error(
    `kedge: ${level === "debug" || level === "info" ? "" : `${level}: `}${message}${facts.join("")}`,
  );
}

/**
 * Resolves at the first SIGINT or SIGTERM; a later one ends the process at once. Supervisors signal a whole group, so that
 * one wish arrives twice, from them and from a parent that passes it on.
 */
function stopSignal(): Promise<undefined> {
  return new Promise((resolve) => {
    let firstMs: number | null = null;
    const stop = (): void => {
      const nowMs = performance.now();
      firstMs ??= nowMs;
      if (nowMs - firstMs > ONE_WISH_MS) process.exit(130);
      resolve(undefined);
    };
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
  });
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

function whole(text: string): number {
  if (!/^\d{1,7}$/.test(text)) throw new InvalidArgumentError("A whole number is expected.");
  return Number(text);
}

function positive(text: string): number {
  const value = Number(text);
  if (!(value > 0) || !Number.isFinite(value))
    throw new InvalidArgumentError("A number above 0 is expected.");
  return value;
}
