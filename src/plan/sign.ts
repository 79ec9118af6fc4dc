/** What signs plans (design D12); gateways have one, agents never do. */

import { SignJWT } from "jose";
import { KedgeError } from "../errors/index.ts";
import { claimsOf, PLAN_TYPE } from "./claims.ts";
import type { Plan } from "./index.ts";
import { PLAN_ALGORITHM, readSigningKeys } from "./keys.ts";

export interface PlanSigner {
  /** A compact JWS (EdDSA) of the plan, good for its agent only and for seconds. Errors: `plan_rejected` for a plan without an agent. */
  sign(plan: Plan): Promise<string>;
  /** Public keys, to be served at `/.well-known/jwks.json`: the signing one first, then those that are still or soon in use. */
  readonly jwks: { readonly keys: readonly object[] };
}

export interface PlanSignerOptions {
  /** A private JWK, a JWKS whose first key is private and signs, or PKCS #8 PEM; Ed25519. All public halves are published. */
  readonly keys: string;
  /** Milliseconds since the Unix epoch; default the platform's clock. */
  readonly now?: () => number;
}

/** Errors: `config_invalid` for keys that are none. */
export async function createPlanSigner({ keys, now = Date.now }: PlanSignerOptions): Promise<PlanSigner> {
  const { key, kid, published } = await readSigningKeys(keys);
  const header = { alg: PLAN_ALGORITHM, kid, typ: PLAN_TYPE };
  return {
    jwks: { keys: published },
    sign: async (plan) => {
      if (plan.agent === null)
        throw new KedgeError("plan_rejected", "The plan names no agent to sign it for.");
      return new SignJWT({ ...claimsOf(plan, plan.agent.id, now()) }).setProtectedHeader(header).sign(key);
    },
  };
}
