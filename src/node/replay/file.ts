/** Reads recorded sessions: routing scenarios of Dynamo 0.9 and 1.6, and index histories, one JSON object per line. */

import { z } from "zod";
import { KedgeError } from "../../errors/index.ts";

/** 64-bit values: plain up to 2^53, decimal strings above. */
const u64 = z
  .union([z.int().nonnegative(), z.string().regex(/^\d{1,20}$/)])
  .transform((value) => BigInt(value));
const index = z.int().nonnegative();

const historyEvent = z.union([
  z.tuple([z.literal("s"), index, index, u64.nullable(), z.array(z.tuple([u64, u64]))]),
  z.tuple([z.literal("r"), index, index, z.array(u64)]),
  z.tuple([z.literal("c"), index, index]),
  z.tuple([z.literal("x"), index]),
  z.tuple([z.literal("k"), index]),
  z.tuple([z.literal("q"), z.array(u64)]),
]);

const counts = z.record(z.string(), index);
const historyResult = z.object({ lookups: z.array(counts), blocks: counts.nullable() });

const history = z.object({
  id: index,
  kind: z.string(),
  events: z.array(historyEvent),
  both: historyResult.optional(),
  v0_9: historyResult.optional(),
  v1_6: historyResult.optional(),
});

const place = { worker: index, dp_rank: index };
const step = z.discriminatedUnion("op", [
  z.object({
    op: z.literal("store"),
    ...place,
    prompt: index,
    from_block: index,
    to_block: index,
    parent: u64.nullable(),
    block_hashes: z.array(u64),
    tier: z.enum(["host_pinned", "disk"]).optional(),
  }),
  z.object({
    op: z.literal("remove"),
    ...place,
    block_hashes: z.array(u64),
    tier: z.enum(["host_pinned", "disk"]).optional(),
  }),
  z.object({ op: z.literal("clear"), ...place }),
  z.object({
    op: z.literal("route"),
    request: z.string(),
    prompt: index,
    tokens: index,
    override: z.record(z.string(), z.union([z.number(), z.boolean()])).optional(),
    constraints: z
      .object({
        required_taints: z.array(z.string()).default([]),
        preferred_taints: z.record(z.string(), z.number()).default({}),
      })
      .optional(),
    candidates: z.array(z.array(z.union([z.number(), z.literal("ineligible"), z.null()]))),
    chosen: z
      .object({
        ...place,
        cost: z.number(),
        tree_size: index.optional(),
        overlap_blocks: index.optional(),
        overlap_tokens: index.optional(),
        effective_prefill_tokens: index.optional(),
        potential_decode_blocks: index.optional(),
      })
      .nullable()
      .optional(),
    error: z.string().optional(),
  }),
  z.object({ op: z.literal("prefill_complete"), request: z.string() }),
  z.object({ op: z.literal("free"), request: z.string() }),
  z.object({ op: z.literal("output_block"), request: z.string(), decay_fraction: z.number().nullable() }),
]);

const scenario = z.object({
  id: index,
  name: z.string(),
  config: z.record(z.string(), z.union([z.number(), z.boolean()])),
  block_size: index.min(1),
  workers: z.array(
    z.object({ worker: index, dp_size: index.min(1), taints: z.array(z.string()).default([]) }),
  ),
  prompts: z.array(z.array(index)),
  steps: z.array(step),
});

export type History = z.infer<typeof history>;
export type HistoryEvent = z.infer<typeof historyEvent>;
export type Scenario = z.infer<typeof scenario>;
export type ScenarioStep = z.infer<typeof step>;
export type RouteStep = Extract<ScenarioStep, { op: "route" }>;

export type Session =
  | { readonly format: "history"; readonly history: History }
  | { readonly format: "scenario"; readonly scenario: Scenario };

/** Errors: `invalid_request` naming the line, if it is no JSON or of neither format. */
export function parseSession(text: string, line: number): Session {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw unreadable(line, `not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  if (isObjectWith(json, "events")) {
    return { format: "history", history: checked(history, json, line) };
  }
  if (isObjectWith(json, "steps")) {
    const read = checked(scenario, json, line);
    const problem = danglingReference(read);
    if (problem !== null) throw unreadable(line, problem);
    return { format: "scenario", scenario: read };
  }
  throw unreadable(line, "neither an index history (events) nor a routing scenario (steps)");
}

function checked<T>(schema: z.ZodType<T>, json: unknown, line: number): T {
  const parsed = schema.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0]!;
  throw unreadable(line, `${issue.path.map(String).join(".")}: ${issue.message}`);
}

/** What a step names that the scenario does not have; null: nothing. */
function danglingReference({ prompts, workers, steps, block_size }: Scenario): string | null {
  const ranks = new Map(workers.map(({ worker, dp_size }) => [worker, dp_size]));
  const isPlace = (at: { worker: number; dp_rank: number }): boolean =>
    at.dp_rank < (ranks.get(at.worker) ?? 0);
  for (const [nth, step] of steps.entries()) {
    if ("worker" in step && !isPlace(step)) return `steps.${nth}: no such worker or rank`;
    if ("prompt" in step && prompts[step.prompt] === undefined) return `steps.${nth}: no such prompt`;
    if (step.op === "store") {
      const blocks = Math.floor(prompts[step.prompt]!.length / block_size);
      const isWhole = step.to_block - step.from_block === step.block_hashes.length && step.to_block <= blocks;
      if (!isWhole) return `steps.${nth}: block_hashes does not fit from_block, to_block and the prompt`;
    }
    if (step.op !== "route") continue;
    if (step.tokens > prompts[step.prompt]!.length) return `steps.${nth}: the prompt is shorter than tokens`;
    if (step.chosen && !isPlace(step.chosen)) return `steps.${nth}: chosen is no such worker or rank`;
  }
  return null;
}

const isObjectWith = (json: unknown, key: string): boolean =>
  typeof json === "object" && json !== null && Object.hasOwn(json, key);

const unreadable = (line: number, problem: string): KedgeError =>
  new KedgeError("invalid_request", `line ${line}: ${problem}`);
