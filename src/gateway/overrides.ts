/** What one request may ask of its own routing, where the operator lets callers see how they are routed. */

import { KedgeError } from "../errors/index.ts";
import { type Overrides, ROUTER_MODES, type RouterMode } from "../routing/index.ts";

export interface RequestOverrides {
  readonly mode: RouterMode | null;
  readonly policy: Overrides | null;
  readonly pin: { readonly worker: string; readonly rank: number | null } | null;
}

export const NO_OVERRIDES: RequestOverrides = { mode: null, policy: null, pin: null };

const HEADERS = {
  mode: "x-kedge-router-mode",
  weight: "x-kedge-overlap-weight",
  temperature: "x-kedge-temperature",
  worker: "x-kedge-worker",
  rank: "x-kedge-rank",
} as const;

/** Errors: `invalid_request` naming the header at fault. */
export function readOverrides(header: (name: string) => string | undefined): RequestOverrides {
  const mode = header(HEADERS.mode);
  const weight = nonNegative(HEADERS.weight, header(HEADERS.weight));
  const temperature = nonNegative(HEADERS.temperature, header(HEADERS.temperature));
  const worker = header(HEADERS.worker);
  const rank = nonNegative(HEADERS.rank, header(HEADERS.rank));
  if (rank !== null && (worker === undefined || !Number.isInteger(rank))) {
    throw invalid(HEADERS.rank, `a whole number, together with ${HEADERS.worker}`);
  }
  if (mode === undefined && worker === undefined && weight === null && temperature === null)
    return NO_OVERRIDES;
  return {
    mode: mode === undefined ? null : readMode(mode),
    policy: {
      ...(weight !== null && { overlapScoreWeight: weight }),
      ...(temperature !== null && { temperature }),
    },
    pin: worker === undefined ? null : { worker, rank },
  };
}

function readMode(text: string): RouterMode {
  const mode = ROUTER_MODES.find((known) => known === text);
  if (mode === undefined) throw invalid(HEADERS.mode, `one of ${ROUTER_MODES.join(", ")}`);
  return mode;
}

function nonNegative(name: string, text: string | undefined): number | null {
  if (text === undefined) return null;
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value) || value < 0)
    throw invalid(name, "a number of 0 or more");
  return value;
}

function invalid(name: string, expected: string): KedgeError {
  return new KedgeError("invalid_request", `The header ${name} must be ${expected}.`, { param: name });
}
