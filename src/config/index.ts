/** One typed configuration from environment and flags; what is unknown, unreadable or contradictory is an error that names setting and fix. */

import type { z } from "zod";
import { KedgeError } from "../errors/index.ts";
import { type KedgeConfig, type KedgeConfigInput, kedgeConfigSchema } from "./schema.ts";
import { SETTINGS, type Setting } from "./settings.ts";

export { ROUTER_MODES, type RouterMode } from "./router-modes.ts";
export { type KedgeConfig, type KedgeConfigInput, kedgeConfigSchema } from "./schema.ts";
export { type Part, partsOf, SETTINGS, type Setting } from "./settings.ts";

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|::1|\[::1\])$/;

/** True if only this machine can reach the address. */
export function isLoopback(host: string): boolean {
  return LOOPBACK.test(host);
}

/** Fills in defaults and checks ranges. Errors: `config_invalid`, one line per problem. */
export function defineConfig(input: KedgeConfigInput = {}): KedgeConfig {
  const result = kedgeConfigSchema.safeParse(input);
  if (!result.success) throw invalid(result.error.issues.map(describe));
  return result.data;
}

/**
 * Reads settings: flags win over environment, environment over defaults.
 * `flags` are keyed by flag name (`router-mode`), values as given (`true`/`false` for switches).
 * Errors: `config_invalid` naming each setting at fault and what it accepts.
 */
export function loadConfig(
  env: Readonly<Record<string, string | undefined>>,
  flags: Readonly<Record<string, string | boolean | undefined>> = {},
): KedgeConfig {
  const problems = unknownNames(env, flags);
  const input: Record<string, unknown> = {};
  for (const setting of SETTINGS) {
    const given = lookUp(setting, env, flags);
    if (given === null) continue;
    const value = read(setting, given.text);
    if (value === undefined) problems.push(`${given.name}: "${given.text}" is not a ${setting.kind}.`);
    else place(input, setting.path, value);
  }
  if (problems.length > 0) throw invalid(problems);
  const result = kedgeConfigSchema.safeParse(input);
  if (!result.success) throw invalid(result.error.issues.map(describe));
  return withExplainDefault(result.data, input);
}

/** Those of the settings at `paths` (e.g. `store.url`) that are not set: null, or an empty list. */
export function missingSettings(config: KedgeConfig, paths: readonly string[]): readonly Setting[] {
  return SETTINGS.filter(({ path }) => {
    if (!paths.includes(path)) return false;
    const value = path.split(".").reduce<unknown>((at, key) => (at as Record<string, unknown>)[key], config);
    return value === null || (Array.isArray(value) && value.length === 0);
  });
}

/** Callers on this machine may see how they were routed; others only if the operator says so. */
function withExplainDefault(config: KedgeConfig, input: Record<string, unknown>): KedgeConfig {
  return "explain" in input ? config : { ...config, explain: isLoopback(config.host) };
}

function lookUp(
  setting: Setting,
  env: Readonly<Record<string, string | undefined>>,
  flags: Readonly<Record<string, string | boolean | undefined>>,
): { name: string; text: string } | null {
  const flag = flags[setting.flag];
  if (flag !== undefined) return { name: `--${setting.flag}`, text: String(flag) };
  for (const name of setting.env) {
    const text = env[name];
    if (text !== undefined && text.trim() !== "" && !isServiceLink(name, text))
      return { name, text: text.trim() };
  }
  return null;
}

const TRUE = new Set(["true", "1", "yes", "on"]);
const FALSE = new Set(["false", "0", "no", "off"]);

function read(setting: Setting, text: string): unknown {
  switch (setting.kind) {
    case "string":
      return text;
    case "number": {
      // Only settings that may be absent accept it; the schema tells the others apart.
      if (text.toLowerCase() === "none") return null;
      const value = Number(text);
      return text === "" || !Number.isFinite(value) ? undefined : value;
    }
    case "boolean": {
      const lower = text.toLowerCase();
      return TRUE.has(lower) ? true : FALSE.has(lower) ? false : undefined;
    }
    case "list":
      return text
        .split(",")
        .map((item) => item.trim().toLowerCase())
        .filter((item) => item !== "");
  }
}

function place(input: Record<string, unknown>, path: string, value: unknown): void {
  const [head = "", tail] = path.split(".");
  if (tail === undefined) {
    input[head] = value;
    return;
  }
  input[head] = { ...(input[head] as Record<string, unknown> | undefined), [tail]: value };
}

/** Names that other tools of the field define and Kedge has no use for are left alone; only `KEDGE_*` is Kedge's to know. */
function unknownNames(
  env: Readonly<Record<string, string | undefined>>,
  flags: Readonly<Record<string, string | boolean | undefined>>,
): string[] {
  const names = new Set(SETTINGS.flatMap((setting) => setting.env));
  const known = new Set(SETTINGS.map((setting) => setting.flag));
  const problems = Object.entries(env)
    .filter(([name, text]) => isOurs(name) && !names.has(name) && !isServiceLink(name, text))
    .map(([name]) => `${name}: unknown setting${closest(name, names)}`);
  for (const flag of Object.keys(flags)) {
    if (!known.has(flag)) problems.push(`--${flag}: unknown setting${closest(flag, known)}`);
  }
  return problems;
}

/** `KEDGE_REST_…` is checked by `kedge redis-rest`, which may share an environment with the rest. */
function isOurs(name: string): boolean {
  return name.startsWith("KEDGE_") && !name.startsWith("KEDGE_REST_");
}

/**
 * Kubernetes sets such variables in every pod for each service of the namespace; one called kedge gives
 * `KEDGE_PORT=tcp://10.0.0.1:80`, `KEDGE_SERVICE_HOST`, `KEDGE_PORT_80_TCP_ADDR`.
 */
function isServiceLink(name: string, text = ""): boolean {
  return (
    /_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)/.test(name) ||
    (name.endsWith("_PORT") && /^(tcp|udp|sctp):\/\//.test(text))
  );
}

/** Suggests the known name that shares the longest run of words. */
function closest(name: string, known: ReadonlySet<string>): string {
  const words = new Set(name.toLowerCase().split(/[_-]/));
  let best = "";
  let bestScore = 1;
  for (const candidate of known) {
    const score = candidate
      .toLowerCase()
      .split(/[_-]/)
      .filter((word) => words.has(word)).length;
    if (score > bestScore) {
      best = candidate;
      bestScore = score;
    }
  }
  return best === "" ? "." : `; did you mean ${best}?`;
}

function describe(issue: z.core.$ZodIssue): string {
  const path = issue.path.join(".");
  const setting = SETTINGS.find(
    (candidate) => path === candidate.path || path.startsWith(`${candidate.path}.`),
  );
  const name = setting === undefined ? path : `${setting.env[0]} (--${setting.flag})`;
  return `${name}: ${issue.message}.`;
}

function invalid(problems: readonly string[]): KedgeError {
  return new KedgeError("config_invalid", problems.join("\n"));
}
