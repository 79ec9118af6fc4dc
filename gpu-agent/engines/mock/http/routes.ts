/** The routes beside generation: models, tokenizer, health, cache and adapter administration, and the mock's own. */

import { randomBytes } from "node:crypto";
import { z } from "zod";
import { VLLM_VERSION } from "../engine.ts";
import { rankEndpoint } from "../kv-publisher.ts";
import { checkMessages, renderChat } from "./chat.ts";
import { badRequest, HttpError, notFoundError, validationError } from "./errors.ts";
import { metricsText } from "./exposition.ts";
import { type Body, resolveModel } from "./params.ts";
import { readBody } from "./request.ts";
import type { Exchange } from "./serve.ts";
import { sendBody, sendJson } from "./stream.ts";

export type Handler = (exchange: Exchange) => void | Promise<void>;

const ok = ({ response }: Exchange, body: object): void => sendJson(response, 200, body);
const empty = ({ response }: Exchange): void => sendBody(response, 200, null);
const text = ({ response }: Exchange, body: string): void =>
  sendBody(response, 200, body, { contentType: "text/plain; charset=utf-8" });

export const metrics: Handler = ({ engine, response }) =>
  sendBody(response, 200, metricsText(engine), { contentType: "text/plain; version=0.0.4; charset=utf-8" });

export const health: Handler = empty;
export const version: Handler = (exchange) => ok(exchange, { version: VLLM_VERSION });
export const isSleeping: Handler = (exchange) => ok(exchange, { is_sleeping: false });
export const isPaused: Handler = (exchange) => ok(exchange, { is_paused: false });

export const models: Handler = (exchange) => {
  const { engine } = exchange;
  const { servedModelNames, maxModelLen } = engine.config;
  const created = Math.floor(engine.config.clock.unixSeconds());
  const base = servedModelNames.map((id) =>
    modelCardBody(id, servedModelNames[0]!, null, maxModelLen, created),
  );
  const adapters = [...engine.adapters.values()].map(({ name, path }) =>
    modelCardBody(name, path, servedModelNames[0]!, null, created),
  );
  ok(exchange, { object: "list", data: [...base, ...adapters] });
};

function modelCardBody(
  id: string,
  root: string,
  parent: string | null,
  maxModelLen: number | null,
  created: number,
): object {
  const permission = {
    id: `modelperm-${randomBytes(8).toString("hex")}`,
    object: "model_permission",
    created,
    allow_create_engine: false,
    allow_sampling: true,
    allow_logprobs: true,
    allow_search_indices: false,
    allow_view: true,
    allow_fine_tuning: false,
    organization: "*",
    group: null,
    is_blocking: false,
  };
  return {
    id,
    object: "model",
    created,
    owned_by: "vllm",
    root,
    parent,
    max_model_len: maxModelLen,
    permission: [permission],
  };
}

/** Where KV events come from, per rank; only `endpoint`s are the real ones where port 0 was asked for. */
export const kvEventSources: Handler = (exchange) => {
  const { engine } = exchange;
  const { kvEvents } = engine.config;
  if (kvEvents === null) return ok(exchange, {});
  const ranks = Array.from({ length: engine.rankCount }, (_, rank) => {
    const publisher = engine.publisher(rank);
    const configured =
      kvEvents.replay_endpoint === null ? null : rankEndpoint(kvEvents.replay_endpoint, rank);
    const { enable_kv_cache_events, buffer_steps, hwm, max_queue_size, topic } = kvEvents;
    const source = {
      enable_kv_cache_events,
      publisher: publisher === null ? "null" : "zmq",
      endpoint: publisher?.endpoint ?? rankEndpoint(kvEvents.endpoint, rank),
      replay_endpoint: publisher?.replayEndpoint ?? configured,
      buffer_steps,
      hwm,
      max_queue_size,
      topic,
    };
    return [String(rank), source] as const;
  });
  return ok(exchange, Object.fromEntries(ranks));
};

