/** What the headers of bus messages must look like: the wire is not trusted. Newer fields are kept or passed over, never refused. */

import { z } from "zod";
import type { IncarnationKey, LoadReport, Registration } from "../fleet/types.ts";
import { malformed } from "./wire.ts";

const MAX_NAME = 512;
const MAX_RANK = 65_535;

const name = z.string().min(1).max(MAX_NAME);
const text = z.string();
const count = z.number().int().nonnegative().max(Number.MAX_SAFE_INTEGER);
const textMap = z.record(z.string(), z.string());

const card = z.looseObject({
  version: z.literal(1),
  model: name,
  scheme: z.enum(["bytes", "tokens"]),
  unitSize: z.number().int().positive(),
  chatTemplate: text.nullable(),
  namedTemplates: textMap,
  contentFormat: z.enum(["string", "openai"]),
  bosToken: text.nullable(),
  eosToken: text.nullable(),
  specialTokens: textMap,
  addedPrefix: text.nullable(),
  normalizer: z.literal("NFC").nullable(),
  strippingTokens: z.array(z.looseObject({ content: text, lstrip: z.boolean(), rstrip: z.boolean() })),
  leadingSpace: z.enum(["always", "unless-space", "first-unless-space"]).nullish(),
  addedTokens: z.array(text).optional(),
  timeZone: text,
  bytesPerToken: z.number().positive(),
  maxModelLen: count.nullable(),
});

const registration = z.looseObject({
  worker: name,
  rank: z.number().int().nonnegative().max(MAX_RANK),
  incarnation: name,
  agent: z.looseObject({ id: name, url: text }).nullable(),
  model: name,
  servedNames: z.array(name),
  adapters: z.array(name),
  card,
  role: z.enum(["aggregated", "prefill", "decode"]),
  region: name,
  cluster: name,
  node: name,
  engine: text,
  dpSize: z.number().int().positive(),
  blockSize: z.number().int().positive(),
  totalBlocks: count.nullable(),
  maxNumBatchedTokens: count.nullable(),
  maxNumSeqs: count.nullable(),
  maxModelLen: count.nullable(),
  kvEvents: z.boolean(),
  saltInEvents: z.boolean(),
  taints: z.array(text),
});

/** Errors of all of these: `invalid_request`. */
export function asRegistration(value: unknown): Registration {
  const parsed = registration.safeParse(value);
  if (parsed.success) return parsed.data as Registration;
  const [issue] = parsed.error.issues;
  throw malformed(`its registration's ${issue?.path.join(".") || "shape"} is wrong: ${issue?.message}`);
}

export function asObject(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw malformed("its header is no object");
  return value as Record<string, unknown>;
}

export function asName(value: unknown, field: string): string {
  if (typeof value === "string" && value.length > 0 && value.length <= MAX_NAME) return value;
  throw malformed(`its ${field} is no text of 1 to ${MAX_NAME} characters`);
}

export function asCount(value: unknown, field: string, most = Number.MAX_SAFE_INTEGER): number {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0 && value <= most) return value;
  throw malformed(`its ${field} is no whole number up to ${most}`);
}

export function asKey(value: Record<string, unknown>): IncarnationKey {
  return {
    worker: asName(value.worker, "worker"),
    rank: asCount(value.rank, "rank", MAX_RANK),
    incarnation: asName(value.incarnation, "incarnation"),
  };
}

export function asLoadReport(value: unknown): LoadReport {
  const report = asObject(value);
  const { admitted } = report;
  if (!Array.isArray(admitted)) throw malformed("its admitted requests are no list");
  return {
    ...asKey(report),
    sequence: asCount(report.sequence, "sequence"),
    activeBlocks: asQuantity(report.activeBlocks, "activeBlocks"),
    prefillTokens: asQuantity(report.prefillTokens, "prefillTokens"),
    running: asQuantity(report.running, "running"),
    waiting: asQuantity(report.waiting, "waiting"),
    admitted: admitted.map((id) => asName(id, "admitted request")),
    publishedSequence: asCount(report.publishedSequence, "publishedSequence"),
  };
}

/** A measured amount, perhaps fractional, or null where it is unknown. */
function asQuantity(value: unknown, field: string): number | null {
  if (value === null) return null;
  if (typeof value === "number" && Number.isFinite(value) && value >= 0) return value;
  throw malformed(`its ${field} is neither a number from 0 nor null`);
}
