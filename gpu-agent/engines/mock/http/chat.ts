/** POST /v1/chat/completions. */

import { KedgeError } from "../../../../src/errors/index.ts";
import { parseJson } from "../../../../src/json/index.ts";
import { ChatRenderer } from "../../../../src/prefix/render/index.ts";
import type { Engine } from "../engine.ts";
import { modelCard } from "../model.ts";
import { badRequest, validationError } from "./errors.ts";
import type { ChoiceDelta, Generation } from "./generation.ts";
import { chatLogprobs } from "./logprobs.ts";
import { type Body, checkPromptLength, checkTypes, pinnedRank, readParams } from "./params.ts";
import { readBody, requestId } from "./request.ts";
import { sampleOf } from "./schema.ts";
import { type Dialect, type Exchange, serveGeneration, streamUsage, usageBody } from "./serve.ts";
import { planTools, readCalls, ToolDeltas, type ToolPlan } from "./tools.ts";

const renderer = new ChatRenderer(modelCard(), { now: () => Date.now() });

/** A chat's prompt as text. Errors: 400. */
export function renderChat(engine: Engine, text: string): string {
  try {
    const rendered = renderer.renderChat(parseJson(text));
    if (rendered.kind === "text" && rendered.complete) return rendered.text;
    if (rendered.kind === "unkeyed") throw badRequest(rendered.reason);
    throw badRequest(`${engine.config.servedModelNames[0]} is not a multimodal model`);
  } catch (error) {
    if (error instanceof KedgeError && error.kind.status === 400) throw badRequest(error.message);
    throw error;
  }
}

