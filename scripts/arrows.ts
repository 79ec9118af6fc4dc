/** The import arrows of the house: which room may import which, and what the portable core may not touch. */

import { dirname, join, normalize } from "node:path";

const SERVE_ALL = ["config", "errors", "telemetry", "plan", "json", "stream"];

/** Room → rooms it may import besides itself. Rooms that serve all are added to each. */
const ROOMS: Readonly<Record<string, readonly string[]>> = {
  config: [],
  errors: [],
  telemetry: [],
  plan: [],
  json: [],
  stream: [],
  prefix: [],
  routing: ["prefix", "fleet"],
  fleet: ["prefix", "routing"],
  store: ["prefix", "routing", "fleet"],
  events: ["prefix", "routing", "fleet", "store"],
  indexer: ["prefix", "routing", "fleet", "store", "events"],
  tenancy: ["store"],
  gateway: ["prefix", "routing", "fleet", "store", "events", "tenancy"],
};

/** What the agent takes from the core; of the store only its types, which bus and batches are made of. */
const AGENT_TAKES = [...SERVE_ALL, "prefix", "events", "fleet"];
const AGENT_TAKES_FILES = ["src/store/types.ts"];

const NODE_ONLY_PACKAGES = new Set(["undici", "zeromq", "commander", "@hono/node-server", "ioredis"]);

export interface Violation {
  readonly file: string;
  readonly reason: string;
}

const IMPORT = /(?:\bfrom\s*|\bimport\s*\(?\s*)["']([^"']+)["']/g;

/** Import specifiers of a TypeScript source, type imports included. */
export function specifiers(source: string): string[] {
  const withoutComments = source.replace(/\/\*[\s\S]*?\*\//g, "").replace(/^\s*\/\/.*$/gm, "");
  return [...withoutComments.matchAll(IMPORT)].map((match) => match[1] ?? "");
}

function roomOf(path: string): string {
  const [top = "", second = ""] = path.split("/");
  return top === "src" ? second : top;
}

/** Checks one file. `file` is relative to the repository's root, with forward slashes. */
export function violations(file: string, source: string): Violation[] {
  const isTest = file.endsWith(".test.ts");
  const found: string[] = [];
  if (!/^(#![^\n]*\n)?\s*(\/\*\*|\/\/)/.test(source))
    found.push("does not open with a comment on its purpose");
  for (const specifier of specifiers(source)) {
    const reason = specifier.startsWith(".")
      ? checkArrow(file, normalize(join(dirname(file), specifier)), isTest)
      : checkPackage(file, specifier, isTest);
    if (reason !== null) found.push(reason);
  }
  if (isPortable(file) && !isTest) {
    const global =
      /\b(process\.(env|argv|exit|nextTick|hrtime|memoryUsage)|Buffer\.(from|alloc|concat)|__dirname)\b/.exec(
        source,
      );
    if (global !== null) found.push(`uses ${global[1]}, which workerd's core does not have`);
  }
  return found.map((reason) => ({ file, reason }));
}

function isPortable(file: string): boolean {
  return file.startsWith("src/") && !file.startsWith("src/node/");
}

function checkPackage(file: string, specifier: string, isTest: boolean): string | null {
  if (!isPortable(file) || isTest) return null;
  if (specifier.startsWith("node:")) return `imports ${specifier}: the portable core runs in workerd`;
  return NODE_ONLY_PACKAGES.has(specifier) ? `imports ${specifier}, which runs in Node only` : null;
}

function checkArrow(file: string, target: string, isTest: boolean): string | null {
  // Tests and benchmarks hold the parts together from outside, as hosts do.
  if (isTest || !/^(src|gpu-agent|workers)\//.test(file)) return null;
  const from = roomOf(file);
  const to = roomOf(target);
  if (from === to) return null;
  const allowed = mayImport(from, to, target);
  return allowed ? null : `${from} may not import ${to} (${target})`;
}

function mayImport(from: string, to: string, target: string): boolean {
  if (to === "node" || to === "workers") return false;
  if (from === "node") return true;
  if (from === "workers") return to in ROOMS;
  if (to === "gpu-agent") return false;
  if (from === "gpu-agent") return AGENT_TAKES.includes(to) || AGENT_TAKES_FILES.includes(target);
  if (SERVE_ALL.includes(from)) return from !== to && to === "errors";
  return SERVE_ALL.includes(to) || (ROOMS[from]?.includes(to) ?? false);
}
