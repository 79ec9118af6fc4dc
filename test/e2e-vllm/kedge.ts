/** `kedge up` in front of real engines, as a process, and requests to it whose routing and usage are read back together. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import type { Engine } from "./engine.ts";

export interface Kedge {
  readonly url: string;
  readonly models: readonly string[];
  readonly engines: readonly { readonly worker: string; readonly events: string | null }[];
  /** All that it has written to standard error. */
  log(): string;
  /** Resolves with the exit code. */
  stop(): Promise<number | null>;
}

const running = new Set<ChildProcess>();

export async function startKedge(engines: readonly Engine[], ...flags: string[]): Promise<Kedge> {
  const child = spawn(
    process.execPath,
    [
      ...["--disable-warning=ExperimentalWarning", "src/node/cli/main.ts", "up", "--port", "0", "--json"],
      ...engines.flatMap(({ option }, i) => ["--engine", `${option},id=e${i}`]),
      ...flags,
    ],
    // Kedge refuses settings that it does not know.
    { env: { ...process.env, E2E_VLLM_DIR: undefined }, stdio: ["ignore", "pipe", "pipe"] },
  );
  running.add(child);
  let errors = "";
  child.stderr!.on("data", (text) => {
    errors += String(text);
  });
  const ended = once(child, "exit").then(([code]) => {
    throw new Error(`kedge up ended with ${code}: ${errors}`);
  });
  ended.catch(() => undefined);
  const [line] = await Promise.race([once(createInterface({ input: child.stdout! }), "line"), ended]);
  return {
    ...(JSON.parse(String(line)) as Pick<Kedge, "url" | "models" | "engines">),
    log: () => errors,
    stop: async () => {
      if (child.exitCode !== null) return child.exitCode;
      child.kill("SIGTERM");
      const [code] = await once(child, "exit");
      return code as number | null;
    },
  };
}

export function killKedges(): void {
  for (const child of running) child.kill("SIGKILL");
  running.clear();
}

export type Body = Readonly<Record<string, unknown>>;

/** What a request was promised and what became of it. */
export interface Answer {
  readonly status: number;
  readonly worker: string | null;
  readonly rung: string | null;
  /** Tokens that Kedge says are cached where it sent the request. */
  readonly promised: number;
  /** Tokens that the engine says it took from its cache. */
  readonly cached: number;
  readonly promptTokens: number;
  readonly text: string;
  /** The answer as it came. */
  readonly raw: string;
}

interface Usage {
  readonly prompt_tokens: number;
  readonly prompt_tokens_details?: { readonly cached_tokens?: number };
}

interface Part {
  readonly usage?: Usage | null;
  readonly choices?: readonly {
    readonly text?: string;
    readonly message?: { readonly content: string | null };
    readonly delta?: { readonly content?: string | null };
  }[];
}

/** Chat if the body has messages, else a completion. Streams if the body says so, with usage. */
export async function ask(
  url: string,
  body: Body,
  headers: Readonly<Record<string, string>> = {},
): Promise<Answer> {
  const path = "messages" in body ? "/v1/chat/completions" : "/v1/completions";
  const sent = body.stream === true ? { stream_options: { include_usage: true }, ...body } : body;
  const response = await fetch(`${url}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(sent),
  });
  const raw = await response.text();
  const parts = body.stream === true && response.ok ? eventsOf(raw) : [JSON.parse(raw) as Part];
  const usage = parts.map((part) => part.usage).findLast((one) => one != null);
  return {
    status: response.status,
    worker: response.headers.get("x-kedge-worker"),
    rung: response.headers.get("x-kedge-rung"),
    promised: Number(response.headers.get("x-kedge-overlap-tokens") ?? Number.NaN),
    cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    promptTokens: usage?.prompt_tokens ?? 0,
    text: parts.map(textOf).join(""),
    raw,
  };
}

function eventsOf(stream: string): Part[] {
  return stream
    .split("\n\n")
    .filter((event) => event.startsWith("data: {"))
    .map((event) => JSON.parse(event.slice("data: ".length)) as Part);
}

function textOf({ choices = [] }: Part): string {
  const [choice] = choices;
  return choice?.text ?? choice?.message?.content ?? choice?.delta?.content ?? "";
}

/** Tokens of this prompt that Kedge would promise now; runs nothing. */
export async function promise(url: string, body: Body): Promise<number> {
  const response = await fetch(`${url}/v1/route`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const route = (await response.json()) as { overlap_tokens?: number | null };
  return route.overlap_tokens ?? 0;
}

/** Polls until the condition holds. */
export async function eventually(
  what: string,
  holds: () => Promise<boolean>,
  withinMs = 30_000,
): Promise<void> {
  const deadline = Date.now() + withinMs;
  while (!(await holds().catch(() => false))) {
    if (Date.now() > deadline) throw new Error(`Not within ${withinMs / 1_000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Sum of a metric's samples on an engine's page. */
export async function metric(engineUrl: string, name: string): Promise<number> {
  const page = await (await fetch(`${engineUrl}/metrics`)).text();
  const samples = page
    .split("\n")
    .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `));
  if (samples.length === 0) throw new Error(`${engineUrl} has no metric ${name}`);
  return samples.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" ") + 1)), 0);
}
