/** The fleet that a fresh gateway begins with while the view is out of reach: registrations as JSON, checked. */

import { z } from "zod";
import { KedgeError } from "../errors/index.ts";
import type { Registration } from "../fleet/types.ts";

/** More ranks than any view is made for; a longer list is a wrong file. */
const MAX_RANKS = 10_000;
/** Problems named in one message. */
const MAX_PROBLEMS = 5;

const name = z.string().min(1);
const count = z.number().int().nonnegative();
const positive = z.number().int().positive();

const strippingToken = z.object({ content: z.string(), lstrip: z.boolean(), rstrip: z.boolean() });

/** What older writers leave out has the value that it had before there was a choice. */
const card = z.object({
  version: z.literal(1),
  model: name,
  scheme: z.enum(["bytes", "tokens"]),
  unitSize: positive,
  chatTemplate: z.string().nullable(),
  namedTemplates: z.record(z.string(), z.string()),
  contentFormat: z.enum(["string", "openai"]),
  bosToken: z.string().nullable(),
  eosToken: z.string().nullable(),
  specialTokens: z.record(z.string(), z.string()),
  addedPrefix: z.string().nullable(),
  normalizer: z.literal("NFC").nullable(),
  strippingTokens: z.array(strippingToken),
  leadingSpace: z.enum(["always", "unless-space", "first-unless-space"]).nullable().default(null),
  addedTokens: z.array(z.string()).default([]),
  timeZone: name,
  bytesPerToken: z.number().positive(),
  maxModelLen: positive.nullable(),
});

const registration = z.object({
  worker: name,
  rank: count,
  incarnation: name,
  agent: z.object({ id: name, url: z.url({ protocol: /^https?$/ }) }).nullable(),
  model: name,
  servedNames: z.array(name).min(1),
  adapters: z.array(name),
  card,
  role: z.enum(["aggregated", "prefill", "decode"]),
  region: z.string(),
  cluster: z.string(),
  node: z.string(),
  engine: z.string(),
  dpSize: positive,
  blockSize: positive,
  totalBlocks: positive.nullable(),
  maxNumBatchedTokens: positive.nullable(),
  maxNumSeqs: positive.nullable(),
  maxModelLen: positive.nullable(),
  kvEvents: z.boolean(),
  saltInEvents: z.boolean(),
  taints: z.array(z.string()),
});

const fleet = z.array(registration).max(MAX_RANKS);

/**
 * Reads a JSON array of registrations, as `kedge fleet --json` prints it; unknown members are left out. Errors: `config_invalid` naming
 * the first members that are wrong.
 */
export function parseSeedFleet(text: string): Registration[] {
  const parsed = fleet.safeParse(fromJson(text));
  if (parsed.success) return parsed.data;
  const { issues } = parsed.error;
  const problems = issues.slice(0, MAX_PROBLEMS).map(({ path, message }) => `${placeOf(path)}: ${message}`);
  if (issues.length > MAX_PROBLEMS) problems.push(`and ${issues.length - MAX_PROBLEMS} more`);
  throw invalid(problems.join("; "));
}

function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw invalid("it is not JSON", cause);
  }
}

/** E.g. `[3].card.unitSize`. */
function placeOf(path: readonly PropertyKey[]): string {
  const place = path.map((part) => (typeof part === "number" ? `[${part}]` : `.${String(part)}`)).join("");
  return place === "" ? "the list" : place;
}

function invalid(problem: string, cause?: unknown): KedgeError {
  return new KedgeError(
    "config_invalid",
    `KEDGE_SEED_FLEET (--seed-fleet) must be what kedge fleet --json prints, a JSON array of workers; ${problem}.`,
    { cause, param: "seed-fleet" },
  );
}
