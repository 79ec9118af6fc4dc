/** Reads and checks what chat and completion requests share, refusing what vLLM refuses in its words. */

import type { Engine } from "../engine.ts";
import { badRequest, notFoundError, type ValidationIssue, validationError } from "./errors.ts";

export type Body = Readonly<Record<string, unknown>>;

export interface SamplingParams {
  readonly model: string;
  readonly adapter: string | null;
  readonly stream: boolean;
  readonly includeUsage: boolean;
  readonly continuousUsage: boolean;
  readonly n: number;
  /** As asked; null where absent. */
  readonly maxTokens: number | null;
  readonly minTokens: number;
  readonly seed: number;
  readonly deterministic: boolean;
  readonly ignoreEos: boolean;
  readonly stop: readonly string[];
  readonly includeStop: boolean;
  readonly salt: string | null;
  readonly priority: number;
  readonly sessionId: string | null;
  readonly returnTokenIds: boolean;
  readonly allowed: readonly number[] | null;
  /** The mock's own field `mock_output_token_ids`: the answer's tokens, one by one. */
  readonly forcedTokens: readonly number[] | null;
  readonly forcedText: string | null;
  readonly schema: unknown;
  readonly streamInterval: number;
  readonly reportFull: boolean;
  readonly transfer: Body | null;
}

const FLOATS = [
  "temperature",
  "top_p",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "min_p",
];
const INTEGERS = [
  "n",
  "max_tokens",
  "max_completion_tokens",
  "min_tokens",
  "seed",
  "top_k",
  "priority",
  "stream_interval",
];
const MAX_LOGPROBS = 20;
const MAX_SALT = 128;

/** Field types, before anything is made of them. Errors: 400 that names every wrong field. */
export function checkTypes(body: Body): void {
  const issues: ValidationIssue[] = [];
  for (const field of FLOATS) {
    const issue = numberIssue(body[field], field, "float", "number");
    if (issue !== null) issues.push(issue);
  }
  for (const field of INTEGERS) {
    const issue = numberIssue(body[field], field, "int", "integer");
    if (issue !== null) issues.push(issue);
  }
  if (issues.length > 0) throw validationError(issues);
}

function numberIssue(value: unknown, field: string, kind: string, noun: string): ValidationIssue | null {
  if (value === undefined || value === null || typeof value === "boolean") return null;
  const loc = `body.${field}`;
  if (typeof value === "number") {
    if (kind === "float" || Number.isInteger(value)) return null;
    const msg = "Input should be a valid integer, got a number with a fractional part";
    return { type: "int_from_float", loc, msg, input: value };
  }
  if (typeof value === "string") {
    if (value.trim() !== "" && Number.isFinite(Number(value))) return null;
    const msg = `Input should be a valid ${noun}, unable to parse string as a${kind === "int" ? "n integer" : " number"}`;
    return { type: `${kind}_parsing`, loc, msg, input: value };
  }
  return { type: `${kind}_type`, loc, msg: `Input should be a valid ${noun}`, input: value };
}

export function numberField(body: Body, field: string): number | null {
  const value = body[field];
  return value === undefined || value === null ? null : Number(value);
}

function stringList(value: unknown): string[] {
  if (typeof value === "string") return [value];
  return Array.isArray(value) ? value.filter((item): item is string => typeof item === "string") : [];
}

function idList(value: unknown): number[] | null {
  return Array.isArray(value) ? value.filter((item): item is number => Number.isInteger(item)) : null;
}

function object(value: unknown): Body {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Body) : {};
}

/** The model that a request names; none means the first one. Errors: 404. */
export function resolveModel(engine: Engine, body: Body): { model: string; adapter: string | null } {
  const { servedModelNames } = engine.config;
  const asked = body.model;
  if (asked === undefined || asked === null || asked === "")
    return { model: servedModelNames[0]!, adapter: null };
  const model = String(asked);
  if (servedModelNames.includes(model)) return { model, adapter: null };
  if (engine.adapters.has(model)) return { model, adapter: model };
  const aliases = [...servedModelNames, ...engine.adapters.keys()].join(", ");
  throw notFoundError(`The model \`${model}\` does not exist. Valid aliases: ${aliases}.`, "model");
}

