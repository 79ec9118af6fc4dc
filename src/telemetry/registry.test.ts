/** The metric registry's text equals Prometheus' format and stays bounded. */

import { describe, expect, it } from "vitest";
import { exponentialBuckets, Registry } from "./registry.ts";

describe("Registry", () => {
  it("encodes counters, gauges and histograms in the text format", () => {
    const registry = new Registry();
    registry
      .counter({ name: "a_total", help: "Things.", labels: ["model"] })
      .labels("m")
      .inc(2);
    registry.gauge({ name: "b", help: "Level\\\nnow." }).labels().set(-1.5);
    const histogram = registry.histogram({
      name: "c_seconds",
      help: "Time.",
      labels: ["x"],
      buckets: [0.1, 1],
    });
    for (const value of [0.1, 0.5, 7]) histogram.labels("y").observe(value);
    expect(registry.encode()).toBe(
      [
        "# HELP a_total Things.",
        "# TYPE a_total counter",
        'a_total{model="m"} 2',
        "# HELP b Level\\\\\\nnow.",
        "# TYPE b gauge",
        "b -1.5",
        "# HELP c_seconds Time.",
        "# TYPE c_seconds histogram",
        'c_seconds_bucket{x="y",le="0.1"} 1',
        'c_seconds_bucket{x="y",le="1"} 2',
        'c_seconds_bucket{x="y",le="+Inf"} 3',
        'c_seconds_sum{x="y"} 7.6',
        'c_seconds_count{x="y"} 3',
        "",
      ].join("\n"),
    );
  });

  it("escapes label values, so that no client text can forge a series", () => {
    const registry = new Registry();
    registry
      .counter({ name: "a_total", help: "A.", labels: ["m"] })
      .labels('x"} 9\n\\')
      .inc();
    expect(registry.encode()).toContain('a_total{m="x\\"} 9\\n\\\\"} 1');
  });

  it("folds series past the bound into one", () => {
    const registry = new Registry();
    const family = registry.counter({ name: "a_total", help: "A.", labels: ["m"], maxSeries: 2 });
    for (let i = 0; i < 50; i++) family.labels(`m${i}`).inc();
    const lines = registry
      .encode()
      .split("\n")
      .filter((line) => line.startsWith("a_total{"));
    expect(lines).toEqual(['a_total{m="m0"} 1', 'a_total{m="m1"} 1', 'a_total{m="other"} 48']);
  });

  it("gives one handle per label set and refuses a second metric of the same name", () => {
    const registry = new Registry();
    const family = registry.gauge({ name: "g", help: "G.", labels: ["m"] });
    expect(family.labels("a")).toBe(family.labels("a"));
    expect(() => family.labels()).toThrow(RangeError);
    expect(() => registry.gauge({ name: "g", help: "G." })).toThrow(RangeError);
    expect(() => registry.gauge({ name: "a b", help: "G." })).toThrow(RangeError);
  });

  it("spaces bounds evenly in the logarithm", () => {
    expect(exponentialBuckets(0.001, 2, 4)).toEqual([0.001, 0.002, 0.004, 0.008]);
  });
});
