/** What a signed plan holds: registered claims, and the plan in a few short names; decoders tolerate newer fields (RFC 7519). */

import type { Plan, WorkerRole } from "./index.ts";

export const PLAN_ISSUER = "kedge";
/** `typ` of the header: no other token that the same key might sign passes for a plan (RFC 8725 §3.11). */
export const PLAN_TYPE = "kedge-plan+jwt";
/** Seconds from signing to expiry: a plan is used at once. */
export const PLAN_LIFE_SECONDS = 30;

export interface PlanClaims {
  readonly iss: typeof PLAN_ISSUER;
  readonly aud: string;
  readonly iat: number;
  readonly exp: number;
  readonly jti: string;
  readonly plan: CompactPlan;
}

/** model, worker, rank, incarnation, role, deadline, [prompt tokens, overlap tokens, blocks], usage dropped, salt. */
interface CompactPlan {
  readonly m: string;
  readonly w: string;
  readonly r: number;
  readonly i: string;
  readonly o: WorkerRole;
  readonly d: number | null;
  readonly l: readonly [number, number, number];
  readonly u: 0 | 1;
  readonly s: string | null;
}

const ROLES: readonly unknown[] = ["aggregated", "prefill", "decode"] satisfies WorkerRole[];

export function claimsOf(plan: Plan, audience: string, nowMs: number): PlanClaims {
  const iat = Math.floor(nowMs / 1_000);
  const { promptTokens, overlapTokens, blocks } = plan.load;
  return {
    iss: PLAN_ISSUER,
    aud: audience,
    iat,
    exp: iat + PLAN_LIFE_SECONDS,
    jti: plan.requestId,
    plan: {
      m: plan.model,
      w: plan.worker,
      r: plan.rank,
      i: plan.incarnation,
      o: plan.role,
      d: plan.deadlineMs === null ? null : Math.ceil(plan.deadlineMs),
      l: [Math.round(promptTokens), Math.round(overlapTokens), Math.round(blocks)],
      u: plan.dropUsage ? 1 : 0,
      s: plan.cacheSalt,
    },
  };
}

/** The plan as the agent's own process carries it out; null if the claim is not one. */
export function planOf(requestId: string, claim: unknown): Plan | null {
  if (typeof claim !== "object" || claim === null) return null;
  const { m, w, r, i, o, d, l, u, s } = claim as { [K in keyof CompactPlan]: unknown };
  if (!isText(m) || !isText(w) || !isCount(r) || !isText(i) || !ROLES.includes(o)) return null;
  if (d !== null && !(isCount(d) && d > 0)) return null;
  if (!Array.isArray(l) || l.length < 3 || !l.every(isCount)) return null;
  if ((u !== 0 && u !== 1) || (s !== null && !isText(s))) return null;
  return {
    agent: null,
    requestId,
    model: m,
    worker: w,
    rank: r,
    incarnation: i,
    role: o as WorkerRole,
    deadlineMs: d === null ? null : Math.min(d, MAX_TIMER_MS),
    load: { promptTokens: l[0], overlapTokens: l[1], blocks: l[2] },
    dropUsage: u === 1,
    cacheSalt: s,
  };
}

/** Timers of JavaScript hold no more than 31 bits. */
const MAX_TIMER_MS = 2_147_483_647;

const isText = (value: unknown): value is string => typeof value === "string" && value !== "";
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