export const tokenize: Handler = (exchange) => {
  const { engine, request, text: raw } = exchange;
  const body = readBody(request, raw);
  resolveModel(engine, body);
  if (body.messages !== undefined) checkMessages(body);
  else if (typeof body.prompt !== "string") {
    throw validationError([{ type: "missing", loc: "body.prompt", msg: "Field required", input: body }]);
  }
  const prompt = body.messages === undefined ? String(body.prompt) : renderChat(engine, raw);
  const tokens = engine.tokenizer.encode(prompt);
  const strings = body.return_token_strs === true ? tokens.map((id) => engine.tokenizer.piece(id)) : null;
  ok(exchange, {
    count: tokens.length,
    max_model_len: engine.config.maxModelLen,
    tokens,
    token_strs: strings,
  });
};

export const detokenize: Handler = (exchange) => {
  const { engine, request, text: raw } = exchange;
  const body = readBody(request, raw);
  resolveModel(engine, body);
  const { tokens } = body;
  if (!Array.isArray(tokens)) {
    throw validationError([{ type: "missing", loc: "body.tokens", msg: "Field required", input: body }]);
  }
  ok(exchange, { prompt: engine.tokenizer.decode(tokens.map(Number)) });
};

export const resetPrefixCache: Handler = (exchange) =>
  ok(exchange, { success: exchange.engine.resetPrefixCache() });

export const loadAdapter: Handler = (exchange) => {
  const { engine } = exchange;
  const { lora_name: name, lora_path: path } = adapterFields(exchange);
  if (name === "" || path === "") throw badRequest("Both 'lora_name' and 'lora_path' must be provided.");
  if (engine.adapters.has(name)) {
    throw badRequest(
      `The lora adapter '${name}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.`,
    );
  }
  if (path === "nowhere")
    throw notFoundError(`Loading lora ${name} failed: No adapter found for ${path}`, null);
  engine.loadAdapter(name, path);
  text(exchange, `Success: LoRA adapter '${name}' added successfully.`);
};

export const unloadAdapter: Handler = (exchange) => {
  const { lora_name: name } = adapterFields(exchange);
  if (!exchange.engine.unloadAdapter(name))
    throw notFoundError(`The lora adapter '${name}' cannot be found.`, null);
  text(exchange, `Success: LoRA adapter '${name}' removed successfully.`);
};

function adapterFields({ request, text: raw }: Exchange): { lora_name: string; lora_path: string } {
  const body: Body = readBody(request, raw);
  const field = (name: string): string => (typeof body[name] === "string" ? body[name] : "");
  return { lora_name: field("lora_name"), lora_path: field("lora_path") };
}

/** The mock's own: what it does wrong from now on. `{"reset": true}` first makes it behave. */
export const misbehave: Handler = (exchange) => {
  const { engine, request, text: raw } = exchange;
  const { reset, ...patch } = readBody(request, raw);
  if (reset === true) engine.misbehaviour.reset();
  try {
    engine.misbehaviour.set(patch);
  } catch (error) {
    if (error instanceof z.ZodError) throw new HttpError(400, { error: z.prettifyError(error) });
    throw error;
  }
  ok(exchange, engine.misbehaviour.state);
};

export const misbehaviour: Handler = (exchange) => ok(exchange, exchange.engine.misbehaviour.state);

/** The mock's own: the truth about one rank's cache. Hashes as 16 hex digits. */
export const blocks: Handler = (exchange) => {
  const { engine, request } = exchange;
  const rank = Number(new URL(request.url ?? "/", "http://mock").searchParams.get("rank") ?? 0);
  if (!(rank >= 0 && rank < engine.rankCount))
    throw badRequest(`rank ${rank} is out of range [0, ${engine.rankCount}).`);
  const hex = (hash: bigint | null): string | null =>
    hash === null ? null : hash.toString(16).padStart(16, "0");
  ok(
    exchange,
    engine.blockTable(rank).map((row) => ({ ...row, hash: hex(row.hash), parent: hex(row.parent) })),
  );
};

export const stats: Handler = (exchange) =>
  ok(
    exchange,
    exchange.engine
      .stats()
      .map((one) => ({ ...one, nextSeq: one.nextSeq === null ? null : Number(one.nextSeq) })),
  );
