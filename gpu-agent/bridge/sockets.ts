/** Which event sockets a rank has: from the operator's addresses, or from what the engine says. */

import { KedgeError } from "../../src/errors/index.ts";
import type { Discovery } from "../engines/vllm/discover.ts";

export interface RankSockets {
  readonly endpoint: string;
  readonly replayEndpoint: string | null;
  readonly topic: string;
}

export interface SocketsSpec {
  readonly url: string;
  readonly events?: string | readonly string[] | null;
  readonly replay?: string | readonly string[] | null;
  readonly topic?: string;
}

/** Null: the rank's events are not known of. Errors: `config_invalid` for an address without a port. */
export function socketsOf(spec: SocketsSpec, rank: number, discovery: Discovery): RankSockets | null {
  if (spec.events === null) return null;
  if (spec.events !== undefined) {
    return {
      endpoint: reachable(addressOf(spec.events, rank, "events"), spec.url),
      replayEndpoint: spec.replay ? reachable(addressOf(spec.replay, rank, "replay"), spec.url) : null,
      topic: spec.topic ?? "",
    };
  }
  const source = discovery.eventSources?.get(rank);
  if (source === undefined) return null;
  return {
    endpoint: reachable(source.endpoint, spec.url),
    replayEndpoint: source.replayEndpoint === null ? null : reachable(source.replayEndpoint, spec.url),
    topic: spec.topic ?? source.topic,
  };
}

/** One address stands for all ranks: rank r is at its port + r, as in vLLM. */
function addressOf(addresses: string | readonly string[], rank: number, param: string): string {
  if (typeof addresses !== "string") {
    const address = addresses[rank];
    if (address !== undefined) return address;
    throw new KedgeError("config_invalid", `There is no ${param} address for rank ${rank}.`, { param });
  }
  if (rank === 0) return addresses;
  const [, before, port] = /^(.*:)(\d+)$/.exec(addresses) ?? [];
  if (port === undefined) {
    throw new KedgeError(
      "config_invalid",
      `${addresses} has no port to count ranks from; give one address per rank.`,
      { param },
    );
  }
  return `${before}${Number(port) + rank}`;
}

/** An address that the engine binds on all interfaces is reached at the engine's own host. */
function reachable(address: string, engineUrl: string): string {
  const wild = /^tcp:\/\/(?:\*|\[?::\]?|0\.0\.0\.0):(\d+)$/.exec(address);
  if (wild === null) return address;
  return `connect:tcp://${new URL(engineUrl).hostname}:${wild[1]}`;
}
