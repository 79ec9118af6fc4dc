/** Figures of the door, and of the agent behind it at the time of a scrape. */

import type { Counter, Family, Gauge, Registry } from "../../src/telemetry/registry.ts";
import type { AgentStatus, WorkerState } from "../agent.ts";

const STATES: readonly WorkerState[] = ["waiting", "serving", "lost", "stopped"];

export class DoorMetrics {
  readonly requests: Family<Counter>;
  readonly refused: Counter;
  readonly inflight: Gauge;
  private readonly workers: Family<Gauge>;
  private readonly carried: Gauge;

  constructor(registry: Registry) {
    this.requests = registry.counter({
      name: "kedge_agent_requests_total",
      help: "Requests at the door by outcome: the engine's status, or the code of an error.",
      labels: ["outcome"],
    });
    this.refused = registry
      .counter({
        name: "kedge_agent_plans_rejected_total",
        help: "Requests without a plan that this agent accepts.",
      })
      .labels();
    this.inflight = registry
      .gauge({ name: "kedge_agent_inflight_requests", help: "Requests under way at the door." })
      .labels();
    this.workers = registry.gauge({
      name: "kedge_agent_workers",
      help: "Engines of this node by state.",
      labels: ["state"],
    });
    this.carried = registry
      .gauge({ name: "kedge_agent_engine_requests", help: "Requests that the node's engines carry." })
      .labels();
  }

  scrape({ workers, requests }: AgentStatus): void {
    for (const state of STATES) {
      this.workers.labels(state).set(workers.filter((worker) => worker.state === state).length);
    }
    this.carried.set(requests);
  }
}
