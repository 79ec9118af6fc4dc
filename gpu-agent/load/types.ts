/** What the ingress tells the agent's load accounting about the requests that it carries. */

import type { Plan } from "../../src/plan/index.ts";

export interface RequestLedger {
  /** The request was handed to the engine: its blocks and uncached prompt tokens count from now on. */
  admitted(plan: Plan): void;
  /** First data came back: its prefill is computed. */
  firstData(requestId: string): void;
  /** `tokens` generated so far: blocks grow as they fill. */
  progressed(requestId: string, tokens: number): void;
  /** Ended, failed or aborted. Safe to call twice. */
  finished(requestId: string): void;
}
