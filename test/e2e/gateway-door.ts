/** A door around an ingress, and the way of a Node gateway through it, for tests: real sockets, signed plans, keys of the run. */

import type { AgentStatus, PlanStanding } from "../../gpu-agent/agent.ts";
import { type Door, type DoorClock, startDoor } from "../../gpu-agent/door/index.ts";
import { type AgentTransport, createAgentTransport } from "../../src/node/agent-transport.ts";
import type { Plan } from "../../src/plan/index.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { createPlanSigner, type PlanSigner } from "../../src/plan/sign.ts";
import type { WorkerTransport } from "../../src/plan/transport.ts";
import { createPlanVerifier } from "../../src/plan/verify.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { realClock } from "./gateway-fleet.ts";

export const AGENT_ID = "r/c/n";

type PlanKeys = Awaited<ReturnType<typeof newPlanKeys>>;

export interface TestDoor {
  readonly door: Door;
  readonly agent: { readonly id: string; readonly url: string };
  readonly keys: PlanKeys;
  readonly signer: PlanSigner;
  readonly remote: AgentTransport;
  /** Plans of this process's gateway, sent through the door. */
  readonly transport: WorkerTransport;
  readonly registry: Registry;
  readonly logged: string[];
  close(): Promise<void>;
}

export interface TestDoorOptions {
  readonly clock?: DoorClock;
  /** Those of a door that was here before; default new ones. */
  readonly keys?: PlanKeys;
  /** Default: any free one. */
  readonly port?: number;
  readonly limits?: Partial<{ bodyBytes: number; inflightBodyBytes: number; stallTimeoutMs: number }>;
  readonly standing?: (plan: Plan) => PlanStanding;
  readonly status?: () => AgentStatus;
  /** Awaited before a plan is looked at, as the first reading of keys at a URL is. */
  readonly beforePlan?: () => Promise<void>;
}

const SERVING = { workers: [{ worker: "w", state: "serving" }], requests: 0 } as unknown as AgentStatus;

export async function startTestDoor(
  ingress: WorkerTransport,
  options: TestDoorOptions = {},
): Promise<TestDoor> {
  const keys = options.keys ?? (await newPlanKeys());
  const signer = await createPlanSigner({ keys: JSON.stringify(keys.privateJwks) });
  const logged: string[] = [];
  const log = (_level: string, message: string, fields: object = {}) => {
    logged.push(`${message} ${JSON.stringify(fields)}`);
  };
  const verifier = await createPlanVerifier({
    jwks: JSON.stringify(keys.publicJwks),
    audience: AGENT_ID,
    now: () => Date.now(),
    onError: (error) => logged.push(error.message),
  });
  const registry = new Registry();
  const door = await startDoor({
    host: "127.0.0.1",
    port: options.port ?? 0,
    verifier: {
      verify: async (token, requestId) => {
        await options.beforePlan?.();
        return verifier.verify(token, requestId);
      },
    },
    transport: ingress,
    standing: options.standing ?? (() => "current"),
    status: options.status ?? (() => SERVING),
    clock: options.clock ?? realClock,
    limits: {
      bodyBytes: 1_000_000,
      inflightBodyBytes: 10_000_000,
      stallTimeoutMs: 60_000,
      ...options.limits,
    },
    registry,
    log,
  });
  const agent = { id: AGENT_ID, url: door.url };
  const remote = createAgentTransport({ signer });
  return {
    door,
    agent,
    keys,
    signer,
    remote,
    transport: { send: (plan, request, signal) => remote.send({ ...plan, agent }, request, signal) },
    registry,
    logged,
    close: async () => {
      remote.close();
      await door.close();
    },
  };
}
