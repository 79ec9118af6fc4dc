/** Who may be scored: filters in Dynamo's order, the reason of each exclusion, and the error when nobody is left. */

import { KedgeError } from "../errors/index.ts";
import { busyWorkers } from "./busy.ts";
import type { Candidate, Excluded, PolicyConfig, RequestFacts } from "./types.ts";

export interface Eligibility {
  readonly eligible: readonly Candidate[];
  readonly excluded: readonly Excluded[];
  readonly rejection: KedgeError | null;
}

export const BUSY_REASON = "busy";

/** Seconds after which a client should try again. */
const RETRY_AFTER_SECONDS = 1;

/** Order: unroutable as given, allowed workers, pin, required taints, busy. */
export function selectEligible(
  candidates: readonly Candidate[],
  facts: RequestFacts,
  settings: PolicyConfig,
): Eligibility {
  const busy = busyWorkers(candidates, settings.busy);
  const eligible: Candidate[] = [];
  const excluded: Excluded[] = [];
  for (const candidate of candidates) {
    const reason = exclusionReason(candidate, facts, busy);
    if (reason === null) eligible.push(candidate);
    else excluded.push({ candidate, reason });
  }
  const rejection = rejectionOf(candidates, eligible, excluded, facts, settings);
  return { eligible, excluded, rejection };
}

function exclusionReason(
  candidate: Candidate,
  facts: RequestFacts,
  busy: ReadonlySet<string>,
): string | null {
  if (candidate.excluded !== null) return candidate.excluded;
  if (!isAllowed(candidate, facts)) return "not among the allowed workers";
  if (!matchesPin(candidate, facts)) return "not the pinned worker";
  for (const taint of facts.requiredTaints) {
    if (!candidate.taints.includes(taint)) return `lacks required taint ${taint}`;
  }
  return busy.has(candidate.worker) ? BUSY_REASON : null;
}

const isAllowed = (candidate: Candidate, { allowedWorkers }: RequestFacts): boolean =>
  allowedWorkers === null || allowedWorkers.has(candidate.worker);

function matchesPin(candidate: Candidate, { pin }: RequestFacts): boolean {
  if (pin === null) return true;
  return candidate.worker === pin.worker && (pin.rank === null || candidate.rank === pin.rank);
}

function rejectionOf(
  candidates: readonly Candidate[],
  eligible: readonly Candidate[],
  excluded: readonly Excluded[],
  facts: RequestFacts,
  settings: PolicyConfig,
): KedgeError | null {
  if (settings.mode === "direct" && facts.pin === null) {
    return new KedgeError("invalid_request", "Router mode direct needs a worker named with the request.");
  }
  if (eligible.length > 0) return null;
  const pinned = facts.pin !== null;
  if (pinned && !candidates.some((one) => matchesPin(one, facts) && isAllowed(one, facts))) {
    return new KedgeError("worker_not_found", "The worker named with the request does not exist.");
  }
  if (excluded.some((one) => one.reason === BUSY_REASON)) {
    const message = pinned
      ? "The worker named with the request is busy; retry later."
      : "All workers are busy; retry later.";
    return new KedgeError("workers_busy", message, { retryAfterSeconds: RETRY_AFTER_SECONDS });
  }
  return new KedgeError("no_workers", "No worker can serve this request.", {
    retryAfterSeconds: RETRY_AFTER_SECONDS,
  });
}
