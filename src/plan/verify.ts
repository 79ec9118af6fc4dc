/** What an agent checks before it does anything: who signed, for whom, when, for which request, and that it is the first time (design D12). */

import { type CryptoKey, decodeProtectedHeader, type JWTPayload, jwtVerify } from "jose";
import { KedgeError } from "../errors/index.ts";
import { PLAN_ISSUER, PLAN_LIFE_SECONDS, PLAN_TYPE, planOf } from "./claims.ts";
import type { Plan } from "./index.ts";
import { KeySources } from "./key-sources.ts";
import { PLAN_ALGORITHM } from "./keys.ts";

export interface PlanVerifierOptions {
  /** Public keys: JWKS as JSON, or URLs of such, several separated by white space. */
  readonly jwks: string;
  /** The agent's id: plans for others are refused. */
  readonly audience: string;
  /** Milliseconds since the Unix epoch. */
  readonly now: () => number;
  /** The text at a URL, in bounded time and size; needed if `jwks` names one. */
  readonly load?: (url: string) => Promise<string>;
  /** A source of keys failed; the copy that was read before stays in use. */
  readonly onError: (error: KedgeError) => void;
}

export interface PlanVerifier {
  /**
   * The plan of a token, for the request of that id (header `x-request-id`). Errors: `plan_rejected`, with the reason as its cause's
   * message, for logs alone; `upstream_busy` while more plans are remembered than may be.
   */
  verify(token: string, requestId: string | undefined): Promise<Plan>;
}

/** Clocks of gateways and agents may differ by so much. */
const TOLERANCE_SECONDS = 5;
const MAX_TOKEN_LENGTH = 8_192;
/** Plans remembered until they expire, at about 150 bytes each: 7,000 requests a second at one node. */
const MAX_REMEMBERED = 262_144;

/** Errors: `config_invalid` for keys that are none, or a URL without `load`. */
export async function createPlanVerifier(options: PlanVerifierOptions): Promise<PlanVerifier> {
  const { jwks, audience, now, load, onError } = options;
  const sources = new KeySources({ text: jwks, now, onError, ...(load !== undefined && { load }) });
  await sources.open();
  const seen = new SeenPlans(MAX_REMEMBERED);
  return {
    verify: async (token, requestId) => {
      const payload = await verified(token, sources, now());
      const { aud, exp = 0, iat = 0, jti } = payload;
      // Several audiences would make a plan good at several agents.
      if (aud !== audience) throw refused("it is for another agent");
      if (exp - iat > PLAN_LIFE_SECONDS) throw refused("it lives too long");
      if (typeof jti !== "string" || jti === "" || jti !== requestId)
        throw refused("it is for another request");
      const plan = planOf(jti, payload.plan);
      if (plan === null) throw refused("its plan cannot be read");
      // A gateway that tries one request at several workers of a node signs a plan for each.
      seen.note(`${plan.rank} ${plan.worker} ${jti}`, (exp + TOLERANCE_SECONDS) * 1_000, now());
      return plan;
    },
  };
}

async function verified(token: string, sources: KeySources, nowMs: number): Promise<JWTPayload> {
  if (token.length > MAX_TOKEN_LENGTH) throw refused("it is too long");
  const key = await sources.keyOf(kidOf(token));
  if (key === null) throw refused("its key is not known");
  return check(token, key, nowMs);
}

function kidOf(token: string): string {
  try {
    const { alg, kid } = decodeProtectedHeader(token);
    if (alg === PLAN_ALGORITHM && typeof kid === "string") return kid;
  } catch {
    throw refused("it is no signed token");
  }
  throw refused("its header names another algorithm or no key");
}

async function check(token: string, key: CryptoKey, nowMs: number): Promise<JWTPayload> {
  try {
    const { payload } = await jwtVerify(token, key, {
      algorithms: [PLAN_ALGORITHM],
      typ: PLAN_TYPE,
      issuer: PLAN_ISSUER,
      requiredClaims: ["aud", "exp", "iat", "jti"],
      clockTolerance: TOLERANCE_SECONDS,
      // With a greatest age, a time of signing that lies ahead is refused too.
      maxTokenAge: PLAN_LIFE_SECONDS,
      currentDate: new Date(nowMs),
    });
    return payload;
  } catch (thrown) {
    throw refused(thrown instanceof Error ? thrown.message : "it cannot be verified");
  }
}

/** Plans that were used, by request and rank, until they are good no more. Lives are equal, so the oldest expire first. */
class SeenPlans {
  private readonly expiries = new Map<string, number>();
  private readonly max: number;

  constructor(max: number) {
    this.max = max;
  }

  note(use: string, expiresAtMs: number, nowMs: number): void {
    for (const [known, atMs] of this.expiries) {
      if (atMs > nowMs) break;
      this.expiries.delete(known);
    }
    const before = this.expiries.get(use);
    if (before !== undefined && before > nowMs) throw refused("it has been used");
    if (this.expiries.size >= this.max) {
      throw new KedgeError("upstream_busy", "This node has taken too many plans at once.", {
        retryAfterSeconds: 1,
      });
    }
    this.expiries.delete(use);
    this.expiries.set(use, expiresAtMs);
  }
}

function refused(reason: string): KedgeError {
  return new KedgeError("plan_rejected", "This node does not accept the plan.", { cause: new Error(reason) });
}
