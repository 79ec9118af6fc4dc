/** A gateway Worker in workerd before scripted agents, and calls to it. */

import { createHash } from "node:crypto";
import { afterEach } from "vitest";
import type { Registration } from "../../src/fleet/types.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { MODEL, registration } from "../e2e/gateway-fleet.ts";
import { type Script, type ScriptedUpstream, startUpstream } from "../e2e/gateway-upstream.ts";
import { bundleWorker, runWorker, type WorkerBundle } from "../support/worker-bundle.ts";

export const API_KEY = "edge-test-key";
export const AUTHORIZED = { authorization: `Bearer ${API_KEY}` };
export const KEYS = await newPlanKeys();

/** What a gateway needs besides its view. */
export const SETTINGS = {
  KEDGE_API_KEYS: createHash("sha256").update(API_KEY).digest("hex"),
  KEDGE_PLAN_KEY: JSON.stringify(KEYS.privateJwks),
};

const DOOR = { "x-kedge-door": "1" };
/** Headers of a stream that its door vouches for. */
export const VOUCHED = { ...DOOR, "content-type": "text/event-stream", "x-kedge-vouched": "1" };
/** Headers of a stream that a gateway must look into. */
export const UNVOUCHED = { ...DOOR, "content-type": "text/event-stream" };
export const JSON_ANSWER = { ...DOOR, "content-type": "application/json" };

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

export function closeAfterTest(close: () => Promise<void>): void {
  closing.push(close);
}

let bundle: Promise<WorkerBundle> | null = null;
const memoryBundle = () => {
  bundle ??= bundleWorker("test/edge/memory-worker.ts");
  return bundle;
};

export interface Stack {
  readonly url: string;
  /** Process id of the Worker's runtime. */
  readonly pid: number;
  /** One per script, in order. */
  readonly agents: readonly ScriptedUpstream[];
  call(path: string, init?: RequestInit): Promise<Response>;
  chat(stream: boolean, init?: RequestInit): Promise<Response>;
  /** The value of a metric line; 0 if absent. */
  metric(line: string): Promise<number>;
}

/** One worker per script, each behind an agent of its own; a view in the Worker's memory. */
export async function startStack(
  scripts: readonly Script[],
  settings: Readonly<Record<string, string>> = {},
): Promise<Stack> {
  const agents = await Promise.all(scripts.map(startUpstream));
  for (const agent of agents) closeAfterTest(() => agent.close());
  const fleet = agents.map(({ url }, i) => registration(`w${i}`, { agent: { id: `r/c/n${i}`, url } }));
  return { agents, ...(await startWorker(fleet, settings)) };
}

/** The Worker alone, over a view that holds these ranks. */
export async function startWorker(
  fleet: readonly Registration[],
  settings: Readonly<Record<string, string>> = {},
): Promise<Omit<Stack, "agents">> {
  const worker = await runWorker(await memoryBundle(), {
    ...SETTINGS,
    KEDGE_REDIS_URL: "http://127.0.0.1:1",
    KEDGE_REDIS_TOKEN: "unused",
    KEDGE_SEED_FLEET: JSON.stringify(fleet),
    ...settings,
  });
  closeAfterTest(() => worker.close());
  const call = (path: string, init: RequestInit = {}) =>
    fetch(worker.url + path, { ...init, headers: { ...AUTHORIZED, ...init.headers } });
  return {
    url: worker.url,
    pid: worker.pid,
    call,
    chat: (stream, init) => call("/v1/chat/completions", { ...chatInit(stream), ...init }),
    metric: async (line) => metricOf(await (await call("/metrics")).text(), line),
  };
}

export const chatInit = (stream: boolean, content = "Hello there."): RequestInit => ({
  method: "POST",
  headers: { "content-type": "application/json", ...AUTHORIZED },
  body: JSON.stringify({ model: MODEL, stream, messages: [{ role: "user", content }] }),
});

export function metricOf(text: string, line: string): number {
  const found = text.split("\n").find((one) => one.startsWith(`${line} `));
  return found === undefined ? 0 : Number(found.slice(line.length + 1));
}

/** Waits until the condition holds, at most five seconds; for outcomes that no event announces. */
export async function eventually(condition: () => boolean | Promise<boolean>): Promise<void> {
  const endMs = performance.now() + 5_000;
  while (!(await condition())) {
    if (performance.now() > endMs) throw new Error("The condition did not come true within 5 s.");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
