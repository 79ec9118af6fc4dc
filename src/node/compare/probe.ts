/** Asks a fleet what it serves and how many tokens the workload's words make there. */

import { KedgeError } from "../../errors/index.ts";
import { seeded } from "./random.ts";
import { filler } from "./text.ts";

export interface Probe {
  readonly model: string;
  readonly tokensPerWord: number;
  /** The gateway says who served (`x-kedge-worker`): explanations are on, so modes can be chosen per request. */
  readonly explains: boolean;
}

export interface ProbeOptions {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Null: the first model that is served. */
  readonly model: string | null;
  readonly timeoutMs: number;
}

const SHORT_WORDS = 200;
const LONG_WORDS = 800;

/**
 * Two short requests whose difference in prompt tokens leaves the template's share out.
 * Errors: `config_invalid` when the fleet does not answer as an OpenAI endpoint does.
 */
export async function probe(options: ProbeOptions): Promise<Probe> {
  const model = options.model ?? (await firstModel(options));
  const short = await ask(options, model, SHORT_WORDS);
  const long = await ask(options, model, LONG_WORDS);
  const tokensPerWord = (long.promptTokens - short.promptTokens) / (LONG_WORDS - SHORT_WORDS);
  if (!(tokensPerWord > 0.1)) {
    throw new KedgeError(
      "config_invalid",
      `${options.url}: usage.prompt_tokens does not grow with the prompt.`,
    );
  }
  return { model, tokensPerWord: Math.round(tokensPerWord * 1000) / 1000, explains: long.explains };
}

async function firstModel(options: ProbeOptions): Promise<string> {
  const { body } = await call(options, "/v1/models");
  const { data } = body as { data?: readonly { id?: unknown }[] };
  const id = data?.[0]?.id;
  if (typeof id !== "string")
    throw new KedgeError("config_invalid", `${options.url}/v1/models lists no model.`);
  return id;
}

async function ask(
  options: ProbeOptions,
  model: string,
  words: number,
): Promise<{ promptTokens: number; explains: boolean }> {
  const content = filler(words, 1, seeded(0, "probe", words));
  const request = { model, messages: [{ role: "user", content }], max_tokens: 1 };
  const { body, headers } = await call(options, "/v1/chat/completions", request);
  const { usage } = body as { usage?: { prompt_tokens?: number } };
  return { promptTokens: usage?.prompt_tokens ?? 0, explains: headers.has("x-kedge-worker") };
}

async function call(
  options: ProbeOptions,
  path: string,
  body?: unknown,
): Promise<{ body: unknown; headers: Headers }> {
  const url = new URL(path, options.url);
  try {
    const response = await fetch(url, {
      method: body === undefined ? "GET" : "POST",
      headers: { "content-type": "application/json", ...options.headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(options.timeoutMs),
    });
    const text = await response.text();
    if (!response.ok)
      throw new KedgeError("config_invalid", `${url}: HTTP ${response.status}: ${text.slice(0, 300)}`);
    return { body: JSON.parse(text), headers: response.headers };
  } catch (thrown) {
    if (thrown instanceof KedgeError) throw thrown;
    const cause = thrown instanceof Error && thrown.cause instanceof Error ? thrown.cause : thrown;
    throw new KedgeError(
      "config_invalid",
      `${url} does not answer: ${cause instanceof Error ? cause.message : cause}.`,
      { cause },
    );
  }
}
