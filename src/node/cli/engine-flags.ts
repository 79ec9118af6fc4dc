/** Options that name a node's engines: those that run, mocks to start, and how their models are keyed. */

import { type Command, InvalidArgumentError, Option } from "commander";
import { type EngineOption, parseEngineOption } from "../engine-option.ts";
import type { MockFleetOptions } from "../mock-fleet.ts";

export interface EngineFlags {
  readonly engine: readonly EngineOption[];
  readonly mock?: number;
  readonly profile: string;
  readonly mockBlocks?: number;
  readonly speed: number;
  readonly scheme: "bytes" | "tokens";
  readonly timeZone: string;
}

/** `mockDefault`: how many mocks start where the user says nothing, in words. */
export function addEngineOptions(command: Command, mockDefault: string): Command {
  return command
    .addOption(
      new Option("--engine <url[,key=value…]>", "a running engine (repeatable)")
        .argParser((text: string, before: readonly EngineOption[]) => [...before, parseEngineOption(text)])
        .default([], "none"),
    )
    .addOption(new Option("--mock <n>", `mock engines to start (default: ${mockDefault})`).argParser(whole))
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
    .option("--time-zone <zone>", "IANA zone in which chat templates print dates", "UTC");
}

export const ENGINE_HELP = `An engine: http://host:port[,events=tcp://host:port][,replay=tcp://host:port][,role=aggregated|prefill|decode]
           [,id=NAME][,model=FOLDER][,api-key=KEY]
  events, replay  where rank 0 publishes KV events and answers replays; rank r is at port + r.
                  Left out: as the engine says, else its cache is predicted.
  model           folder with tokenizer.json and chat template; left out: the folder the engine loaded, if it is here.
  role            prefill workers take no whole requests.`;

/** Null: none are to be started. */
export function mocksOf(flags: EngineFlags, workers: number): MockFleetOptions | null {
  const { profile, speed, mockBlocks } = flags;
  return workers === 0 ? null : { workers, profile, speed, blocks: mockBlocks ?? null, streamInterval: 1 };
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
