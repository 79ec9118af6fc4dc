/** The model card: its schema, and how it is derived from a model's files (design D2). */

import { z } from "zod";
import { KedgeError } from "../errors/index.ts";
import { detectContentFormat } from "./render/content-format.ts";
import { parseTemplate } from "./render/jinja/ast.ts";
import { UnsupportedTemplate } from "./render/jinja/failures.ts";
import { readTokenizerFile, textRules } from "./tokenizer-file.ts";
import type { ModelCard, PrefixSchemeName } from "./types.ts";

/** Units that cards get when none is asked for: bytes per chunk, tokens per key block. */
export const DEFAULT_UNIT_SIZE: Readonly<Record<PrefixSchemeName, number>> = { bytes: 128, tokens: 16 };

const DEFAULT_BYTES_PER_TOKEN = 4;

/** Model types whose chats engines lay out in code of their own (Harmony): the template in their files is not what runs. */
const ENGINE_RENDERED: ReadonlySet<string> = new Set(["gpt_oss"]);

function isTimeZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat("en-US", { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

/** A card as JSON. Unknown fields are errors: a gateway must not half-understand a card. */
export const modelCardSchema: z.ZodType<ModelCard> = z.strictObject({
  version: z.literal(1),
  model: z.string().min(1),
  scheme: z.enum(["bytes", "tokens"]),
  unitSize: z.int().min(1).max(65_536),
  chatTemplate: z.string().nullable(),
  namedTemplates: z.record(z.string(), z.string()),
  contentFormat: z.enum(["string", "openai"]),
  bosToken: z.string().nullable(),
  eosToken: z.string().nullable(),
  specialTokens: z.record(z.string(), z.string()),
  addedPrefix: z.string().nullable(),
  normalizer: z.literal("NFC").nullable(),
  strippingTokens: z.array(
    z.strictObject({ content: z.string().min(1), lstrip: z.boolean(), rstrip: z.boolean() }),
  ),
  leadingSpace: z.enum(["always", "unless-space", "first-unless-space"]).nullable().optional(),
  addedTokens: z.array(z.string()).optional(),
  timeZone: z.string().refine(isTimeZone, "not an IANA time zone"),
  bytesPerToken: z.number().positive(),
  maxModelLen: z.int().positive().nullable(),
});

/** Checks a card that came from outside. Errors: `KedgeError` `config_invalid` naming the field. */
export function parseModelCard(json: unknown): ModelCard {
  const result = modelCardSchema.safeParse(json);
  if (result.success) return result.data;
  throw new KedgeError("config_invalid", `The model card is not valid: ${z.prettifyError(result.error)}`);
}

/** A model's files, parsed, and what an operator may choose. */
export interface ModelCardSource {
  /** Canonical model id. */
  readonly model: string;
  /** tokenizer.json. */
  readonly tokenizerJson: unknown;
  /** tokenizer_config.json, if there is one. */
  readonly tokenizerConfig?: unknown;
  /** config.json, if there is one. */
  readonly config?: unknown;
  /** Text of chat_template.jinja; comes before the template in tokenizer_config.json. */
  readonly chatTemplateFile?: string | null;
  /** Default `bytes`. */
  readonly scheme?: PrefixSchemeName;
  /** Bytes per chunk or tokens per key block; default by scheme. */
  readonly unitSize?: number;
  /** IANA zone; default UTC. */
  readonly timeZone?: string;
  readonly bytesPerToken?: number;
}

/**
 * Derives a model's card.
 * Errors: `KedgeError` `unsupported_tokenizer` if the scheme `bytes` cannot serve the tokenizer, `config_invalid` for files or
 * choices that are not valid.
 */
export function deriveModelCard(source: ModelCardSource): ModelCard {
  const tokenizerConfig = record(source.tokenizerConfig ?? {}, "tokenizer_config.json");
  const config = record(source.config ?? {}, "config.json");
  const scheme = source.scheme ?? "bytes";
  const templates = ENGINE_RENDERED.has(String(config.model_type))
    ? { chatTemplate: null, namedTemplates: {} }
    : readTemplates(tokenizerConfig, source.chatTemplateFile ?? null);
  const bosToken = tokenText(tokenizerConfig.bos_token);
  return parseModelCard({
    version: 1,
    model: source.model,
    scheme,
    unitSize: source.unitSize ?? DEFAULT_UNIT_SIZE[scheme],
    ...templates,
    contentFormat: contentFormatOf(templates.chatTemplate),
    bosToken,
    eosToken: tokenText(tokenizerConfig.eos_token),
    specialTokens: specialTokens(tokenizerConfig),
    addedPrefix: addedPrefix(source.tokenizerJson, tokenizerConfig, bosToken),
    ...rulesFor(scheme, source.tokenizerJson),
    timeZone: source.timeZone ?? "UTC",
    bytesPerToken: source.bytesPerToken ?? DEFAULT_BYTES_PER_TOKEN,
    maxModelLen: maxModelLen(config),
  });
}

type Fields = Readonly<Record<string, unknown>>;

function isRecord(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function record(value: unknown, file: string): Fields {
  if (isRecord(value)) return value;
  throw new KedgeError("config_invalid", `${file} must hold a JSON object.`);
}

/** Token texts come as a string or as `{content}`. */
function tokenText(token: unknown): string | null {
  const text = isRecord(token) ? token.content : token;
  return typeof text === "string" ? text : null;
}

function specialTokens(config: Fields): Record<string, string> {
  const names = ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
  const found = names.map((name) => [name, tokenText(config[name])] as const);
  return Object.fromEntries(found.filter((entry): entry is readonly [string, string] => entry[1] !== null));
}

function readTemplates(
  config: Fields,
  file: string | null,
): Pick<ModelCard, "chatTemplate" | "namedTemplates"> {
  const given = config.chat_template;
  const named: Record<string, string> = {};
  if (Array.isArray(given)) {
    for (const entry of given) {
      if (!isRecord(entry) || typeof entry.name !== "string" || typeof entry.template !== "string") {
        throw new KedgeError(
          "config_invalid",
          "tokenizer_config.json: a named chat template lacks name or template.",
        );
      }
      named[entry.name] = entry.template;
    }
  }
  const { default: standard = null, ...others } = named;
  return { chatTemplate: file ?? (typeof given === "string" ? given : standard), namedTemplates: others };
}

function contentFormatOf(template: string | null): ModelCard["contentFormat"] {
  if (template === null) return "string";
  try {
    return detectContentFormat(parseTemplate(template));
  } catch (error) {
    if (error instanceof UnsupportedTemplate) return "string";
    throw error;
  }
}

/** The text rules matter to keys of bytes only; a tokenizer that has none may still serve the scheme `tokens`. */
function rulesFor(scheme: PrefixSchemeName, tokenizerJson: unknown): ReturnType<typeof textRules> {
  const file = readTokenizerFile(tokenizerJson);
  try {
    return textRules(file);
  } catch (error) {
    if (scheme === "tokens" && error instanceof KedgeError && error.code === "unsupported_tokenizer") {
      return { normalizer: null, strippingTokens: [], leadingSpace: null };
    }
    throw error;
  }
}

/** Classes that rebuild their post-processor from `add_bos_token` when they load, whatever tokenizer.json says. */
const BOS_BY_CONFIG = /^(?:Code)?(?:Llama|Gemma|Cohere)Tokenizer(?:Fast)?$/;

function addedPrefix(tokenizerJson: unknown, config: Fields, bosToken: string | null): string | null {
  const addsBos = config.add_bos_token;
  if (typeof addsBos === "boolean" && BOS_BY_CONFIG.test(String(config.tokenizer_class))) {
    return addsBos ? bosToken : null;
  }
  return (isRecord(tokenizerJson) && processorPrefix(tokenizerJson.post_processor)) || null;
}

/** The text that a post-processor puts before a single sequence. */
function processorPrefix(processor: unknown): string {
  if (!isRecord(processor)) return "";
  const { type, processors } = processor;
  if (type === "Sequence" && Array.isArray(processors)) return processors.map(processorPrefix).join("");
  if (type === "TemplateProcessing") return templatePrefix(processor);
  if (type === "BertProcessing" || type === "RobertaProcessing") {
    return Array.isArray(processor.cls) ? String(processor.cls[0]) : "";
  }
  return "";
}

function templatePrefix(processor: Fields): string {
  const pieces: readonly unknown[] = Array.isArray(processor.single) ? processor.single : [];
  let prefix = "";
  for (const piece of pieces) {
    const special = isRecord(piece) ? piece.SpecialToken : undefined;
    if (!isRecord(special)) break;
    const declared = isRecord(processor.special_tokens)
      ? processor.special_tokens[String(special.id)]
      : undefined;
    const tokens = isRecord(declared) && Array.isArray(declared.tokens) ? declared.tokens : [special.id];
    prefix += tokens.join("");
  }
  return prefix;
}

const LENGTH_FIELDS = [
  "max_position_embeddings",
  "n_positions",
  "max_seq_len",
  "seq_length",
  "max_sequence_length",
];

function maxModelLen(config: Fields): number | null {
  const inner = isRecord(config.text_config) ? config.text_config : {};
  const lengths = LENGTH_FIELDS.map((field) => config[field] ?? inner[field]).filter(
    (value): value is number => typeof value === "number" && Number.isInteger(value) && value > 0,
  );
  return lengths.length > 0 ? Math.min(...lengths) : null;
}
