/** Options of a mock engine, named as vLLM names its flags, with the defaults resolved and checked. */

import { z } from "zod";
import { KedgeError } from "../../../src/errors/index.ts";
import { type Clock, wallClock } from "./clock.ts";
import { misbehaviourSchema } from "./misbehaviour.ts";
import { PROFILES, type ProfileName } from "./timing.ts";

/** vLLM's `--kv-events-config`. Endpoints: bound if they contain `*` or `::` or are ipc/inproc, else connected to. */
const kvEventsSchema = z.object({
  enable_kv_cache_events: z.boolean().default(false),
  publisher: z.enum(["zmq", "null"]).nullable().default(null),
  endpoint: z.string().default("tcp://*:5557"),
  replay_endpoint: z.string().nullable().default(null),
  buffer_steps: z.number().int().min(0).default(10_000),
  hwm: z.number().int().min(0).default(100_000),
  max_queue_size: z.number().int().min(0).default(100_000),
  topic: z.string().default(""),
});

/** vLLM's `--kv-transfer-config`, as far as the mock heeds it: any connector turns split requests on. */
const kvTransferSchema = z.looseObject({
  kv_connector: z.string(),
  engine_id: z.string().optional(),
  /** Where a decode side would reach this one; only repeated in the transfer parameters. */
  side_channel_host: z.string().default("127.0.0.1"),
  side_channel_port: z.number().int().default(5600),
});

const whole = z.number().int();

const optionsSchema = z.strictObject({
  host: z.string().default("127.0.0.1"),
  /** 0: any free port. */
  port: whole.min(0).max(65_535).default(0),
  /** Names that requests may use; the first one is answered. */
  servedModelNames: z.array(z.string().min(1)).min(1).readonly().default(["mock"]),
  blockSize: whole.min(1).default(16),
  /** KV blocks per rank, the null block included. Default: what the profile's card holds. */
  numGpuBlocks: whole.min(2).nullable().default(null),
  maxModelLen: whole.min(2).nullable().default(null),
  maxNumSeqs: whole.min(1).default(256),
  maxNumBatchedTokens: whole.min(1).default(8192),
  /** Requests that may wait before new ones get 503. Null: any number. */
  maxNumQueuedReqs: whole.min(0).nullable().default(null),
  schedulingPolicy: z.enum(["fcfs", "priority"]).default("fcfs"),
  dataParallelSize: whole.min(1).max(64).default(1),
  loraModules: z
    .array(z.strictObject({ name: z.string().min(1), path: z.string().min(1) }))
    .readonly()
    .default([]),
  maxLoras: whole.min(1).default(8),
  kvEvents: kvEventsSchema.nullable().default(null),
  kvTransfer: kvTransferSchema.nullable().default(null),
  apiKeys: z.array(z.string().min(1)).readonly().default([]),
  /** Tokens per stream chunk, the first one apart. */
  streamInterval: whole.min(1).default(1),
  enablePromptTokensDetails: z.boolean().default(true),
  enableForceIncludeUsage: z.boolean().default(false),
  enableRequestIdHeaders: z.boolean().default(false),
  /** Null: tools are refused as vLLM refuses them without a parser. */
  toolCallParser: z.literal("hermes").nullable().default("hermes"),
  /** `VLLM_SERVER_DEV_MODE` and run-time LoRA loading. */
  devMode: z.boolean().default(true),
  /** Seconds that running requests get after SIGTERM; 0: streams fall silent, as vLLM's do by default. */
  shutdownTimeoutSeconds: z.number().min(0).default(0),
  /** `PYTHONHASHSEED`. */
  hashSeed: z.string().nullable().default(null),
  profile: z.enum(Object.keys(PROFILES) as [ProfileName, ...ProfileName[]]).default("8b-h100"),
  /** Simulated seconds per real second. */
  speed: z.number().positive().default(1),
  /** Default: the profile's. */
  requestOverheadMs: z.number().min(0).nullable().default(null),
  /** Seeds text where a request has no seed. */
  seed: whole.default(0),
  /** Length of an answer that nothing else ends. */
  meanOutputTokens: whole.min(1).default(128),
  /** Accept token ids below this; the tokenizer's own size if null. Further ids have no text. */
  vocabSize: whole.min(1).nullable().default(null),
  misbehaviour: misbehaviourSchema.prefault({}),
  clock: z.custom<Clock>().default(wallClock),
});

export type MockEngineOptions = z.input<typeof optionsSchema>;

type Parsed = z.output<typeof optionsSchema>;

export interface MockConfig extends Parsed {
  readonly numGpuBlocks: number;
  readonly numGpuBlocksOverride: number | null;
  readonly maxModelLen: number;
  readonly requestOverheadMs: number;
}

const DEFAULT_MODEL_LEN = 131_072;

/** Checks options and fills in what depends on others. Errors: `config_invalid` naming the option. */
export function resolveOptions(options: MockEngineOptions): MockConfig {
  const parsed = optionsSchema.safeParse(options);
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new KedgeError("config_invalid", `Mock engine option ${issue?.path.join(".")}: ${issue?.message}.`);
  }
  const given = parsed.data;
  const profile = PROFILES[given.profile];
  const numGpuBlocks = given.numGpuBlocks ?? Math.floor(profile.capacityTokens / given.blockSize);
  const capacity = (numGpuBlocks - 1) * given.blockSize;
  const maxModelLen = given.maxModelLen ?? Math.min(DEFAULT_MODEL_LEN, capacity);
  if (maxModelLen > capacity) {
    throw new KedgeError(
      "config_invalid",
      `maxModelLen ${maxModelLen} does not fit the KV cache of ${capacity} tokens: lower it or raise numGpuBlocks.`,
      { param: "maxModelLen" },
    );
  }
  return {
    ...given,
    numGpuBlocks,
    numGpuBlocksOverride: given.numGpuBlocks,
    maxModelLen,
    requestOverheadMs: given.requestOverheadMs ?? profile.requestOverheadMs,
  };
}
