/** What a mock engine does wrong on purpose: one record, set by flag or at run time. */

import { z } from "zod";

const count = z.number().int().min(0);
const afterTokens = z.number().int().min(0).nullable();

/** Every field at its default is an engine that behaves. Counts go down as they are used. */
export const misbehaviourSchema = z.strictObject({
  /** KV events. Next batches that subscribers do not get; their numbers are used up. */
  dropBatches: count.default(0),
  /** The dropped batches are missing from the replay buffer too. */
  dropFromReplay: z.boolean().default(false),
  /** `off`: the replay socket takes requests and answers nothing. */
  replay: z.enum(["on", "off"]).default("on"),
  /** Batches kept for replay, if fewer than `buffer_steps`. */
  replaySteps: count.nullable().default(null),
  hashes: z.enum(["u64", "bytes", "negative"]).default("u64"),
  events: z.enum(["map", "array"]).default("map"),
  replayFrames: z.enum(["with-topic", "without-topic"]).default("with-topic"),
  /** Next requests that recompute what is cached: each block of theirs becomes a second physical copy. */
  duplicateStores: count.default(0),
  /** Next stored events whose first block is left out, so that the rest hang on a parent nobody announced. */
  orphanParents: count.default(0),
  /** The block that was left out is announced in a batch of its own right after; else never. */
  orphansHeal: z.boolean().default(true),

  /** Requests. How many more requests the faults below hit; null: all. */
  requests: count.nullable().default(null),
  /** Answer 200 with an error inside: `finish_reason: "error"`, or an error object in the stream and `[DONE]`. */
  error200: z.enum(["off", "finish-reason", "in-band"]).default("off"),
  /** Tokens that come before that error. */
  error200AfterTokens: count.default(0),
  /** Destroy the connection after so many tokens. */
  cutAfterTokens: afterTokens.default(null),
  /** Say nothing more after so many tokens, with the connection open. */
  stallAfterTokens: afterTokens.default(null),
  /** Hold back the first data. */
  firstByteDelayMs: count.default(0),
  /** Hold back the response's headers. */
  headerDelayMs: count.default(0),
  /** Answer 503 as a full queue does. */
  busy: z.boolean().default(false),
  /** Prefill legs answer without `kv_transfer_params`. */
  missingTransferParams: z.boolean().default(false),
  /** Pulls of remote KV fail. */
  transferFails: z.boolean().default(false),
  /** Split the stream's bytes at arbitrary places instead of one event per chunk. */
  splitChunks: z.boolean().default(false),
});

export type Misbehaviour = z.infer<typeof misbehaviourSchema>;
export type MisbehaviourPatch = z.input<typeof misbehaviourSchema>;

/** The faults that one request meets. */
export interface RequestFaults {
  readonly error200: Misbehaviour["error200"];
  readonly error200AfterTokens: number;
  readonly cutAfterTokens: number | null;
  readonly stallAfterTokens: number | null;
  readonly firstByteDelayMs: number;
  readonly headerDelayMs: number;
  readonly busy: boolean;
  readonly missingTransferParams: boolean;
  readonly transferFails: boolean;
  readonly splitChunks: boolean;
}

const NONE: Misbehaviour = misbehaviourSchema.parse({});

export class MisbehaviourSwitch {
  #state: Misbehaviour;

  constructor(initial: MisbehaviourPatch = {}) {
    this.#state = misbehaviourSchema.parse(initial);
  }

  get state(): Readonly<Misbehaviour> {
    return this.#state;
  }

  /** Changes some fields. Errors: ZodError naming the field. */
  set(patch: MisbehaviourPatch): void {
    const given = misbehaviourSchema.partial().parse(patch);
    const kept = Object.entries(given).filter(([name]) => name in (patch as object));
    this.#state = { ...this.#state, ...Object.fromEntries(kept) };
  }

  reset(): void {
    this.#state = { ...NONE };
  }

  /** Uses up one of a count. */
  take(field: "dropBatches" | "duplicateStores" | "orphanParents"): boolean {
    if (this.#state[field] === 0) return false;
    this.#state = { ...this.#state, [field]: this.#state[field] - 1 };
    return true;
  }

  /** What a request meets that no fault is meant for. */
  get noFaults(): RequestFaults {
    return NONE;
  }

  /** The faults of the next request. */
  nextRequest(): RequestFaults {
    const { requests } = this.#state;
    if (requests === 0) return NONE;
    const faulty = REQUEST_FIELDS.some((field) => this.#state[field] !== NONE[field]);
    if (requests !== null && faulty) this.#state = { ...this.#state, requests: requests - 1 };
    return this.#state;
  }
}

const REQUEST_FIELDS = [
  "error200",
  "cutAfterTokens",
  "stallAfterTokens",
  "firstByteDelayMs",
  "headerDelayMs",
  "busy",
  "missingTransferParams",
  "transferFails",
  "splitChunks",
] as const satisfies readonly (keyof RequestFaults)[];
