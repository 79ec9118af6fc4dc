/** `kedge mock-engine`: a process that speaks vLLM's protocols, with vLLM's flags. */

import { Command, InvalidArgumentError, Option } from "commander";
import { type MockEngineOptions, PROFILES, startMockEngine } from "../../../gpu-agent/engines/mock/index.ts";

function whole(text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 0) throw new InvalidArgumentError("A whole number is expected.");
  return value;
}

function decimal(text: string): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value) || value < 0)
    throw new InvalidArgumentError("A number is expected.");
  return value;
}

function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new InvalidArgumentError("JSON is expected.");
  }
}

function adapter(text: string): { name: string; path: string } {
  const [name, path] = text.split("=");
  if (!name || !path) throw new InvalidArgumentError("name=path is expected.");
  return { name, path };
}

/** `field=value` with a JSON value; a bare word stands for itself. */
function fault(text: string): [string, unknown] {
  const at = text.indexOf("=");
  if (at < 1) throw new InvalidArgumentError("field=value is expected.");
  const value = text.slice(at + 1);
  try {
    return [text.slice(0, at), JSON.parse(value)];
  } catch {
    return [text.slice(0, at), value];
  }
}

interface Flags {
  readonly host: string;
  readonly port: number;
  readonly servedModelName: string[];
  readonly blockSize: number;
  readonly numGpuBlocksOverride?: number;
  readonly maxModelLen?: number;
  readonly maxNumSeqs: number;
  readonly maxNumBatchedTokens: number;
  readonly maxNumQueuedReqs?: number;
  readonly schedulingPolicy: "fcfs" | "priority";
  readonly dataParallelSize: number;
  readonly loraModules: { name: string; path: string }[];
  readonly kvEventsConfig?: MockEngineOptions["kvEvents"];
  readonly kvTransferConfig?: MockEngineOptions["kvTransfer"];
  readonly apiKey: string[];
  readonly streamInterval: number;
  readonly enableForceIncludeUsage: boolean;
  readonly enableRequestIdHeaders: boolean;
  readonly toolCallParser: "hermes" | "none";
  readonly shutdownTimeout: number;
  readonly seed: number;
  readonly profile: MockEngineOptions["profile"];
  readonly speed: number;
  readonly requestOverheadMs?: number;
  readonly meanOutputTokens: number;
  readonly vocabSize?: number;
  readonly misbehave: [string, unknown][];
}

function optionsOf(flags: Flags): MockEngineOptions {
  return {
    host: flags.host,
    port: flags.port,
    servedModelNames: flags.servedModelName,
    blockSize: flags.blockSize,
    numGpuBlocks: flags.numGpuBlocksOverride ?? null,
    maxModelLen: flags.maxModelLen ?? null,
    maxNumSeqs: flags.maxNumSeqs,
    maxNumBatchedTokens: flags.maxNumBatchedTokens,
    maxNumQueuedReqs: flags.maxNumQueuedReqs ?? null,
    schedulingPolicy: flags.schedulingPolicy,
    dataParallelSize: flags.dataParallelSize,
    loraModules: flags.loraModules,
    kvEvents: flags.kvEventsConfig ?? null,
    kvTransfer: flags.kvTransferConfig ?? null,
    apiKeys: flags.apiKey,
    streamInterval: flags.streamInterval,
    enableForceIncludeUsage: flags.enableForceIncludeUsage,
    enableRequestIdHeaders: flags.enableRequestIdHeaders,
    toolCallParser: flags.toolCallParser === "none" ? null : flags.toolCallParser,
    shutdownTimeoutSeconds: flags.shutdownTimeout,
    seed: flags.seed,
    profile: flags.profile,
    speed: flags.speed,
    requestOverheadMs: flags.requestOverheadMs ?? null,
    meanOutputTokens: flags.meanOutputTokens,
    vocabSize: flags.vocabSize ?? null,
    misbehaviour: Object.fromEntries(flags.misbehave),
  };
}

function flag(flags: string, help: string, parse?: (text: string) => unknown): Option {
  const option = new Option(flags, help);
  if (parse !== undefined) option.argParser(parse);
  return option;
}

/** A flag that may be given again; each value is added. */
function list(flags: string, help: string, parse: (text: string) => unknown = (text) => text): Option {
  return new Option(flags, help)
    .argParser((text: string, before: unknown[]) => [...before, parse(text)])
    .default([], "none");
}

