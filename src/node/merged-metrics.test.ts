/** Pages of several processes become one valid page that says whose each series is. */

import { expect, it } from "vitest";
import { Registry } from "../telemetry/registry.ts";
import { mergeMetrics } from "./merged-metrics.ts";

function page(requests: number): string {
  const registry = new Registry();
  registry.counter({ name: "plain_total", help: "No labels." }).labels().inc(requests);
  registry
    .counter({ name: "odd_total", help: "Odd labels.", labels: ["model"] })
    .labels('a "b" {c}')
    .inc(requests);
  registry
    .histogram({ name: "time_seconds", help: "Time.", buckets: [1] })
    .labels()
    .observe(requests);
  return registry.encode();
}

it("keeps families together and labels every series with its process", () => {
  expect(
    mergeMetrics(
      new Map([
        ["0", page(1)],
        ["1", page(2)],
      ]),
    ),
  ).toBe(`# HELP plain_total No labels.
# TYPE plain_total counter
plain_total{process="0"} 1
plain_total{process="1"} 2
# HELP odd_total Odd labels.
# TYPE odd_total counter
odd_total{process="0",model="a \\"b\\" {c}"} 1
odd_total{process="1",model="a \\"b\\" {c}"} 2
# HELP time_seconds Time.
# TYPE time_seconds histogram
time_seconds_bucket{process="0",le="1"} 1
time_seconds_bucket{process="0",le="+Inf"} 1
time_seconds_sum{process="0"} 1
time_seconds_count{process="0"} 1
time_seconds_bucket{process="1",le="1"} 0
time_seconds_bucket{process="1",le="+Inf"} 1
time_seconds_sum{process="1"} 2
time_seconds_count{process="1"} 1
`);
});

it("a process that is only starting has no page", () => {
  expect(mergeMetrics(new Map())).toBe("\n");
});
