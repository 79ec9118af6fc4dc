/** `kedge card`: derives a model's card from its files and prints it. */

import { Command, InvalidArgumentError, Option } from "commander";
import { cardOf, readModelFiles } from "../../../gpu-agent/agent.ts";
import { DEFAULT_UNIT_SIZE } from "../../prefix/card.ts";
import type { PrefixSchemeName } from "../../prefix/types.ts";

interface Flags {
  readonly model?: string;
  readonly scheme: PrefixSchemeName;
  readonly unit?: number;
  readonly timeZone: string;
  readonly json?: boolean;
}

function parseUnit(text: string): number {
  if (!/^[1-9]\d{0,5}$/.test(text)) throw new InvalidArgumentError("It must be a whole number from 1.");
  return Number(text);
}

export function cardCommand(): Command {
  return new Command("card")
    .description(
      "Derive a model's card (template, BOS rule, text rules) from its files and print it as JSON.",
    )
    .argument("<path>", "model directory, or a tokenizer.json with tokenizer_config.json beside it")
    .option(
      "--model <id>",
      "canonical model id, equal on gateways and agents (default: the directory's name)",
    )
    .addOption(
      new Option("--scheme <scheme>", "what prefix keys are made of")
        .choices(["bytes", "tokens"])
        .default("bytes"),
    )
    .option(
      "--unit <n>",
      `bytes per chunk or tokens per key block (default: ${DEFAULT_UNIT_SIZE.bytes} bytes, ${DEFAULT_UNIT_SIZE.tokens} tokens)`,
      parseUnit,
    )
    .option("--time-zone <zone>", "IANA zone in which templates print dates", "UTC")
    .option("--json", "print on one line")
    .action(async (path: string, flags: Flags) => {
      const card = cardOf(await readModelFiles(path), { ...flags, unitSize: flags.unit });
      process.stdout.write(`${JSON.stringify(card, null, flags.json ? undefined : 2)}\n`);
    });
}