/** Errors: 400, 404. */
export function readParams(
  engine: Engine,
  body: Body,
  headers: Readonly<Record<string, string | undefined>>,
): SamplingParams {
  const { model, adapter } = resolveModel(engine, body);
  const stream = body.stream === true;
  if (!stream && body.stream_options !== undefined && body.stream_options !== null) {
    throw badRequest(
      "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
      "stream_options",
    );
  }
  const streamOptions = object(body.stream_options);
  const forceUsage = engine.config.enableForceIncludeUsage;
  const structured = object(body.structured_outputs);
  const format = object(body.response_format);
  const temperature = numberField(body, "temperature");
  checkSampling(engine, body, temperature);
  return {
    model,
    adapter,
    stream,
    includeUsage: streamOptions.include_usage === true || forceUsage,
    continuousUsage: streamOptions.continuous_usage_stats === true || forceUsage,
    n: numberField(body, "n") ?? 1,
    maxTokens: numberField(body, "max_completion_tokens") ?? numberField(body, "max_tokens"),
    minTokens: numberField(body, "min_tokens") ?? 0,
    seed: numberField(body, "seed") ?? engine.config.seed,
    deterministic: temperature === 0,
    ignoreEos: body.ignore_eos === true,
    stop: stringList(body.stop).filter((text) => text !== ""),
    includeStop: body.include_stop_str_in_output === true,
    salt: readSalt(body.cache_salt),
    priority: numberField(body, "priority") ?? 0,
    sessionId: typeof body.session_id === "string" ? body.session_id : (headers["x-session-id"] ?? null),
    returnTokenIds: body.return_token_ids === true,
    allowed: idList(body.allowed_token_ids),
    forcedTokens: idList(body.mock_output_token_ids),
    forcedText: stringList(structured.choice)[0] ?? null,
    schema:
      structured.json ?? (format.type === "json_schema" ? object(format.json_schema).schema : undefined),
    streamInterval: numberField(body, "stream_interval") ?? engine.config.streamInterval,
    reportFull: object(body.vllm_xargs).kv_cache_report_mode === "full",
    transfer:
      engine.config.kvTransfer !== null && typeof body.kv_transfer_params === "object"
        ? (body.kv_transfer_params as Body | null)
        : null,
  };
}

/** vLLM's default bound (VLLM_MAX_N_SEQUENCES) on the sequences of one request. */
const MAX_SEQUENCES = 16_384;

function checkSampling(engine: Engine, body: Body, temperature: number | null): void {
  const n = numberField(body, "n");
  if (n !== null && n < 1) throw badRequest(`n must be at least 1, got ${n}.`);
  if (n !== null && n > MAX_SEQUENCES) throw badRequest(`n must be at most ${MAX_SEQUENCES}, got ${n}.`);
  if (temperature !== null && temperature < 0) {
    const shown = Number.isInteger(temperature) ? `${temperature}.0` : String(temperature);
    throw badRequest(
      `temperature must be non-negative, got ${shown}. (parameter=temperature, value=${shown})`,
      "temperature",
    );
  }
  for (const field of ["max_completion_tokens", "max_tokens"]) {
    const limit = numberField(body, field);
    if (limit === null) continue;
    if (limit < 1) {
      throw badRequest(
        `max_tokens must be at least 1, got ${limit}. (parameter=max_tokens, value=${limit})`,
        "max_tokens",
      );
    }
    const longest = engine.config.maxModelLen;
    if (limit > longest) {
      throw badRequest(
        `max_tokens=${limit} cannot be greater than max_model_len=${longest}. Please request fewer output tokens. (parameter=max_tokens, value=${limit})`,
        "max_tokens",
      );
    }
  }
  const logprobs =
    numberField(body, "top_logprobs") ?? (typeof body.logprobs === "number" ? body.logprobs : null);
  if (logprobs !== null && logprobs > MAX_LOGPROBS) {
    throw badRequest(
      `Requested sample logprobs of ${logprobs}, which is greater than max allowed: ${MAX_LOGPROBS} (parameter=logprobs, value=${logprobs})`,
      "logprobs",
    );
  }
}

/** `cache_salt` as vLLM 0.32 takes it. Errors: 400. */
function readSalt(value: unknown): string | null {
  if (value === undefined || value === null) return null;
  if (typeof value !== "string" || value === "") {
    throw badRequest(
      "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
      "cache_salt",
    );
  }
  if ([...value].length > MAX_SALT || /[@/\\\0]/.test(value)) {
    throw badRequest(
      "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL. (parameter=cache_salt)",
      "cache_salt",
    );
  }
  return value;
}

/** The rank that a request is pinned to, or null. Errors: 400 for a rank that does not exist; what is no number is ignored. */
export function pinnedRank(engine: Engine, header: string | undefined): number | null {
  if (header === undefined || !/^\s*[+-]?\d+\s*$/.test(header)) return null;
  const rank = Number(header);
  if (rank < 0 || rank >= engine.rankCount) {
    throw badRequest(`data_parallel_rank ${rank} is out of range [0, ${engine.rankCount}).`);
  }
  return rank;
}

/** Errors: 400 for a prompt that leaves no room for an answer. */
export function checkPromptLength(engine: Engine, tokens: number): void {
  const longest = engine.config.maxModelLen;
  if (tokens < longest) return;
  // vLLM cuts a prompt that is too long one token past the limit before it counts.
  const counted = Math.min(tokens, longest + 1);
  throw badRequest(
    `This model's maximum context length is ${longest} tokens. However, your prompt contains at least ${counted} input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=${counted})`,
    "input_tokens",
  );
}
