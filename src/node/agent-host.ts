/** The agent of one node as a process: its engines, the bus to the view, and the door for gateways (design §2, D12). */

import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import type { AgentStatus } from "../../gpu-agent/agent.ts";
import { type Door, startDoor } from "../../gpu-agent/door/index.ts";
import { isLoopback, type KedgeConfig } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import { connectNatsBus, type NatsHost, natsOptions } from "../events/nats/index.ts";
import type { AgentAddress } from "../fleet/types.ts";
import { createPlanVerifier } from "../plan/verify.ts";
import { Registry } from "../telemetry/registry.ts";
import { monotonicClock } from "./clock.ts";
import { type Closers, startWithClosers } from "./closers.ts";
import type { EngineOption } from "./engine-option.ts";
import { cannotListen } from "./listen.ts";
import type { MockFleetOptions } from "./mock-fleet.ts";
import type { ModelSettings } from "./models.ts";
import {
  type EngineListing,
  type NodeEngines,
  type NodeLog,
  nodeName,
  prepareEngines,
} from "./node-engines.ts";
import { keySources, loadKeys } from "./plan-keys.ts";

/** Region and cluster of who named none; left out of workers' names. */
const UNNAMED_PLACE = "local";

export interface AgentHostOptions {
  /** Of it: host, port, nats, place, plan, limits, feed.horizonMs, router.kvEvents, router.kvCacheBlockSize. */
  readonly config: KedgeConfig;
  /** Engines that run, or will. */
  readonly engines: readonly EngineOption[];
  readonly mock: MockFleetOptions | null;
  readonly model: ModelSettings;
  readonly log: NodeLog;
}

export interface AgentHost {
  /** As gateways reach it. */
  readonly agent: AgentAddress;
  /** Where the door listens. */
  readonly url: string;
  engines(): readonly EngineListing[];
  status(): AgentStatus;
  /** Leaves the fleet, lets running requests finish (config.limits.drainTimeoutMs), ends what was started. Safe to call twice. */
  close(): Promise<void>;
}

/**
 * Resolves when the door is open and every engine that answers serves; engines and NATS may come later.
 * Errors: `config_invalid`, `engine_mismatch`; what was started is ended before.
 */
export function startAgentHost(options: AgentHostOptions): Promise<AgentHost> {
  return startWithClosers((closers, close) => start(options, closers, close));
}

async function start(
  options: AgentHostOptions,
  closers: Closers,
  close: () => Promise<void>,
): Promise<AgentHost> {
  const { config, log } = options;
  const id = agentIdOf(config);
  const verifier = await verifierOf(config, id, log);
  const bus = connectNatsBus(natsOf(config, log));
  closers.push(() => bus.close());
  const engines = await prepareEngines({
    ...options,
    bus,
    namePrefix: workerPrefix(config),
    waitForAll: true,
  });
  closers.push(() => engines.close());
  const door = await openDoor(options, engines, verifier);
  closers.push(async () => {
    door.refuse();
    engines.leave();
    await engines.drain();
    await door.close();
  });
  const agent = { id, url: config.plan.agentUrl?.replace(/\/+$/, "") ?? reachable(door.url) };
  await engines.begin(agent);
  return { agent, url: door.url, engines: () => engines.listing(), status: () => engines.status(), close };
}

/** Host names of pods repeat from cluster to cluster, and one name must be one worker in the whole fleet. */
function workerPrefix(config: KedgeConfig): string {
  const { region, cluster } = config.place;
  const place = [region, cluster].filter((part) => part !== UNNAMED_PLACE);
  return `${[...place, nodeName(config)].join("/")}/`;
}

/** Audience of this agent's plans. */
function agentIdOf(config: KedgeConfig): string {
  const { region, cluster } = config.place;
  return config.plan.agentId ?? `${region}/${cluster}/${nodeName(config)}`;
}

async function verifierOf({ plan }: KedgeConfig, audience: string, log: NodeLog) {
  if (plan.jwks === null) {
    throw new KedgeError(
      "config_invalid",
      "An agent takes signed plans only: set KEDGE_PLAN_JWKS (--plan-jwks) to the gateways' public keys, " +
        "as JSON, a file or a gateway's https://…/.well-known/jwks.json. Keys are made by: kedge plan-key.",
      { param: "plan.jwks" },
    );
  }
  const jwks = await keySources(plan.jwks);
  for (const url of jwks.match(/^http:\/\/\S+/gm) ?? []) {
    if (isLoopback(new URL(url).hostname)) continue;
    log(
      "warn",
      `the plan keys at ${url} come unprotected: whoever can change them on the way can use the engines; use https`,
    );
  }
  return createPlanVerifier({
    jwks,
    audience,
    now: () => Date.now(),
    load: loadKeys,
    onError: (error) => log("warn", error.message),
  });
}

function natsOf(config: KedgeConfig, log: NodeLog) {
  return natsOptions(config, {
    role: "agent",
    name: `agent ${agentIdOf(config)}`,
    timers: monotonicClock,
    random: Math.random,
    hostName: nodeName(config),
    readFile: (path) => readFileSync(path, "utf8"),
    ...natsLog(log),
  });
}

/** A server that stays away is told of once, not at every try to reach it. */
function natsLog(log: NodeLog): Pick<NatsHost, "onError" | "onStatus"> {
  let isConnected: boolean | null = null;
  let toldAway = "";
  return {
    onError: ({ message }, doing) => {
      if (doing === "connection" && message === toldAway) return;
      if (doing === "connection") toldAway = message;
      log("warn", `NATS, ${doing}: ${message}`);
    },
    onStatus: ({ connected, server }) => {
      if (connected && isConnected !== true) log("info", `connected to NATS at ${server}`);
      if (connected) toldAway = "";
      isConnected = connected;
    },
  };
}

async function openDoor(
  { config, log }: AgentHostOptions,
  engines: NodeEngines,
  verifier: Awaited<ReturnType<typeof verifierOf>>,
): Promise<Door> {
  const { host, port, limits } = config;
  try {
    return await startDoor({
      host,
      port,
      verifier,
      transport: engines.ingress,
      standing: (plan) => engines.agent.standing(plan),
      status: () => engines.status(),
      clock: monotonicClock,
      limits,
      registry: new Registry(),
      log,
    });
  } catch (thrown) {
    throw cannotListen(thrown as NodeJS.ErrnoException, host, port);
  }
}

/** An address that listens everywhere is reached by the machine's name. */
function reachable(url: string): string {
  const { hostname: host, port } = new URL(url);
  return host === "0.0.0.0" || host === "[::]" ? `http://${hostname()}:${port}` : url;
}
