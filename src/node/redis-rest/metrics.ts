/** What the REST front counts: requests, billed commands, bytes and times, for /metrics and `stats()`. */

import { type Counter, exponentialBuckets, type Histogram, Registry } from "../../telemetry/registry.ts";

export interface RestStats {
  /** HTTP requests to the command routes, refused ones included. */
  readonly requests: number;
  /** Top-level commands sent to Redis, as Upstash bills them: each command of a pipeline or transaction is one. */
  readonly commands: number;
  /** Bytes of request bodies. */
  readonly bytesIn: number;
  /** Bytes of response bodies. */
  readonly bytesOut: number;
}

export const ROUTES = ["command", "path", "pipeline", "multi-exec", "subscribe"] as const;
export type Route = (typeof ROUTES)[number];

export class RestMetrics {
  readonly registry = new Registry();
  private readonly requests = this.registry.counter({
    name: "kedge_redis_rest_requests_total",
    help: "Requests by route and HTTP status.",
    labels: ["route", "status"],
  });
  private readonly commands = this.registry.counter({
    name: "kedge_redis_rest_commands_total",
    help: "Top-level commands sent to Redis, which is what Upstash bills.",
    labels: ["command"],
  });
  private readonly errors = this.registry.counter({
    name: "kedge_redis_rest_command_errors_total",
    help: "Commands by what went wrong: refused here, error from Redis, lost on the way.",
    labels: ["kind"],
  });
  private readonly bytes = this.registry.counter({
    name: "kedge_redis_rest_bytes_total",
    help: "Bytes of request (in) and response (out) bodies.",
    labels: ["direction"],
  });
  private readonly durations = this.registry.histogram({
    name: "kedge_redis_rest_request_duration_seconds",
    help: "Time from a request's headers to its whole answer.",
    labels: ["route"],
    buckets: exponentialBuckets(0.0001, 2, 16),
  });
  readonly subscribers = this.registry
    .gauge({ name: "kedge_redis_rest_subscribers", help: "Open subscriptions." })
    .labels();
  private readonly up = this.registry
    .gauge({ name: "kedge_redis_rest_redis_up", help: "1 while Redis is connected." })
    .labels();
  private readonly bytesIn = this.bytes.labels("in");
  private readonly bytesOut = this.bytes.labels("out");
  private readonly byCommand = new Map<string, Counter>();
  private readonly byRoute = new Map<Route, Histogram>(
    ROUTES.map((route) => [route, this.durations.labels(route)]),
  );
  private totals = { requests: 0, commands: 0, bytesIn: 0, bytesOut: 0 };

  stats(): RestStats {
    return { ...this.totals };
  }

  command(label: string): void {
    this.totals.commands++;
    let counter = this.byCommand.get(label);
    if (counter === undefined) {
      counter = this.commands.labels(label);
      this.byCommand.set(label, counter);
    }
    counter.inc();
  }

  error(kind: "refused" | "redis" | "lost"): void {
    this.errors.labels(kind).inc();
  }

  received(bytes: number): void {
    this.totals.bytesIn += bytes;
    this.bytesIn.inc(bytes);
  }

  sent(bytes: number): void {
    this.totals.bytesOut += bytes;
    this.bytesOut.inc(bytes);
  }

  /** Counted when its answer goes out, so that whoever has the answer finds it counted. */
  answered(route: Route, status: number, seconds: number): void {
    this.totals.requests++;
    this.requests.labels(route, `${status}`).inc();
    this.byRoute.get(route)!.observe(seconds);
  }

  encode(redisUp: boolean): string {
    this.up.set(redisUp ? 1 : 0);
    return this.registry.encode();
  }
}
