/** POST /v1/completions. */

import type { Engine } from "../engine.ts";
import { badRequest } from "./errors.ts";
import type { ChoiceDelta, Generation } from "./generation.ts";
import { completionLogprobs } from "./logprobs.ts";
import { type Body, checkPromptLength, checkTypes, pinnedRank, readParams } from "./params.ts";
import { readBody, requestId } from "./request.ts";
import { sampleOf } from "./schema.ts";
import { type Dialect, type Exchange, serveGeneration, streamUsage, usageBody } from "./serve.ts";

/** What OpenAI's completions say where no limit is given. */
const DEFAULT_MAX_TOKENS = 16;

export function completions(exchange: Exchange): void {
  const { engine, request, text, faults, arrivalMs } = exchange;
  const headers = request.headers as Readonly<Record<string, string | undefined>>;
  const body = readBody(request, text);
  checkTypes(body);
  if (body.suffix !== undefined && body.suffix !== null) {
    throw badRequest("suffix is only supported for models with FIM completion rendering", "suffix");
  }
  const params = readParams(engine, body, headers);
  const rank = pinnedRank(engine, headers["x-data-parallel-rank"]);
  const prompts = readPrompts(engine, body.prompt);
  for (const prompt of prompts) checkPromptLength(engine, prompt.length);
  const forcedText =
    params.forcedText ?? (params.schema === undefined ? null : JSON.stringify(sampleOf(params.schema)));
  const forced = params.forcedTokens ?? (forcedText === null ? [] : engine.tokenizer.encode(forcedText));
  serveGeneration(
    exchange,
    {
      id: `cmpl-${requestId(body, headers)}`,
      params,
      prompts,
      forced: { tokens: forced, ends: forcedText !== null },
      defaultMaxTokens: DEFAULT_MAX_TOKENS,
      rank,
      faults,
      arrivalMs,
    },
    new CompletionDialect(engine, body),
  );
}

/** One prompt or several, as text or token ids. Errors: 400. */
function readPrompts(engine: Engine, value: unknown): (readonly number[])[] {
  if (value === undefined || value === null || value === "") {
    throw badRequest(
      "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
      "prompt",
    );
  }
  if (typeof value === "string") return [engine.tokenizer.encode(value)];
  if (!Array.isArray(value))
    throw badRequest("prompt must be a string, array of strings, array of tokens, or array of token arrays");
  if (value.length === 0) throw badRequest("You must pass at least one prompt");
  if (value.every((item) => typeof item === "number")) return [checkIds(engine, value as number[])];
  return value.map((item) => {
    if (typeof item === "string" && item !== "") return engine.tokenizer.encode(item);
    if (Array.isArray(item) && item.length > 0) return checkIds(engine, item);
    throw badRequest("prompt must be a string, array of strings, array of tokens, or array of token arrays");
  });
}

function checkIds(engine: Engine, ids: readonly unknown[]): readonly number[] {
  const size = engine.config.vocabSize ?? engine.tokenizer.size;
  for (const id of ids) {
    if (!Number.isInteger(id) || (id as number) < 0 || (id as number) >= size) {
      throw badRequest(`Token id ${id} is out of vocabulary`);
    }
  }
  return ids as readonly number[];
}

class CompletionDialect implements Dialect {
  readonly #engine: Engine;
  readonly #body: Body;
  readonly #created: number;
  readonly #begun = new Set<number>();
  #head = "";

  constructor(engine: Engine, body: Body) {
    this.#engine = engine;
    this.#body = body;
    this.#created = Math.floor(engine.config.clock.unixSeconds());
  }

  opening(): string[] {
    return [];
  }

  chunks(delta: ChoiceDelta, generation: Generation, last: boolean): string[] {
    const { params } = generation.request;
    const { index, tokenIds } = delta;
    const first = !this.#begun.has(index);
    this.#begun.add(index);
    const text =
      first && this.#body.echo === true ? this.#promptText(generation, index) + delta.text : delta.text;
    const logprobs = this.#wantsLogprobs
      ? JSON.stringify(completionLogprobs(this.#engine.tokenizer, tokenIds))
      : "null";
    const prompt = params.returnTokenIds && first ? JSON.stringify(this.#prompt(generation, index)) : "null";
    const ids = params.returnTokenIds ? JSON.stringify(tokenIds) : "null";
    const usage = params.continuousUsage ? this.#running(generation, index) : "";
    const fingerprint =
      last && !params.includeUsage ? `,"system_fingerprint":"${this.#engine.life.fingerprint}"` : "";
    return [
      `${this.#start(generation)}{"index":${index},"text":${JSON.stringify(text)},"logprobs":${logprobs},"finish_reason":${JSON.stringify(delta.finish)},"stop_reason":${JSON.stringify(delta.stopReason)},"prompt_token_ids":${prompt},"token_ids":${ids}}]${usage}${fingerprint}}`,
    ];
  }

  usageChunk(generation: Generation): string {
    const shown = JSON.stringify(streamUsage(this.#engine, generation.usage, undefined));
    return `${this.#start(generation)}],"usage":${shown},"system_fingerprint":"${this.#engine.life.fingerprint}"}`;
  }

  errorChunk(generation: Generation): string {
    return `${this.#start(generation)}{"index":0,"text":"","logprobs":null,"finish_reason":"error","stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}`;
  }

  body(generation: Generation): object {
    const { params } = generation.request;
    const choices = generation.outputs.map((output, index) => ({
      index,
      text: (this.#body.echo === true ? this.#promptText(generation, index) : "") + output.text,
      logprobs: this.#wantsLogprobs ? completionLogprobs(this.#engine.tokenizer, output.tokenIds) : null,
      finish_reason: output.finish,
      stop_reason: output.stopReason,
      token_ids: params.returnTokenIds ? output.tokenIds : null,
      prompt_logprobs: null,
      prompt_token_ids: params.returnTokenIds ? this.#prompt(generation, index) : null,
      routed_experts: null,
    }));
    return this.#whole(generation, choices);
  }

  errorBody(generation: Generation): object {
    return this.#whole(generation, [
      { index: 0, text: "", logprobs: null, finish_reason: "error", stop_reason: null },
    ]);
  }

  get #wantsLogprobs(): boolean {
    return typeof this.#body.logprobs === "number";
  }

  #whole(generation: Generation, choices: object[]): object {
    const { id, params } = generation.request;
    return {
      id,
      object: "text_completion",
      created: this.#created,
      model: params.model,
      choices,
      service_tier: null,
      system_fingerprint: this.#engine.life.fingerprint,
      usage: usageBody(this.#engine, generation.usage, null),
      kv_transfer_params: generation.transferParams,
      ec_transfer_params: null,
      metrics: null,
    };
  }

  #start(generation: Generation): string {
    if (this.#head === "") {
      const { id, params } = generation.request;
      this.#head = `{"id":${JSON.stringify(id)},"object":"text_completion","created":${this.#created},"model":${JSON.stringify(params.model)},"choices":[`;
    }
    return this.#head;
  }

  #running(generation: Generation, index: number): string {
    const prompt = this.#prompt(generation, index).length;
    const completion = generation.outputs[index]!.tokenIds.length;
    return `,"usage":{"prompt_tokens":${prompt},"total_tokens":${prompt + completion},"completion_tokens":${completion}}`;
  }

  #prompt(generation: Generation, index: number): readonly number[] {
    const { prompts, params } = generation.request;
    return prompts[Math.floor(index / params.n)]!;
  }

  #promptText(generation: Generation, index: number): string {
    return this.#engine.tokenizer.decode(this.#prompt(generation, index));
  }
}
