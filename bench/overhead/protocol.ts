/** What the benchmark's processes say to each other. */

export interface LoadJob {
  readonly host: string;
  readonly port: number;
  readonly model: string;
  readonly clients: number;
  /** Different prompts, taken in turn. */
  readonly prompts: number;
  readonly promptBytes: number;
  readonly warmUpMs: number;
  readonly durationMs: number;
}

export interface LoadResult {
  readonly firstByteMs: readonly number[];
  readonly totalMs: readonly number[];
  /** All that were answered, warm-up included. */
  readonly requests: number;
  readonly durationMs: number;
}
