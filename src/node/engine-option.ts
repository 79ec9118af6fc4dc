/** `--engine http://host:port[,key=value…]`: one running engine, as the command line names it. */

import { KedgeError } from "../errors/index.ts";
import type { WorkerRole } from "../plan/index.ts";

export interface EngineOption {
  readonly url: string;
  /** Worker name; null: made from host and port. */
  readonly id: string | null;
  /** Where rank 0 publishes KV events; rank r is at port + r. Null: what the engine says, else none. */
  readonly events: string | null;
  readonly replay: string | null;
  readonly role: WorkerRole;
  readonly apiKey: string | null;
  /** Folder with the model's files (tokenizer.json, chat template); null: where the engine says its model is. */
  readonly model: string | null;
}

const ROLES: readonly WorkerRole[] = ["aggregated", "prefill", "decode"];
const KEYS = ["id", "events", "replay", "role", "api-key", "model"] as const;
type Key = (typeof KEYS)[number];

/** Errors: `config_invalid` that repeats the option and says what it may hold. */
export function parseEngineOption(text: string): EngineOption {
  const [url = "", ...pairs] = text.split(",");
  const given = new Map<Key, string>();
  for (const pair of pairs) {
    const at = pair.indexOf("=");
    const key = KEYS.find((name) => name === pair.slice(0, at));
    if (at < 1 || key === undefined || pair.length === at + 1) {
      throw invalid(text, `"${pair}" is not one of ${KEYS.map((name) => `${name}=…`).join(", ")}`);
    }
    given.set(key, pair.slice(at + 1));
  }
  const role = given.get("role") ?? "aggregated";
  return {
    url: engineUrl(text, url),
    id: given.get("id") ?? null,
    events: socket(text, given.get("events")),
    replay: socket(text, given.get("replay")),
    role:
      ROLES.find((name) => name === role) ?? fail(text, `role "${role}" is not one of ${ROLES.join(", ")}`),
    apiKey: given.get("api-key") ?? null,
    model: given.get("model") ?? null,
  };
}

function engineUrl(option: string, text: string): string {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || !/^https?:$/.test(url.protocol))
    return fail(option, `"${text}" is not an http:// address`);
  if (url.search !== "" || url.hash !== "" || url.username !== "") {
    return fail(option, "an engine's address has no query, fragment or user");
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
}

function socket(option: string, endpoint: string | undefined): string | null {
  if (endpoint === undefined) return null;
  return /^(tcp:\/\/[^\s/]+:\d+|ipc:\/\/\S+)$/.test(endpoint)
    ? endpoint
    : fail(option, `"${endpoint}" is not a ZMQ endpoint such as tcp://127.0.0.1:5557`);
}

function fail(option: string, reason: string): never {
  throw invalid(option, reason);
}

function invalid(option: string, reason: string): KedgeError {
  return new KedgeError("config_invalid", `--engine ${option}: ${reason}.`, { param: "engine" });
}