/** Errors: 400 for messages that are none. */
export function checkMessages(body: Body): void {
  const { messages } = body;
  if (messages === undefined) {
    throw validationError([{ type: "missing", loc: "body.messages", msg: "Field required", input: body }]);
  }
  if (!Array.isArray(messages)) {
    const msg = "Input should be a valid list";
    throw validationError([{ type: "list_type", loc: "body.messages", msg, input: messages }]);
  }
  if (messages.length === 0) {
    throw badRequest("Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
}

export function chatCompletions(exchange: Exchange): void {
  const { engine, request, text, faults, arrivalMs } = exchange;
  const body = readBody(request, text);
  checkTypes(body);
  checkMessages(body);
  const params = readParams(engine, body, headersOf(exchange));
  const tools = planTools(engine, body);
  const rank = pinnedRank(engine, headersOf(exchange)["x-data-parallel-rank"]);
  const promptText = renderChat(engine, text);
  const prompt = engine.tokenizer.encode(promptText);
  checkPromptLength(engine, prompt.length);
  const schemaText = params.schema === undefined ? null : JSON.stringify(sampleOf(params.schema));
  const forcedText = params.forcedText ?? tools?.text ?? schemaText;
  const forced = params.forcedTokens ?? (forcedText === null ? [] : engine.tokenizer.encode(forcedText));
  serveGeneration(
    exchange,
    {
      id: `chatcmpl-${requestId(body, headersOf(exchange))}`,
      params,
      prompts: [prompt],
      forced: { tokens: forced, ends: forcedText !== null },
      defaultMaxTokens: null,
      rank,
      faults,
      arrivalMs,
    },
    new ChatDialect(engine, body, promptText, tools, forcedText),
  );
}

function headersOf({ request }: Exchange): Readonly<Record<string, string | undefined>> {
  return request.headers as Readonly<Record<string, string | undefined>>;
}

class ChatDialect implements Dialect {
  readonly #engine: Engine;
  readonly #body: Body;
  readonly #promptText: string;
  readonly #tools: ToolPlan | null;
  readonly #forcedText: string | null;
  readonly #created: number;
  readonly #toolDeltas = new Map<number, ToolDeltas>();
  /** Token ids of deltas that had no chunk of their own. */
  readonly #unsent = new Map<number, number[]>();
  #head = "";

  constructor(
    engine: Engine,
    body: Body,
    promptText: string,
    tools: ToolPlan | null,
    forcedText: string | null,
  ) {
    this.#engine = engine;
    this.#body = body;
    this.#promptText = promptText;
    this.#tools = tools;
    this.#forcedText = forcedText;
    this.#created = Math.floor(engine.config.clock.unixSeconds());
  }

  opening(generation: Generation): string[] {
    const { params, prompts } = generation.request;
    const { continuousUsage, returnTokenIds } = params;
    const ids = returnTokenIds ? prompts[0] : null;
    const text = this.#body.return_prompt_text === true ? this.#promptText : null;
    const tail = `,"prompt_token_ids":${JSON.stringify(ids)},"prompt_text":${JSON.stringify(text)}}`;
    const usage = continuousUsage ? this.#running(generation, 0) : "";
    return generation.outputs.map(
      (_, index) =>
        `${this.#start(generation)}{"index":${index},"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]${usage}${tail}`,
    );
  }

  chunks(delta: ChoiceDelta, generation: Generation, last: boolean): string[] {
    const { params } = generation.request;
    const unsent = [...(this.#unsent.get(delta.index) ?? []), ...delta.tokenIds];
    const deltas = this.#deltas(delta);
    if (delta.finish !== null && deltas.length === 0) deltas.push(this.#emptyDelta());
    this.#unsent.set(delta.index, deltas.length === 0 ? unsent : []);
    const logprobs =
      this.#body.logprobs === true ? JSON.stringify(chatLogprobs(this.#engine.tokenizer, unsent)) : "null";
    return deltas.map((json, i) => {
      const final = i === deltas.length - 1;
      const finish = final && delta.finish !== null ? this.#finish(delta) : '"finish_reason":null';
      const ids = params.returnTokenIds && final ? JSON.stringify(unsent) : "null";
      const usage = params.continuousUsage
        ? this.#running(generation, generation.outputs[delta.index]!.tokenIds.length)
        : "";
      const fingerprint =
        final && last && !params.includeUsage
          ? `,"system_fingerprint":"${this.#engine.life.fingerprint}"`
          : "";
      return `${this.#start(generation)}{"index":${delta.index},"delta":${json},"logprobs":${logprobs},${finish},"token_ids":${ids}}]${usage}${fingerprint}}`;
    });
  }

  usageChunk(generation: Generation): string {
    const { usage } = generation;
    const shown = JSON.stringify(streamUsage(this.#engine, usage, usage.createdCacheTokens));
    return `${this.#start(generation)}],"usage":${shown},"system_fingerprint":"${this.#engine.life.fingerprint}"}`;
  }

  errorChunk(generation: Generation): string {
    return `${this.#start(generation)}{"index":0,"delta":{},"logprobs":null,"finish_reason":"error","stop_reason":null,"token_ids":null}]}`;
  }

  body(generation: Generation): object {
    const { params, prompts, id } = generation.request;
    const choices = generation.outputs.map((output, index) => {
      const { content, calls } =
        this.#tools === null ? { content: output.text, calls: [] } : readCalls(output.text);
      return {
        index,
        message: message(
          calls.length > 0 && content === "" && this.#tools?.choice === "auto" ? null : content,
          calls,
        ),
        logprobs: this.#body.logprobs === true ? chatLogprobs(this.#engine.tokenizer, output.tokenIds) : null,
        finish_reason:
          output.finish === "stop" && this.#saysToolCalls(calls.length) ? "tool_calls" : output.finish,
        stop_reason: output.stopReason,
        token_ids: params.returnTokenIds ? output.tokenIds : null,
        routed_experts: null,
      };
    });
    const ids = params.returnTokenIds ? prompts[0] : null;
    return this.#whole(id, params.model, generation, choices, ids);
  }

  errorBody(generation: Generation): object {
    const { params, id } = generation.request;
    const choice = {
      index: 0,
      message: { role: "assistant" },
      logprobs: null,
      finish_reason: "error",
      stop_reason: null,
    };
    return this.#whole(id, params.model, generation, [choice], null);
  }

  #whole(id: string, model: string, generation: Generation, choices: object[], ids: unknown): object {
    const { usage } = generation;
    return {
      id,
      object: "chat.completion",
      created: this.#created,
      model,
      choices,
      service_tier: null,
      system_fingerprint: this.#engine.life.fingerprint,
      usage: usageBody(this.#engine, usage, usage.createdCacheTokens),
      prompt_logprobs: null,
      prompt_token_ids: ids,
      prompt_text: this.#body.return_prompt_text === true ? this.#promptText : null,
      kv_transfer_params: generation.transferParams,
      ec_transfer_params: null,
      metrics: null,
    };
  }

  /** Everything before the choice; equal in all chunks of a stream. */
  #start(generation: Generation): string {
    if (this.#head === "") {
      const { id, params } = generation.request;
      this.#head = `{"id":${JSON.stringify(id)},"object":"chat.completion.chunk","created":${this.#created},"model":${JSON.stringify(params.model)},"choices":[`;
    }
    return this.#head;
  }

  #running(generation: Generation, completion: number): string {
    const prompt = generation.request.prompts[0]!.length;
    return `,"usage":{"prompt_tokens":${prompt},"total_tokens":${prompt + completion},"completion_tokens":${completion},"completion_tokens_details":null}`;
  }

  /** The deltas of a piece of text. A tool parser swallows empty ones. */
  #deltas(delta: ChoiceDelta): string[] {
    if (this.#tools !== null && this.#forcedText !== null) {
      const tools = this.#toolDeltas.get(delta.index) ?? new ToolDeltas(this.#forcedText);
      this.#toolDeltas.set(delta.index, tools);
      return tools.next(delta.text.length);
    }
    const silent = delta.text === "" && this.#engine.config.toolCallParser !== null;
    return silent ? [] : [`{"content":${JSON.stringify(delta.text)}}`];
  }

  #emptyDelta(): string {
    return this.#engine.config.toolCallParser === null ? '{"content":""}' : "{}";
  }

  #finish(delta: ChoiceDelta): string {
    const calls = this.#toolDeltas.get(delta.index)?.calls.length ?? 0;
    const reason = delta.finish === "stop" && this.#saysToolCalls(calls) ? "tool_calls" : delta.finish;
    return `"finish_reason":"${reason}","stop_reason":${JSON.stringify(delta.stopReason)}`;
  }

  /** A named call ends with `stop`, as OpenAI's do. */
  #saysToolCalls(calls: number): boolean {
    return calls > 0 && this.#tools !== null && this.#tools.choice !== "named";
  }
}

function message(content: string | null, calls: ReturnType<typeof readCalls>["calls"]): object {
  const toolCalls = calls.map(({ id, name, arguments: json }) => ({
    id,
    type: "function",
    function: { name, arguments: json },
  }));
  return {
    role: "assistant",
    content,
    refusal: null,
    annotations: null,
    audio: null,
    function_call: null,
    ...(toolCalls.length > 0 ? { tool_calls: toolCalls } : {}),
    reasoning: null,
  };
}
