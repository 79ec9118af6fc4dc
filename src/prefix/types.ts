/** What the prefix room gives to everyone: chains of prefix keys and the model card (design D2). */

/** `bytes`: a key per chunk of rendered UTF-8. `tokens`: a key per block of token ids. */
export type PrefixSchemeName = "bytes" | "tokens";

/** What a chain's seed commits to besides the scheme itself. Empty adapter or salt counts as absent. */
export interface ChainIdentity {
  /** Canonical id of the base model, as in its card. */
  readonly model: string;
  /** LoRA adapter name. */
  readonly adapter: string | null;
  /** `cache_salt` as the engine gets it. */
  readonly salt: string | null;
}

/** The keys of one prompt, root to leaf. */
export interface PrefixChain {
  readonly scheme: PrefixSchemeName;
  /** Seed of the chain; not itself a key. */
  readonly root: bigint;
  /** keys[i] commits to the seed and to units 0…(i+1)·unitSize. Unsigned 64-bit. */
  readonly keys: BigUint64Array;
  /** Bytes (scheme `bytes`) or tokens (scheme `tokens`) per key. */
  readonly unitSize: number;
  /** Length of the keyed part of the prompt in bytes or tokens, the trailing partial unit included. */
  readonly unitCount: number;
  /** False if an unknown part (image, audio) ended the chain early. */
  readonly complete: boolean;
}

/** One model's facts, a few KB, derived from its files; all that a gateway needs to render and key a prompt. */
export interface ModelCard {
  readonly version: 1;
  /** Canonical id: equal on gateway and agents, seeds every chain. */
  readonly model: string;
  readonly scheme: PrefixSchemeName;
  /** Bytes per chunk (128) or tokens per key block (16). */
  readonly unitSize: number;
  /** Default chat template (Jinja), or null when the model has none. */
  readonly chatTemplate: string | null;
  /** Further named templates, e.g. `tool_use`. */
  readonly namedTemplates: Readonly<Record<string, string>>;
  /** How the engine hands content to the template, as vLLM detects it: flattened text or the list of parts. */
  readonly contentFormat: "string" | "openai";
  readonly bosToken: string | null;
  readonly eosToken: string | null;
  /** Special-token variables a template may name (`unk_token`, `pad_token`, …). */
  readonly specialTokens: Readonly<Record<string, string>>;
  /** The tokenizer itself puts this text before a prompt (its BOS rule); null if it adds nothing. */
  readonly addedPrefix: string | null;
  /** Text normaliser the tokenizer applies, as far as bytes can see it. This and the next three come from `textRules`. */
  readonly normalizer: "NFC" | null;
  /** Added tokens that swallow neighbouring white space. */
  readonly strippingTokens: readonly {
    readonly content: string;
    readonly lstrip: boolean;
    readonly rstrip: boolean;
  }[];
  /**
   * The space a tokenizer puts before each stretch of text between added tokens: `always`, only where none is there
   * (`unless-space`), or that and only at the very start (`first-unless-space`). Absent: never.
   */
  readonly leadingSpace?: "always" | "unless-space" | "first-unless-space" | null;
  /** Added tokens that bound such stretches; listed only if `normalizer` or `leadingSpace` is set, which work stretch by stretch. */
  readonly addedTokens?: readonly string[];
  /** IANA zone for templates that print a date (`strftime_now`). */
  readonly timeZone: string;
  /** First estimate of UTF-8 bytes per token; gateways learn better from usage. */
  readonly bytesPerToken: number;
  /** Longest prompt plus output in tokens, if known. */
  readonly maxModelLen: number | null;
}
