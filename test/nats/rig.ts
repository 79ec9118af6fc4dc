/** What the NATS suites share: buses with the process's timers, bounded waiting. */

import { realpathSync } from "node:fs";
import type { KedgeError } from "../../src/errors/index.ts";
import { connectNatsBus, type NatsBus, type NatsBusOptions } from "../../src/events/nats/index.ts";
import { NATS_SERVERS } from "../support/servers.ts";

export * from "./samples.ts";

/** Every nats-server that is here, once. */
export const DISTINCT_SERVERS = [...new Set(NATS_SERVERS.map((path) => realpathSync(path)))];

export const TIMERS = {
  setTimeout: (callback: () => void, delayMs: number) => setTimeout(callback, delayMs),
  clearTimeout: (handle: unknown) => clearTimeout(handle as NodeJS.Timeout),
};

export interface Rig {
  readonly bus: NatsBus;
  readonly errors: [KedgeError, string][];
}

const open: NatsBus[] = [];

/** A bus in region `r`, cluster `c`, node `n` that tells its errors to a list. */
export function rig(url: string, more: Partial<NatsBusOptions> & Pick<NatsBusOptions, "role">): Rig {
  const errors: [KedgeError, string][] = [];
  const bus = connectNatsBus({
    servers: [url],
    prefix: "kedge",
    stream: "KEDGE_KV",
    streamLimits: { maxBytes: 64 * 1_024 * 1_024 },
    place: { region: "r", cluster: "c", node: "n" },
    name: more.role,
    timers: TIMERS,
    random: Math.random,
    reconnectMs: 50,
    reconnectMaxMs: 400,
    connectTimeoutMs: 2_000,
    pingMs: 500,
    onError: (error, doing) => errors.push([error, doing]),
    ...more,
  });
  open.push(bus);
  return { bus, errors };
}

/** A bus that is connected. */
export async function connected(url: string, more: Parameters<typeof rig>[1]): Promise<Rig> {
  const made = rig(url, more);
  await until(
    () => made.bus.connected,
    "the bus connects",
    () => made.errors,
  );
  return made;
}

/** Ends all buses of the test. */
export async function closeAll(): Promise<void> {
  await Promise.all(open.splice(0).map((bus) => bus.close()));
}

/** Polls until it holds; fails after `limitMs` with what was waited for. */
export async function until(
  holds: () => boolean,
  what: string,
  detail: () => unknown = () => undefined,
  limitMs = 15_000,
): Promise<void> {
  const deadline = performance.now() + limitMs;
  while (!holds()) {
    if (performance.now() > deadline)
      throw new Error(`not within ${limitMs} ms: ${what} ${String(detail())}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