/** Builds the command. */
export function mockEngineCommand(): Command {
  const command = new Command("mock-engine")
    .description("Run a mock engine: vLLM's HTTP, KV events and metrics, with simulated timing and no GPU.")
    .addOption(flag("--host <address>", "address to listen on").default("127.0.0.1"))
    .addOption(flag("--port <n>", "port to listen on; 0 takes a free one", whole).default(8000))
    .addOption(flag("--served-model-name <names...>", "names the model answers to").default(["mock"], "mock"))
    .addOption(flag("--block-size <tokens>", "tokens per KV block", whole).default(16))
    .addOption(
      flag(
        "--num-gpu-blocks-override <n>",
        "KV blocks per rank, null block included (default: the profile's)",
        whole,
      ),
    )
    .addOption(
      flag("--max-model-len <tokens>", "longest prompt plus output (default: 131072 or what fits)", whole),
    )
    .addOption(flag("--max-num-seqs <n>", "sequences running at once", whole).default(256))
    .addOption(flag("--max-num-batched-tokens <n>", "tokens per engine step", whole).default(8192))
    .addOption(
      flag(
        "--max-num-queued-reqs <n>",
        "requests under way before new ones get 503 (default: any number)",
        whole,
      ),
    )
    .addOption(
      flag("--scheduling-policy <name>", "order of waiting requests")
        .choices(["fcfs", "priority"])
        .default("fcfs"),
    )
    .addOption(
      flag("--data-parallel-size <n>", "ranks, each with its own cache and event port", whole).default(1),
    )
    .addOption(list("--lora-modules <name=path>", "LoRA adapter to serve (repeatable)", adapter))
    .addOption(
      flag(
        "--kv-events-config <json>",
        "KV events, as vLLM's: enable_kv_cache_events, endpoint, replay_endpoint, topic, buffer_steps, hwm",
        json,
      ),
    )
    .addOption(
      flag(
        "--kv-transfer-config <json>",
        "turns split prefill/decode on, as vLLM's: kv_connector, engine_id",
        json,
      ),
    )
    .addOption(list("--api-key <key>", "key that /v1 asks for (repeatable)"))
    .addOption(flag("--stream-interval <tokens>", "tokens per stream chunk", whole).default(1))
    .addOption(flag("--enable-force-include-usage", "usage in every stream").default(false))
    .addOption(flag("--enable-request-id-headers", "answer with X-Request-Id").default(false))
    .addOption(
      flag("--tool-call-parser <name>", "none: tools are refused")
        .choices(["hermes", "none"])
        .default("hermes"),
    )
    .addOption(
      flag(
        "--shutdown-timeout <seconds>",
        "running requests finish within this after SIGTERM; 0: they fall silent",
        decimal,
      ).default(0),
    )
    .addOption(flag("--seed <n>", "seeds the text of requests without a seed", whole).default(0))
    .addOption(
      flag("--profile <name>", "whose timing to simulate").choices(Object.keys(PROFILES)).default("8b-h100"),
    )
    .addOption(flag("--speed <factor>", "simulated seconds per second", decimal).default(1))
    .addOption(
      flag("--request-overhead-ms <ms>", "front-end time per request (default: the profile's)", decimal),
    )
    .addOption(
      flag("--mean-output-tokens <n>", "length of an answer that nothing else ends", whole).default(128),
    )
    .addOption(flag("--vocab-size <n>", "token ids to accept in prompts (default: the tokenizer's)", whole))
    .addOption(
      list(
        "--misbehave <field=value>",
        "a fault from the start (repeatable); GET /mock/misbehave lists them",
        fault,
      ),
    );
  return command.addHelpText("after", HELP).action(async (flags: Flags) => run(flags));
}

const HELP = `
At run time: POST /mock/misbehave {"cutAfterTokens": 5}, POST /mock/restart, GET /mock/blocks?rank=0, GET /mock/stats.
SIGTERM ends it as it ends vLLM; SIGINT, or a second signal, ends it at once.

Example:
  kedge mock-engine --port 8001 --profile 8b-h100 \\
    --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv-events"}'`;

/** Runs until a signal, or the end of a parent that opened a channel to it. The first line on stdout is JSON with the addresses, for a parent process to read. */
async function run(flags: Flags): Promise<void> {
  const engine = await startMockEngine(optionsOf(flags));
  const { url, servedModelNames, eventsEndpoints, replayEndpoints } = engine;
  console.log(
    JSON.stringify({ url, models: servedModelNames, events: eventsEndpoints, replay: replayEndpoints }),
  );
  console.log(
    `mock engine: ${servedModelNames.join(", ")} on ${url} (${flags.profile}, speed ${flags.speed})`,
  );
  await new Promise<void>((resolve) => {
    let signals = 0;
    const stop = (now: boolean): void => {
      void (now || signals++ > 0 ? engine.close() : engine.terminate()).then(resolve);
    };
    process.on("SIGTERM", () => stop(false));
    process.on("SIGINT", () => stop(true));
    process.on("disconnect", () => stop(true));
    process.channel?.unref();
  });
}
