/** How long an engine step takes: the linear model of two real machines, fitted to measured kernels. */

export interface TimingProfile {
  readonly name: string;
  /** Fixed cost of a step. */
  readonly fixedMs: number;
  /** Reading the weights once: the floor of the linear part. */
  readonly weightsMs: number;
  readonly perTokenMs: number;
  /** Attention of a prefill token over its context. */
  readonly prefillAttentionMs: number;
  /** Reading one context token's KV while decoding. */
  readonly contextTokenMs: number;
  readonly perSequenceMs: number;
  /** Front-end work per request before it reaches the scheduler. */
  readonly requestOverheadMs: number;
  readonly kvBytesPerToken: number;
  /** KV capacity of the card(s) in tokens. */
  readonly capacityTokens: number;
}

/** Llama-class models on H100: AIConfigurator h100_sxm, vLLM, bf16; overheads from BLIS. */
export const PROFILES = {
  "8b-h100": {
    name: "8b-h100",
    fixedMs: 1.1,
    weightsMs: 6.1,
    perTokenMs: 0.0212,
    prefillAttentionMs: 6.3e-7,
    contextTokenMs: 4.2e-5,
    perSequenceMs: 0.015,
    requestOverheadMs: 5,
    kvBytesPerToken: 131_072,
    capacityTokens: 26_313 * 16,
  },
  "70b-tp4-h100": {
    name: "70b-tp4-h100",
    fixedMs: 2.7,
    weightsMs: 14.5,
    perTokenMs: 0.0749,
    prefillAttentionMs: 6.4e-7,
    contextTokenMs: 2.8e-5,
    perSequenceMs: 0.05,
    requestOverheadMs: 5,
    kvBytesPerToken: 327_680,
    capacityTokens: 30_452 * 16,
  },
  zero: {
    name: "zero",
    fixedMs: 0,
    weightsMs: 0,
    perTokenMs: 0,
    prefillAttentionMs: 0,
    contextTokenMs: 0,
    perSequenceMs: 0,
    requestOverheadMs: 0,
    kvBytesPerToken: 131_072,
    capacityTokens: 26_313 * 16,
  },
} as const satisfies Record<string, TimingProfile>;

export type ProfileName = keyof typeof PROFILES;

/** What one step does, summed over its sequences. */
export interface StepWork {
  /** New prompt tokens of all prefill chunks. */
  prefillTokens: number;
  /** Σ n·(c + n/2) over prefill chunks of n tokens behind c tokens of context. */
  prefillAttention: number;
  decodingSequences: number;
  /** Σ context length over decoding sequences. */
  contextTokens: number;
}

/** Milliseconds of one engine iteration: T_fix + max(T_w, a·tokens) + k_pf·attention + k_kv·context + b·sequences. */
export function stepMs(profile: TimingProfile, work: StepWork): number {
  const tokens = work.prefillTokens + work.decodingSequences;
  return (
    profile.fixedMs +
    Math.max(profile.weightsMs, profile.perTokenMs * tokens) +
    profile.prefillAttentionMs * work.prefillAttention +
    profile.contextTokenMs * work.contextTokens +
    profile.perSequenceMs * work.decodingSequences
  );
}

/** Latency and bandwidth of a KV pull inside a cluster. */
export interface TransferProfile {
  readonly latencyMs: number;
  readonly bytesPerSecond: number;
}

export const DEFAULT_TRANSFER: TransferProfile = { latencyMs: 25, bytesPerSecond: 20e9 };

/** Milliseconds to pull `tokens` tokens of KV: t0 + tokens · kv_bytes / bandwidth. */
export function transferMs(profile: TimingProfile, transfer: TransferProfile, tokens: number): number {
  if (profile.fixedMs === 0) return 0;
  return transfer.latencyMs + (tokens * profile.kvBytesPerToken * 1000) / transfer.bytesPerSecond;
}
