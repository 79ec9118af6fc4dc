/** Reads `usage`, failures and ends out of OpenAI-dialect answers. */

/** Token counts as an engine reports them. */
export interface Usage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Null: the engine does not say. An explicit null inside `prompt_tokens_details` is vLLM 0.23's way to say 0. */
  readonly cachedTokens: number | null;
}

export type JsonRecord = { readonly [name: string]: unknown };

export function isRecord(value: unknown): value is JsonRecord {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Null if the text is not JSON. */
export function tryParse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const count = (value: unknown): number | null =>
  typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : null;

export function readUsage(answer: JsonRecord): Usage | null {
  const usage = answer.usage;
  if (!isRecord(usage)) return null;
  const promptTokens = count(usage.prompt_tokens);
  if (promptTokens === null) return null;
  const details = usage.prompt_tokens_details;
  const cached = isRecord(details)
    ? details.cached_tokens === null
      ? 0
      : count(details.cached_tokens)
    : null;
  return { promptTokens, completionTokens: count(usage.completion_tokens) ?? 0, cachedTokens: cached };
}

/** True for the extra last chunk that `include_usage` asks for: usage and no choices. */
export function isUsageChunk(answer: JsonRecord): boolean {
  return Array.isArray(answer.choices) && answer.choices.length === 0 && isRecord(answer.usage);
}

/**
 * True for a chat chunk that names the speaker and says nothing: vLLM sends one ahead of the first token, and also ahead of a failure
 * that comes instead of it (recorded in test/fixtures/vllm/pd-nixl/pull.jsonl).
 */
export function isPreamble({ choices }: JsonRecord): boolean {
  return Array.isArray(choices) && choices.length > 0 && choices.every(saysNothing);
}

function saysNothing(choice: unknown): boolean {
  if (!isRecord(choice) || !isRecord(choice.delta) || (choice.finish_reason ?? null) !== null) return false;
  return Object.entries(choice.delta).every(([name, value]) => name === "role" || isEmpty(value));
}

function isEmpty(value: unknown): boolean {
  return value === null || value === "" || (Array.isArray(value) && value.length === 0);
}

/** A failure that an engine reports in a body. */
export interface Failure {
  readonly message: string;
  /** HTTP status that the engine gives for it in the body; null if it gives none. */
  readonly status: number | null;
}

/**
 * The failure that hides behind a 200: an `error` member, vLLM's old flat error, or a choice that ended by `error`.
 * Null if the answer is no failure.
 */
export function readFailure(answer: JsonRecord): Failure | null {
  const error = answer.error;
  if (error !== undefined && error !== null) return failureOf(isRecord(error) ? error : { message: error });
  if (answer.object === "error") return failureOf(answer);
  const choices = answer.choices;
  if (
    Array.isArray(choices) &&
    choices.some((choice) => isRecord(choice) && choice.finish_reason === "error")
  ) {
    return { message: "generation failed", status: null };
  }
  return null;
}

function failureOf(error: JsonRecord): Failure {
  const status = count(error.code);
  return {
    message: typeof error.message === "string" ? error.message : "unknown error",
    status: status !== null && status >= 400 && status < 600 ? status : null,
  };
}
