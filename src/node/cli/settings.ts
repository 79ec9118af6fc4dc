/** Settings as command-line options: every flag of the one table, with its environment names in `--help`. */

import { type Command, Option } from "commander";
import {
  defineConfig,
  type KedgeConfig,
  loadConfig,
  type Part,
  partsOf,
  SETTINGS,
  type Setting,
} from "../../config/index.ts";

/** Adds the settings of the parts that the command runs as options; switches get their `--no-…` form too. `port`: the command's own default. */
export function addSettings(command: Command, parts: readonly Part[] = ["gateway"], port?: number): Command {
  const defaults = defineConfig(port === undefined ? {} : { port });
  for (const setting of SETTINGS) {
    if (!partsOf(setting).some((part) => parts.includes(part))) continue;
    const help = `${setting.help}${defaultOf(setting, defaults)} [${setting.env.join(", ")}]`;
    if (setting.kind === "boolean") {
      command.addOption(settingOption(`--${setting.flag}`, help));
      command.addOption(settingOption(`--no-${setting.flag}`, `opposite of --${setting.flag}`));
    } else {
      command.addOption(settingOption(`--${setting.flag} <${valueName(setting)}>`, help));
    }
  }
  return command;
}

function settingOption(flags: string, help: string): Option {
  return new Option(flags, help).helpGroup("Settings [environment]:");
}

/** Where a default needs words, the setting's own text has them. */
function defaultOf(setting: Setting, defaults: KedgeConfig): string {
  if (setting.help.includes("(default")) return "";
  const value = setting.path
    .split(".")
    .reduce<unknown>((at, key) => (at as Record<string, unknown>)[key], defaults);
  return value === null || Array.isArray(value) ? "" : ` (default: ${String(value)})`;
}

function valueName(setting: Setting): string {
  return setting.kind === "number" ? "n" : setting.kind === "list" ? "a,b,…" : "value";
}

/** The configuration from the environment and the options that were given on the command line. Errors: `config_invalid`. */
export function configFrom(command: Command, env: NodeJS.ProcessEnv = process.env): KedgeConfig {
  return loadConfig(env, givenSettings(command));
}

/** Only what the user typed: a switch's `--no-…` form makes commander invent a default that is nobody's wish. */
export function givenSettings(command: Command): Record<string, string | boolean> {
  const given: Record<string, string | boolean> = {};
  for (const setting of SETTINGS) {
    const name = camelCase(setting.flag);
    if (command.getOptionValueSource(name) === "cli") given[setting.flag] = command.getOptionValue(name);
  }
  return given;
}

function camelCase(flag: string): string {
  return flag.replace(/-([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}
