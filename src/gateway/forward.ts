/** Tries the ranked workers until one has answered or begun to; keeps the books of each try (design D6, D8, D9). */

import type { KedgeConfig } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { Plan } from "../plan/index.ts";
import type { Scored } from "../routing/index.ts";
import type { MaybePromise } from "../store/types.ts";
import type { Usage } from "../stream/usage.ts";
import { Attempt, type AttemptResult } from "./attempt.ts";
import type { Breakers, TryResult } from "./breaker.ts";
import { predictionLifeMs } from "./candidates.ts";
import type { ClientConnection } from "./client.ts";
import type { GatewayDeps } from "./deps.ts";
import type { TokenEstimator } from "./estimate.ts";
import type { GatewayMetrics, ModelMeters } from "./metrics.ts";
import { QuietLog } from "./quiet-log.ts";
import { ENDPOINT_PATHS, type Endpoint } from "./request.ts";
import type { Route, Router } from "./route.ts";
import type { UnderWay } from "./under-way.ts";
import type { ViewGuard } from "./view-guard.ts";

/** A reservation that no load report ever covers ends by itself. */
const RESERVATION_TTL_MS = 30_000;

export interface Job {
  readonly client: ClientConnection;
  readonly endpoint: Endpoint;
  readonly stream: boolean;
  /** The client asked for the usage chunk of a stream. */
  readonly wantsUsage: boolean;
  /** All that is kept of the request's body while it runs: its parsed form is many times larger. */
  readonly body: Uint8Array;
  readonly route: Route;
  /** Unique here; the engine's request id and the reservation's name. */
  readonly planId: string;
  readonly requestId: string;
  /** Trace headers of the client that pass on. */
  readonly traceHeaders: Readonly<Record<string, string>>;
  readonly startMs: number;
  readonly meters: ModelMeters;
}

/** How a job ended, for the request counter: an HTTP status, `stream_error`, or `499` for a client that left. */
export type JobStatus = string;

export interface ForwarderParts {
  readonly deps: GatewayDeps;
  readonly guard: ViewGuard;
  readonly router: Router;
  readonly breakers: Breakers;
  readonly metrics: GatewayMetrics;
  readonly estimator: TokenEstimator;
  readonly underWay: UnderWay;
}

export class Forwarder {
  private readonly parts: ForwarderParts;
  private readonly config: KedgeConfig;
  private readonly log: QuietLog;

  constructor(parts: ForwarderParts) {
    this.parts = parts;
    this.log = new QuietLog(parts.deps.log, parts.deps.clock);
    this.config = parts.deps.config;
  }

  /**
   * Settles when the answer is over. Throws the last failure if nothing was sent: `upstream_*`, `deadline_exceeded`,
   * or the decision's own rejection.
   */
  async forward(job: Job): Promise<JobStatus> {
    const { decision, served } = job.route;
    if (decision.rejection !== null) throw decision.rejection;
    const { metrics } = this.parts;
    let current: Attempt | null = null;
    let gone = false;
    job.client.onGone(() => {
      gone = true;
      current?.abandon();
    });
    let last: KedgeError | null = null;
    let attempts = 0;
    for (const scored of decision.ranking) {
      if (gone) return this.left(job, "before_headers");
      if (attempts >= this.config.limits.maxAttempts) break;
      const row = job.route.rowOf(scored);
      if (!this.admit(row)) continue;
      attempts++;
      current = this.attempt(job, scored, row);
      const result = await this.run(job, scored, row, current);
      if (result.kind === "answered") return String(result.status);
      if (result.kind === "broken") return "stream_error";
      if (result.kind === "abandoned") return this.left(job, result.phase);
      last = result.error;
      if (!last.kind.retryable) break;
      metrics.retries.labels(served.name, last.code).inc();
    }
    throw last ?? new KedgeError("no_workers", "No worker can serve this request.", { retryAfterSeconds: 1 });
  }

  private left(job: Job, phase: "before_headers" | "before_first_data" | "streaming"): JobStatus {
    this.parts.metrics.aborts.labels(job.route.served.name, phase).inc();
    return "499";
  }

  private admit(row: FleetRow): boolean {
    const { breakers, deps } = this.parts;
    return breakers.admit(row.worker, row.incarnation, deps.clock.now());
  }

  private attempt(job: Job, scored: Scored, row: FleetRow): Attempt {
    const { clock, transport } = this.parts.deps;
    const { firstByteTimeoutMs, stallTimeoutMs, requestTimeoutMs } = this.config.limits;
    const { meters, startMs } = job;
    const deadlineAtMs = requestTimeoutMs === null ? null : startMs + requestTimeoutMs;
    const plan = this.plan(job, scored, row, deadlineAtMs);
    this.reserve(job, plan, row);
    return new Attempt({
      transport,
      clock,
      client: job.client,
      plan,
      request: {
        path: ENDPOINT_PATHS[job.endpoint],
        body: job.body,
        headers: { ...job.traceHeaders, "x-request-id": job.planId },
      },
      dropUsage: plan.dropUsage,
      headers: this.answerHeaders(job, scored),
      // A whole answer comes at the end of its generation: nothing can be told from its silence.
      firstDataTimeoutMs: job.stream ? firstByteTimeoutMs : null,
      stallTimeoutMs,
      deadlineAtMs,
      watcher: {
        firstData: (nowMs) => meters.firstToken.observe((nowMs - startMs) / 1_000),
        delivered: (gapMs) => meters.interToken.observe(gapMs / 1_000),
      },
    });
  }

