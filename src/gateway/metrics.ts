/** The gateway's metrics by name; per-model handles are looked up once per request. */

import {
  type Counter,
  exponentialBuckets,
  type Family,
  type Gauge,
  type Histogram,
  type Registry,
} from "../telemetry/registry.ts";

const SECONDS = exponentialBuckets(0.001, 2, 20);
const TOKEN_SECONDS = exponentialBuckets(0.000_5, 2, 16);
const VIEW_SECONDS = exponentialBuckets(0.000_25, 2, 14);
const MICROSECONDS = exponentialBuckets(5, 2, 16);

/** Where in its life a request was when its client left. */
export type AbortPhase = "before_headers" | "before_first_data" | "streaming";

export interface ModelMeters {
  readonly inflight: Gauge;
  readonly duration: Histogram;
  readonly firstToken: Histogram;
  readonly interToken: Histogram;
  readonly keying: Histogram;
  readonly decision: Histogram;
}

export class GatewayMetrics {
  readonly requests: Family<Counter>;
  readonly rungs: Family<Counter>;
  readonly unkeyed: Family<Counter>;
  readonly retries: Family<Counter>;
  readonly aborts: Family<Counter>;
  readonly streamErrors: Family<Counter>;
  readonly workerFailures: Family<Counter>;
  readonly breakerOpen: Family<Gauge>;
  readonly viewErrors: Family<Counter>;
  readonly viewSkipped: Counter;
  readonly viewUnavailable: Gauge;
  /** Of a view that does not answer at once. */
  readonly viewRead: Histogram;
  /** Sums over requests whose engine reported cached tokens, so that the two are comparable. */
  readonly promptTokens: Family<Counter>;
  readonly predictedTokens: Family<Counter>;
  readonly reportedTokens: Family<Counter>;
  readonly cachedTokenError: Family<Histogram>;
  private readonly families: {
    readonly inflight: Family<Gauge>;
    readonly duration: Family<Histogram>;
    readonly firstToken: Family<Histogram>;
    readonly interToken: Family<Histogram>;
    readonly keying: Family<Histogram>;
    readonly decision: Family<Histogram>;
  };
  private readonly models = new Map<string, ModelMeters>();

  constructor(registry: Registry) {
    const model = ["model"];
    const worker = ["model", "worker"];
    const counter = (name: string, help: string, labels: readonly string[]) =>
      registry.counter({ name: `kedge_${name}`, help, labels });
    const histogram = (name: string, help: string, buckets: readonly number[]) =>
      registry.histogram({ name: `kedge_${name}`, help, labels: model, buckets });
    this.requests = counter("requests_total", "Requests by outcome.", [
      "model",
      "endpoint",
      "stream",
      "status",
    ]);
    this.rungs = counter("rung_requests_total", "Requests by rung of the ladder.", ["model", "rung"]);
    this.unkeyed = counter("unkeyed_requests_total", "Requests routed without prefix keys.", model);
    this.retries = counter("retries_total", "Tries that failed before the first data and went elsewhere.", [
      "model",
      "code",
    ]);
    this.aborts = counter("aborts_total", "Requests whose client left.", ["model", "phase"]);
    this.streamErrors = counter("stream_errors_total", "Streams that failed after their first data.", [
      "model",
      "code",
    ]);
    this.workerFailures = counter("worker_failures_total", "Failed tries by worker.", ["worker", "code"]);
    this.breakerOpen = registry.gauge({
      name: "kedge_breaker_open",
      help: "1 while this gateway's breaker of a worker is not closed.",
      labels: ["worker"],
    });
    this.viewErrors = counter("view_errors_total", "Reads of the view that failed or came too late.", [
      "code",
    ]);
    this.viewSkipped = counter(
      "view_skipped_reads_total",
      "Reads spared while it is out of reach.",
      [],
    ).labels();
    this.viewUnavailable = registry
      .gauge({ name: "kedge_view_unavailable", help: "1 while requests are routed without the view." })
      .labels();
    this.viewRead = registry
      .histogram({
        name: "kedge_view_read_seconds",
        help: "Waiting for a remote view.",
        buckets: VIEW_SECONDS,
      })
      .labels();
    this.promptTokens = counter(
      "prompt_tokens_total",
      "Prompt tokens of requests with a reported hit.",
      worker,
    );
    this.predictedTokens = counter(
      "predicted_cached_tokens_total",
      "Cached tokens that routing expected.",
      worker,
    );
    this.reportedTokens = counter(
      "reported_cached_tokens_total",
      "Cached tokens that engines reported.",
      worker,
    );
    this.cachedTokenError = registry.histogram({
      name: "kedge_cached_token_error",
      help: "Absolute difference of expected and reported cached tokens of a request.",
      labels: worker,
      buckets: [0, 16, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384],
    });
    this.families = {
      inflight: registry.gauge({
        name: "kedge_inflight_requests",
        help: "Requests under way.",
        labels: model,
      }),
      duration: histogram(
        "request_duration_seconds",
        "Time from acceptance to the end of the answer.",
        SECONDS,
      ),
      firstToken: histogram(
        "time_to_first_token_seconds",
        "Time from acceptance to the first data of a stream.",
        SECONDS,
      ),
      interToken: histogram(
        "inter_token_latency_seconds",
        "Time between deliveries of a stream.",
        TOKEN_SECONDS,
      ),
      keying: histogram("keying_microseconds", "Rendering a prompt and hashing its keys.", MICROSECONDS),
      decision: histogram("decision_microseconds", "Reading the view and deciding.", MICROSECONDS),
    };
  }

  /** `model` must be a served name, never a client's free text: labels stay few. */
  of(model: string): ModelMeters {
    let meters = this.models.get(model);
    if (meters === undefined) {
      const { inflight, duration, firstToken, interToken, keying, decision } = this.families;
      meters = {
        inflight: inflight.labels(model),
        duration: duration.labels(model),
        firstToken: firstToken.labels(model),
        interToken: interToken.labels(model),
        keying: keying.labels(model),
        decision: decision.labels(model),
      };
      this.models.set(model, meters);
    }
    return meters;
  }
}
