/** Serves a generation in a dialect: streamed or whole, with usage, errors in-band or not, and client aborts. */

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Engine } from "../engine.ts";
import type { RequestFaults } from "../misbehaviour.ts";
import { internalError } from "./errors.ts";
import { type ChoiceDelta, Generation, type GenerationRequest, type Usage } from "./generation.ts";
import { EventStream, sendJson } from "./stream.ts";

/** One HTTP request under way. */
export interface Exchange {
  readonly engine: Engine;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** The body as text. */
  readonly text: string;
  readonly faults: RequestFaults;
  readonly arrivalMs: number;
}

/** What chat and completions write differently. Strings are JSON. */
export interface Dialect {
  /** Sent before a choice's first delta, for all choices at once. */
  opening(generation: Generation): string[];
  /** A delta's chunks; `last`: nothing but the usage may follow. */
  chunks(delta: ChoiceDelta, generation: Generation, last: boolean): string[];
  usageChunk(generation: Generation): string;
  /** The chunk that says `finish_reason: "error"`. */
  errorChunk(generation: Generation): string;
  body(generation: Generation): object;
  errorBody(generation: Generation): object;
}

/** `json.dumps` of vLLM's error in a stream: it alone has spaces. */
const STREAM_ERROR =
  '{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}';

export function serveGeneration(exchange: Exchange, request: GenerationRequest, dialect: Dialect): void {
  const { engine, response, faults } = exchange;
  const { clock } = engine.config;
  const stream = request.params.stream ? new EventStream(response, faults, clock) : null;
  const listener =
    stream === null
      ? wholeListener(exchange, dialect, () => generation)
      : streamListener(stream, dialect, () => generation);
  const generation: Generation = new Generation(engine, request, listener);
  response.once("close", () => {
    if (!response.writableFinished) generation.abort();
  });
  generation.start();
}

type Listener = ConstructorParameters<typeof Generation>[2];

function streamListener(stream: EventStream, dialect: Dialect, current: () => Generation): Listener {
  let open = 0;
  const begin = (): void => {
    if (open++ > 0) return;
    for (const chunk of dialect.opening(current())) stream.send(chunk);
  };
  return {
    delta(delta) {
      begin();
      const generation = current();
      const last = delta.finish !== null && generation.remaining === 1;
      for (const chunk of dialect.chunks(delta, generation, last)) stream.send(chunk);
    },
    ended() {
      if (current().request.params.includeUsage) stream.send(dialect.usageChunk(current()));
      stream.end();
    },
    failed() {
      begin();
      stream.send(STREAM_ERROR);
      stream.end();
    },
    fault(kind) {
      if (kind === "stall") stream.silence();
      else if (kind === "cut") stream.cut();
      else {
        begin();
        stream.send(dialect.errorChunk(current()));
        stream.end();
      }
    },
  };
}

function wholeListener(
  { engine, response, faults }: Exchange,
  dialect: Dialect,
  current: () => Generation,
): Listener {
  let silent = false;
  const answer = (status: number, body: () => object): void => {
    const send = (): void => {
      if (!silent) sendJson(response, status, body());
    };
    const { clock } = engine.config;
    if (faults.firstByteDelayMs === 0) send();
    else clock.at(clock.nowMs() + faults.firstByteDelayMs, send);
  };
  return {
    delta: () => undefined,
    ended: () => answer(200, () => dialect.body(current())),
    failed: () => answer(500, () => internalError("Internal server error").body),
    fault(kind) {
      if (kind === "stall") silent = true;
      else if (kind === "cut") response.destroy();
      else answer(200, () => dialect.errorBody(current()));
    },
  };
}

/** Usage of a whole answer. */
export function usageBody(engine: Engine, usage: Usage, created: number | null): object {
  const details = {
    cached_tokens: usage.cachedTokens,
    created_cache_tokens: created,
    multimodal_tokens: null,
  };
  return {
    prompt_tokens: usage.promptTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    completion_tokens: usage.completionTokens,
    prompt_tokens_details: engine.config.enablePromptTokensDetails ? details : null,
    completion_tokens_details: null,
  };
}

/** Usage at a stream's end; `created` is left out where undefined. */
export function streamUsage(engine: Engine, usage: Usage, created: number | undefined): object {
  return {
    prompt_tokens: usage.promptTokens,
    total_tokens: usage.promptTokens + usage.completionTokens,
    completion_tokens: usage.completionTokens,
    ...(engine.config.enablePromptTokensDetails
      ? { prompt_tokens_details: { cached_tokens: usage.cachedTokens, created_cache_tokens: created } }
      : {}),
  };
}
