/** Recorded /metrics pages of vLLM 0.32.0 and 0.23.0, and what old and odd ones say. */

import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { readMetrics } from "./metrics.ts";

const recorded = (file: string): string =>
  readFileSync(new URL(`../../../test/fixtures/vllm/${file}`, import.meta.url), "utf8");

const IDLE = { cacheUsage: 0, running: 0, waiting: 0 };

describe("recorded pages", () => {
  test.each([
    ["metrics/start.txt", 131_072],
    ["metrics/after-many-requests.txt", 131_072],
    ["v0.23.0/metrics.txt", 1_024],
    ["metrics/nixl-prefill.txt", 1_024],
    ["metrics/nixl-decode.txt", 1_024],
  ])("%s", (file, totalBlocks) => {
    const figures = readMetrics(recorded(file));
    expect(figures).toMatchObject({ blockSize: 16, totalBlocks });
    expect([...figures.ranks]).toEqual([[0, IDLE]]);
    expect(figures.processStartSeconds).toBeGreaterThan(1.7e9);
  });

  test("two ranks: figures per rank, the block count is that of both together", () => {
    const figures = readMetrics(recorded("metrics/data-parallel-2.txt"));
    expect([...figures.ranks]).toEqual([
      [0, IDLE],
      [1, IDLE],
    ]);
    expect(figures).toMatchObject({ blockSize: 16, totalBlocks: 2_048 });
  });
});

test("names are matched whole and the older generation is known", () => {
  const figures = readMetrics(
    [
      'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9',
      'vllm:gpu_cache_usage_perc{model_name="m"} 0.25',
      'vllm:num_requests_running{model_name="a,\\"b\\"}"} 3.0',
      "vllm:num_requests_waiting 2",
    ].join("\n"),
  );
  expect([...figures.ranks]).toEqual([[0, { cacheUsage: 0.25, running: 3, waiting: 2 }]]);
});

test("what is not said is null, never 0", () => {
  expect(readMetrics("")).toEqual({
    ranks: new Map(),
    blockSize: null,
    totalBlocks: null,
    processStartSeconds: null,
  });
  const none = readMetrics(
    'vllm:cache_config_info{block_size="None",num_gpu_blocks="None",engine="0"} 1\nvllm:kv_cache_usage_perc{engine="0"} NaN',
  );
  expect(none).toMatchObject({ blockSize: null, totalBlocks: null });
  expect([...none.ranks]).toEqual([[0, { cacheUsage: null, running: null, waiting: null }]]);
});

test("ranks that disagree on the block size give none", () => {
  const line = (rank: number, size: number): string =>
    `vllm:cache_config_info{block_size="${size}",engine="${rank}"} 1`;
  expect(readMetrics(`${line(0, 16)}\n${line(1, 32)}`).blockSize).toBeNull();
});