  private async run(job: Job, scored: Scored, row: FleetRow, attempt: Attempt): Promise<AttemptResult> {
    const { breakers, deps, metrics, underWay } = this.parts;
    const ended = underWay.begin(row, deps.clock.now());
    const report = (result: TryResult) => {
      breakers.report(row.worker, row.incarnation, result, deps.clock.now());
    };
    const result = await attempt.run(() => report("started")).finally(ended);
    if (result.kind === "answered") {
      report(result.seen ? "success" : "neutral");
      if (result.usage !== null) this.learn(job, scored, result.usage);
    } else if (result.kind === "abandoned") report("neutral");
    else {
      const { error } = result;
      report(error.kind.countsAgainstBreaker ? "failure" : "neutral");
      metrics.workerFailures.labels(row.worker, error.code).inc();
      if (result.kind === "broken") metrics.streamErrors.labels(job.route.served.name, error.code).inc();
      else this.release(job, row);
      const { requestId } = job;
      const { worker, rank } = row;
      const { code, message } = error;
      this.log.warn("A try failed.", { requestId, worker, rank, code, message }, `${worker} ${code}`);
    }
    const open = breakers.state(row.worker, row.incarnation, deps.clock.now()) !== "closed";
    metrics.breakerOpen.labels(row.worker).set(open ? 1 : 0);
    return result;
  }

  private plan(job: Job, scored: Scored, row: FleetRow, deadlineAtMs: number | null): Plan {
    const { promptTokens } = job.route;
    return {
      requestId: job.planId,
      agent: row.agent,
      model: job.route.served.model,
      worker: row.worker,
      rank: row.rank,
      incarnation: row.incarnation,
      role: row.role,
      deadlineMs: deadlineAtMs === null ? null : Math.max(1, deadlineAtMs - this.parts.deps.clock.now()),
      load: {
        promptTokens,
        overlapTokens: job.route.overlapTokens(scored),
        blocks: Math.ceil(promptTokens / row.blockSize),
      },
      dropUsage: job.stream && !job.wantsUsage,
      cacheSalt: null,
    };
  }

  /** Reservation and prediction in one write, which nobody waits for. */
  private reserve(job: Job, plan: Plan, row: FleetRow): void {
    const { router, deps } = this.parts;
    const { prompt, promptTokens } = job.route;
    const { chain, salted } = prompt;
    this.write(job, () =>
      deps.store.reserve({
        worker: row.worker,
        rank: row.rank,
        incarnation: row.incarnation,
        requestId: plan.requestId,
        blocks: plan.load.blocks,
        prefillTokens: Math.max(0, promptTokens - plan.load.overlapTokens),
        reservationTtlMs: RESERVATION_TTL_MS,
        prediction: chain && {
          keys: chain.keys,
          tokensPerKey:
            chain.scheme === "tokens" ? chain.unitSize : (promptTokens * chain.unitSize) / prompt.bytes,
          ttlMs: predictionLifeMs(row, salted, this.config, router.feed),
        },
      }),
    );
  }

  private release(job: Job, row: FleetRow): void {
    this.write(job, () => this.parts.deps.store.release(row, job.planId));
  }

  private write({ client }: Job, action: () => MaybePromise<void>): void {
    this.parts.guard.write(action, (work) => client.waitUntil?.(work));
  }

  /** Reported usage teaches the bytes-per-token ratio and shows how true predictions are. */
  private learn(job: Job, scored: Scored, usage: Usage): void {
    const { metrics, estimator } = this.parts;
    const { served, prompt } = job.route;
    if (prompt.exactTokens === null && prompt.chain?.complete) {
      estimator.observe(served.model, prompt.bytes, usage.promptTokens, served.card.bytesPerToken);
    }
    if (usage.cachedTokens === null) return;
    const expected = job.route.overlapTokens(scored);
    const labels = [served.name, scored.candidate.worker] as const;
    metrics.promptTokens.labels(...labels).inc(usage.promptTokens);
    metrics.predictedTokens.labels(...labels).inc(expected);
    metrics.reportedTokens.labels(...labels).inc(usage.cachedTokens);
    metrics.cachedTokenError.labels(...labels).observe(Math.abs(expected - usage.cachedTokens));
  }

  private answerHeaders(job: Job, scored: Scored): Record<string, string> {
    const { route, requestId } = job;
    const headers: Record<string, string> = {
      "x-request-id": requestId,
      "x-kedge-rung": route.rung(scored),
    };
    if (this.config.explain) {
      headers["x-kedge-worker"] = headerSafe(`${scored.candidate.worker}/${scored.candidate.rank}`);
      headers["x-kedge-overlap-tokens"] = String(route.overlapTokens(scored));
      headers["x-kedge-prompt-tokens"] = String(route.promptTokens);
    }
    return headers;
  }
}

/** Worker names are the operator's free text; headers are not. */
function headerSafe(text: string): string {
  return /^[\x21-\x7e]+$/.test(text) ? text : encodeURI(text);
}
