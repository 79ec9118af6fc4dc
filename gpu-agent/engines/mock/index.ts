/** A mock engine: a real process's worth of vLLM's protocols, to start within a process or as one. */

import type { BlockTableRow } from "./block-manager.ts";
import { type MockEngineOptions, resolveOptions } from "./config.ts";
import { Engine, type RankStats } from "./engine.ts";
import { MockServer } from "./http/server.ts";
import type { Misbehaviour, MisbehaviourPatch } from "./misbehaviour.ts";

export type { BlockTableRow } from "./block-manager.ts";
export { type Clock, ManualClock, wallClock } from "./clock.ts";
export type { MockEngineOptions } from "./config.ts";
export type { RankStats } from "./engine.ts";
export type { Misbehaviour, MisbehaviourPatch } from "./misbehaviour.ts";
export { MODEL_DIR, modelCard } from "./model.ts";
export { PROFILES, type ProfileName } from "./timing.ts";

export interface MockEngine {
  /** `http://host:port` */
  readonly url: string;
  readonly servedModelNames: readonly string[];
  readonly blockSize: number;
  /** Per rank; empty if events are off. A bound endpoint is the real address, to be connected to. */
  readonly eventsEndpoints: readonly string[];
  /** Per rank; empty if events or replay are off. */
  readonly replayEndpoints: readonly string[];
  /** The truth about a rank's cache: every reusable hash with its parent, tokens and number of copies. */
  blockTable(rank?: number): BlockTableRow[];
  stats(): RankStats[];
  /** Changes what it does wrong. Errors: ZodError naming the field. */
  misbehave(patch: MisbehaviourPatch): Readonly<Misbehaviour>;
  /** Back to behaving. */
  behave(): void;
  /** As `POST /reset_prefix_cache`. */
  resetPrefixCache(): boolean;
  /** Dies and comes back on the same addresses: connections break, the cache is empty, batches count from 0. */
  restart(): Promise<void>;
  /** As SIGTERM does; resolves when the last connection is gone. */
  terminate(): Promise<void>;
  /** Ends at once. Safe to call twice. */
  close(): Promise<void>;
}

/** Starts a mock engine. Errors: `config_invalid`; what Node or zeromq say of a taken address. */
export async function startMockEngine(options: MockEngineOptions = {}): Promise<MockEngine> {
  const config = resolveOptions(options);
  const engine = await Engine.start(config);
  const server = await MockServer.listen(engine).catch((error: unknown) => {
    engine.close();
    throw error;
  });
  const publishers = Array.from({ length: engine.rankCount }, (_, rank) => engine.publisher(rank));
  const url = server.url;
  let closing: Promise<void> | null = null;
  const close = (): Promise<void> => {
    engine.close();
    closing ??= server.close();
    return closing;
  };
  return {
    url,
    servedModelNames: config.servedModelNames,
    blockSize: config.blockSize,
    eventsEndpoints: publishers.flatMap((publisher) => (publisher === null ? [] : [publisher.endpoint])),
    replayEndpoints: publishers.flatMap((publisher) => publisher?.replayEndpoint ?? []),
    blockTable: (rank = 0) => engine.blockTable(rank),
    stats: () => engine.stats(),
    misbehave(patch) {
      engine.misbehaviour.set(patch);
      return engine.misbehaviour.state;
    },
    behave: () => engine.misbehaviour.reset(),
    resetPrefixCache: () => engine.resetPrefixCache(),
    async restart() {
      server.destroyConnections();
      await engine.restart();
    },
    async terminate() {
      closing ??= server.terminate(config.shutdownTimeoutSeconds);
      await closing;
      engine.close();
    },
    close,
  };
}
