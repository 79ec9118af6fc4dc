/** The plan: what a gateway decided for one request and an agent carries out (design §3, D12). */

export type WorkerRole = "aggregated" | "prefill" | "decode";

export interface Plan {
  /** The agent that carries it out; null: the one in this process. */
  readonly agent: { readonly id: string; readonly url: string } | null;
  readonly requestId: string;
  readonly model: string;
  readonly worker: string;
  readonly rank: number;
  readonly incarnation: string;
  readonly role: WorkerRole;
  /** Total time the request may take from acceptance, in milliseconds; null: no limit. */
  readonly deadlineMs: number | null;
  /** Facts behind the reservation, so that the agent's load report counts the same. */
  readonly load: {
    /** Prompt length in tokens (an estimate under the bytes scheme). */
    readonly promptTokens: number;
    /** Prompt tokens that the worker was believed to hold. */
    readonly overlapTokens: number;
    /** KV blocks that the request adds to the worker. */
    readonly blocks: number;
  };
  /** The usage chunk of this stream was asked for by the gateway alone: an agent that vouches for its streams leaves it out. */
  readonly dropUsage: boolean;
  /** Sent to the engine as `cache_salt`; null: the body's own value is kept. */
  readonly cacheSalt: string | null;
}
