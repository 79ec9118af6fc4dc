/** What a host gives to a gateway: configuration, the view, the way to workers, time and chance. */

import type { KedgeConfig } from "../config/index.ts";
import type { Registration } from "../fleet/types.ts";
import type { WorkerTransport } from "../plan/transport.ts";
import type { Hasher } from "../prefix/hasher.ts";
import type { PromptTokenizer } from "../prefix/tokenizer.ts";
import type { ModelCard } from "../prefix/types.ts";
import type { Vocabulary } from "../prefix/vocabulary.ts";
import type { MaybePromise, ViewStore } from "../store/types.ts";
import type { Registry } from "../telemetry/registry.ts";
import type { ClientConnection } from "./client.ts";

export interface Clock {
  /** Milliseconds, monotonic, fractions welcome. */
  now(): number;
  /** Milliseconds since the Unix epoch. */
  wall(): number;
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}

export interface Log {
  warn(message: string, fields?: Readonly<Record<string, unknown>>): void;
  /** Lines of every decision as Dynamo prints them; absent: not made. */
  readonly debug?: (message: string) => void;
}

export interface GatewayDeps {
  readonly config: KedgeConfig;
  readonly store: ViewStore;
  readonly transport: WorkerTransport;
  readonly hasher: Hasher;
  /** Scheme `tokens` needs the model's tokenizer for text; null where the host has none. */
  readonly tokenizers?: (card: ModelCard) => PromptTokenizer | null;
  /** Scheme `bytes` needs the vocabulary for prompts given as token ids; null where the host has none. */
  readonly vocabularies?: (card: ModelCard) => Vocabulary | null;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly log: Log;
  readonly registry: Registry;
  /** SHA-256 of UTF-8 text; default: the platform's Web Crypto. */
  readonly sha256?: (text: string) => MaybePromise<Uint8Array>;
  /** False once the host has begun to shut down: `/ready` and `/live` say so. */
  readonly isServing?: () => boolean;
  /** Fleet to route over while the view is out of reach and none has been read yet; see `parseSeedFleet`. */
  readonly seedFleet?: readonly Registration[];
  /**
   * A served name that was read no longer ago than this is used without asking, for the read that follows checks it. Default 250, fit for
   * a view in this process; hosts with a remote one pass 10,000.
   */
  readonly directoryMaxAgeMs?: number;
  /** Public keys of the plans' signatures, published at `/.well-known/jwks.json`; absent: no plans are signed here. */
  readonly jwks?: { readonly keys: readonly object[] };
  /** True: API keys are needed whatever address the configuration names; for hosts without a loopback. */
  readonly requireKeys?: boolean;
  /** What `/metrics` answers; default: this registry alone. For hosts of several processes. */
  readonly metricsText?: () => MaybePromise<string>;
}

/** Hono environment: a host may bring its own connection to the client. */
export interface GatewayEnv {
  Bindings: { readonly client?: ClientConnection };
}
