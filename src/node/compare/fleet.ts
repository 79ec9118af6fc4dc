/** Where a run's fleet comes from: started for it alone, or one that already serves. */

import { defineConfig, ROUTER_MODES } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import { startAllInOne } from "../all-in-one.ts";
import type { NodeLog } from "../node-engines.ts";
import type { Fleet } from "./compare.ts";
import type { RunKey } from "./curve.ts";

/** Prediction mode: the fleet is started as with `--no-kv-events`. */
const NO_EVENTS = ":no-events";

export interface OwnFleetOptions {
  readonly workers: number;
  readonly profile: string;
  readonly speed: number;
  /** KV blocks of each worker; null: the profile's. */
  readonly blocks: number | null;
  /** Tokens per streamed chunk. */
  readonly streamInterval: number;
}

/** A router mode, or `kv:no-events`. Errors: `config_invalid` listing what there is. */
export function checkMode(mode: string): string {
  const { router, suffix } = splitMode(mode);
  const known = ROUTER_MODES.some((name) => name === router && name !== "direct");
  const events = suffix === "" || (suffix === NO_EVENTS && router.startsWith("kv"));
  if (known && events) return mode;
  const names = ROUTER_MODES.filter((name) => name !== "direct").join(", ");
  throw new KedgeError("config_invalid", `--modes: "${mode}" is not one of ${names}, kv${NO_EVENTS}.`);
}

function splitMode(mode: string): { router: string; suffix: string } {
  const at = mode.indexOf(":");
  return at === -1 ? { router: mode, suffix: "" } : { router: mode.slice(0, at), suffix: mode.slice(at) };
}

/** A gateway in this process with mock engines as children, new for every run. */
export async function startFleet(run: RunKey, options: OwnFleetOptions, log: NodeLog): Promise<Fleet> {
  const { router, suffix } = splitMode(run.mode);
  const config = defineConfig({
    port: 0,
    explain: true,
    router: { mode: ROUTER_MODES.find((name) => name === router), kvEvents: suffix !== NO_EVENTS },
  });
  const running = await startAllInOne({ config, mock: options, log });
  return {
    url: running.url,
    headers: {},
    salt: "",
    hostsGateway: true,
    enginePids: running.engines.flatMap((engine) => (engine.pid === null ? [] : [engine.pid])),
    close: () => running.close(),
  };
}

export interface LiveFleetOptions {
  readonly url: string;
  readonly apiKey: string | null;
}

/** The mode is asked for with each request; the salt keeps one run's cache from serving the next. Errors: `config_invalid`. */
export function liveFleet(run: RunKey, options: LiveFleetOptions): Fleet {
  const { router, suffix } = splitMode(run.mode);
  if (suffix !== "") {
    throw new KedgeError(
      "config_invalid",
      `--modes: "${run.mode}" needs a fleet of its own; leave --url out.`,
    );
  }
  const headers: Record<string, string> = { "x-kedge-router-mode": router };
  if (options.apiKey !== null) headers.authorization = `Bearer ${options.apiKey}`;
  return {
    url: options.url,
    headers,
    salt: `${run.mode}-${run.seed}-${run.load}-${Date.now().toString(36)}`,
    hostsGateway: false,
    enginePids: [],
    close: async () => {},
  };
}
