/** Requests as clients send them, one by one or as a steady load, and all that an answer says of how it was routed. */

import { promptOf } from "./prompts.ts";

/** Text, or token ids, of which a gateway without the vocabulary makes no keys. */
export type Prompt = string | readonly number[];

export interface Answer {
  readonly prompt: Prompt;
  /** 0: no answer at all. */
  readonly status: number;
  /** Error code or what else was wrong with it; null: a whole answer. */
  readonly wrong: string | null;
  readonly rung: string | null;
  /** `worker/rank`. */
  readonly worker: string | null;
  /** Tokens of the prompt that the gateway took to be cached, and that the engine says were. */
  readonly claimed: number;
  readonly cached: number;
  readonly retryAfter: string | null;
  readonly sentAtMs: number;
  readonly costMs: number;
}

export interface AskOptions {
  readonly path?: string;
  readonly stream?: boolean;
  readonly maxTokens?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A request that hangs is as bad as one that fails. */
const PATIENCE_MS = 15_000;
export const MODEL = "mock";
const IN_BAND = "in band: ";
const LATELY = 12;

/** Never rejects. */
export async function ask(url: string, prompt: Prompt, options: AskOptions = {}): Promise<Answer> {
  const { stream = false, maxTokens = 4, headers = {} } = options;
  const sentAtMs = performance.now();
  const body = { model: MODEL, prompt, max_tokens: maxTokens, ignore_eos: true };
  const usage = stream ? { stream, stream_options: { include_usage: true } } : {};
  try {
    const response = await fetch(`${url}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: JSON.stringify({ ...body, ...usage }),
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const text = await response.text();
    return {
      prompt,
      status: response.status,
      ...judge(response.status, text, stream, maxTokens),
      rung: response.headers.get("x-kedge-rung"),
      worker: response.headers.get("x-kedge-worker"),
      claimed: Number(response.headers.get("x-kedge-overlap-tokens")),
      retryAfter: response.headers.get("retry-after"),
      sentAtMs,
      costMs: performance.now() - sentAtMs,
    };
  } catch (thrown) {
    const nothing = { rung: null, worker: null, claimed: 0, cached: 0, retryAfter: null };
    return {
      prompt,
      status: 0,
      wrong: String(thrown),
      ...nothing,
      sentAtMs,
      costMs: performance.now() - sentAtMs,
    };
  }
}

/** Says what is wrong with an answer: everything else than all the tokens that were asked for and a proper end. */
function judge(
  status: number,
  text: string,
  stream: boolean,
  maxTokens: number,
): Pick<Answer, "wrong" | "cached"> {
  if (status !== 200) return { wrong: codeOf(text), cached: 0 };
  const parts = stream ? text.split("\n\n").filter((part) => part.startsWith("data: {")) : [`data: ${text}`];
  const usage = parts.map((part) => (JSON.parse(part.slice(6)) as Reply).usage).find((one) => one != null);
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const failure = stream ? parts.find((part) => part.startsWith('data: {"error"')) : undefined;
  if (failure !== undefined) return { wrong: `${IN_BAND}${codeOf(failure.slice(6))}`, cached };
  if (stream && !text.trimEnd().endsWith("data: [DONE]")) return { wrong: `cut: ${text}`, cached };
  return { wrong: usage?.completion_tokens === maxTokens ? null : `not whole: ${text}`, cached };
}

interface Reply {
  readonly usage?: {
    readonly completion_tokens: number;
    readonly prompt_tokens_details?: { readonly cached_tokens: number };
  } | null;
}

function codeOf(text: string): string {
  try {
    const { error } = JSON.parse(text) as { error?: { code?: string; message?: string } };
    return `${error?.code}: ${error?.message}`;
  } catch {
    return text;
  }
}

export interface LoadOptions {
  /** Requests under way at a time, spread over the gateways in turn. */
  readonly clients?: number;
  /** Of each client, between an answer and its next request. */
  readonly pauseMs?: number;
  readonly families?: number;
  readonly members?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Sends until it is stopped; every other request is streamed. */
export class Load {
  readonly answers: Answer[] = [];
  private readonly clients: Promise<void>[];
  private stopping = false;
  private turn = 0;

  constructor(urls: readonly string[], options: LoadOptions = {}) {
    const { clients = 2 * urls.length, ...rest } = options;
    this.clients = Array.from({ length: clients }, (_, i) => this.run(urls[i % urls.length]!, rest));
  }

  /** Answers to what was sent from then on. */
  since(atMs: number): Answer[] {
    return this.answers.filter(({ sentAtMs }) => sentAtMs >= atMs);
  }

  /** All that were answered lately, of requests sent from then on, were on this rung. */
  isOn(rung: string, sinceMs = Number.NEGATIVE_INFINITY): boolean {
    const last = this.since(sinceMs).slice(-LATELY);
    return last.length === LATELY && last.every((answer) => answer.rung === rung);
  }

  get prompts(): Prompt[] {
    return this.answers.map(({ prompt }) => prompt);
  }

  get wrong(): Answer[] {
    return this.answers.filter(({ wrong }) => wrong !== null);
  }

  /** Without streams that were under way at this moment and had begun: for those nobody else can go on, and they said so (design D9). */
  wrongBut(atMs: number): Answer[] {
    const isCut = ({ wrong, sentAtMs, costMs }: Answer) =>
      wrong!.startsWith(IN_BAND) && sentAtMs <= atMs && sentAtMs + costMs >= atMs;
    return this.wrong.filter((answer) => !isCut(answer));
  }

  /** Resolves when the last answer is there. */
  async stop(): Promise<void> {
    this.stopping = true;
    await Promise.all(this.clients);
  }

  private async run(url: string, options: LoadOptions): Promise<void> {
    const { pauseMs = 15, families = 4, members = 12, headers = {} } = options;
    while (!this.stopping) {
      const turn = this.turn++;
      // Two steps without a common divisor visit every prompt in an order that looks like none.
      const prompt = promptOf((turn * 5) % families, (turn * 7) % members);
      this.answers.push(await ask(url, prompt, { stream: turn % 2 === 0, headers }));
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  }
}

export function median(figures: readonly number[]): number {
  return [...figures].sort((a, b) => a - b)[Math.floor(figures.length / 2)] ?? Number.NaN;
}
