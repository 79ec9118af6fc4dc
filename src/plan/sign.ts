/** What signs plans (design D12); gateways have one, agents never do. */

import type { Plan } from "./index.ts";

export interface PlanSigner {
  /** A compact JWS (EdDSA) of the plan, good for its agent only and for seconds. Errors: `plan_rejected` for a plan without an agent. */
  sign(plan: Plan): Promise<string>;
  /** Public keys, to be served at `/.well-known/jwks.json`: the signing one first, then those that are still or soon in use. */
  readonly jwks: { readonly keys: readonly object[] };
}
