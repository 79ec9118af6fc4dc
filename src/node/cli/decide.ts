/** `kedge decide`: JSON lines of questions in, JSON lines of rankings with every cost part out. */

import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { Command, InvalidArgumentError } from "commander";
import { decide, type Explanation, explain, logLines, type RandomSource } from "../../routing/index.ts";
import { seeded } from "../compare/random.ts";
import { parseLine } from "./decide-schema.ts";

/** One output line: the explanation with Dynamo's log lines, or what is wrong with the input line. */
export type Answer =
  | ({ readonly line: number } & Explanation & { readonly log: readonly string[] })
  | { readonly line: number; readonly error: { readonly code: "invalid_request"; readonly message: string } };

const HELP = `
Input, one JSON object per line (empty lines are skipped):

  request  prompt_tokens (alias isl) or prompt_blocks; optional: turn, pin {worker, rank}, allowed_workers,
           required_taints, preferred_taints {label: weight}, overrides {overlap_score_weight, router_temperature,
           overlap_score_credit, prefill_load_scale, shared_cache_multiplier, track_prefill_tokens}
  workers  list of {worker (alias worker_id), rank (dp_rank) = 0, block_size, overlap_blocks (cached_blocks) = 0,
           host_extension_blocks, disk_extension_blocks, shared_blocks_beyond_device, tree_size = 0,
           active_prefill_tokens or active_prefill_blocks = 0, active_decode_blocks = 0,
           new_blocks = floor(prompt_tokens / block_size), active_requests = 0, load_known = true, total_blocks,
           max_num_batched_tokens, taints, age_ms, excluded}
           The load is the one before this request. Whole terms of kv can be given instead: prefill_blocks
           (active and the uncached part of this prompt; the prompt's length may then be left out) and
           decode_blocks (active and new).
  config   optional {block_size = 16, router_mode or mode = kv, role = aggregated | prefill | decode,
           overlap_score_weight or weight = 1, router_temperature or temperature = 0,
           unknown_load = behind | dynamo, tie_band_blocks = 0, ramp_up_ms = 0, active_decode_blocks_threshold, active_prefill_tokens_threshold,
           active_prefill_tokens_threshold_frac; kv-1.x: overlap_score_credit = 1, overlap_score_credit_decay = 0,
           prefill_load_scale = 1, decode_active_request_weight = 0, host_cache_hit_weight = 0.75,
           disk_cache_hit_weight = 0.25, shared_cache_multiplier = 0, track_prefill_tokens = true,
           track_active_blocks = true, conditional_disagg = false}

Output, one JSON object per input line, in order:

  {line, mode, role, temperature, prompt_tokens, chosen: {worker, rank} | null,
   ranking: [{worker, rank, standing, overlap_blocks, weight, prefill_blocks, decode_blocks, cost, load, …}],
   excluded: [{worker, rank, overlap_blocks, reason}], rejection: {code, message} | null, log: [Dynamo's log lines]}

  kv: cost = weight * prefill_blocks + decode_blocks. The ranking is the failover order, best first. A rejection
  (all busy, nobody eligible) is an answer. A line that cannot be read gives {line, error} and the rest goes on.

Exit code: 0 every line was answered, 1 some line could not be read.

Example:
  echo '{"request":{"isl":36},"workers":[{"worker":"a","overlap_blocks":1},{"worker":"b"}],
         "config":{"overlap_score_weight":1.5}}' | tr -d '\\n' | kedge decide
`;

export function decideCommand(): Command {
  return new Command("decide")
    .description(
      "Decide JSON lines {request, workers, config} from stdin; print the ranking with every cost part.",
    )
    .option("--seed <n>", "seed of the drawing of ties and temperatures", parseSeed, 0)
    .addHelpText("after", HELP)
    .action(async (options: { seed: number }) => {
      let unread = 0;
      const print = async function* (): AsyncGenerator<string> {
        for await (const answer of answers(process.stdin, seeded(options.seed, "decide"))) {
          if ("error" in answer) unread += 1;
          yield `${JSON.stringify(answer)}\n`;
        }
      };
      await pipeline(print, process.stdout, { end: false }).catch(ignoreClosedPipe);
      if (unread > 0) process.exitCode = 1;
    });
}

/** Line by line, until the input ends. */
async function* answers(input: Readable, random: RandomSource): AsyncGenerator<Answer> {
  let line = 0;
  for await (const text of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
    line += 1;
    if (text.trim() !== "") yield answerLine(line, text, random);
  }
}

/** Whoever reads the answers may stop when it has seen enough (`| head`). */
function ignoreClosedPipe(error: unknown): void {
  if (!(error instanceof Error && "code" in error && error.code === "EPIPE")) throw error;
}

export function answerLine(line: number, text: string, random: RandomSource): Answer {
  const parsed = parseLine(text);
  if ("problem" in parsed) {
    return { line, error: { code: "invalid_request", message: `line ${line}: ${parsed.problem}` } };
  }
  const { facts, candidates, config } = parsed.question;
  const decision = decide(facts, candidates, config, random);
  return { line, ...explain(decision), log: logLines(decision) };
}

function parseSeed(text: string): number {
  const seed = Number(text);
  if (!Number.isSafeInteger(seed)) throw new InvalidArgumentError("a whole number is needed");
  return seed;
}
