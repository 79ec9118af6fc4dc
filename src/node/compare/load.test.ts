/** Loads on a virtual clock: constant concurrency, Poisson rates, bounds in requests and time, windows, early ends. */

import { describe, expect, test } from "vitest";
import type { Exchange } from "./client.ts";
import { type LoadDeps, type LoadOptions, type LoadResult, runLoad } from "./load.ts";
import { seeded } from "./random.ts";
import { type ChatRequest, sharedPrompts, type Workload } from "./workload.ts";

/** Time passes only when everything waits. */
class VirtualTime {
  nowMs = 0;
  readonly #due: { atMs: number; wake: () => void }[] = [];

  readonly sleep = (ms: number, signal: AbortSignal): Promise<void> =>
    new Promise((resolve) => {
      const entry = { atMs: this.nowMs + ms, wake: resolve };
      this.#due.push(entry);
      const cancel = (): void => {
        const at = this.#due.indexOf(entry);
        if (at !== -1) this.#due.splice(at, 1);
        resolve();
      };
      if (signal.aborted) cancel();
      else signal.addEventListener("abort", cancel, { once: true });
    });

  async run<T>(work: Promise<T>): Promise<T> {
    let settled = false;
    const watch = work.finally(() => {
      settled = true;
    });
    while (true) {
      await new Promise((resolve) => setImmediate(resolve));
      if (settled) return await watch;
      this.#due.sort((a, b) => a.atMs - b.atMs);
      const next = this.#due.shift();
      if (next === undefined) throw new Error("Everything waits for ever.");
      this.nowMs = Math.max(this.nowMs, next.atMs);
      next.wake();
    }
  }
}

interface Served {
  readonly result: LoadResult;
  readonly requests: readonly ChatRequest[];
  readonly startsMs: readonly number[];
  readonly peak: number;
}

const WORKLOAD = sharedPrompts({
  groups: 3,
  usersPerGroup: 2,
  turns: 2,
  systemTokens: 10,
  questionTokens: 5,
  outputTokens: 5,
  spread: 0,
  seed: 1,
  salt: "",
});

/** Serves every request in `serviceMs`, or as the override says. */
async function serve(
  options: Partial<LoadOptions>,
  serviceMs: (index: number) => number,
  more: { error?: (index: number) => string | null; stopAtMs?: number } = {},
): Promise<Served> {
  const time = new VirtualTime();
  const requests: ChatRequest[] = [];
  const startsMs: number[] = [];
  const stop = new AbortController();
  let inFlight = 0;
  let peak = 0;
  const send: LoadDeps["send"] = async (request, signal) => {
    const index = requests.push(request) - 1;
    const startMs = time.nowMs;
    startsMs.push(startMs);
    peak = Math.max(peak, ++inFlight);
    await time.sleep(serviceMs(index), signal);
    inFlight--;
    return answer(
      startMs,
      time.nowMs,
      signal.aborted ? "aborted" : (more.error?.(index) ?? null),
      `answer ${index}`,
    );
  };
  if (more.stopAtMs !== undefined) {
    void time.sleep(more.stopAtMs, new AbortController().signal).then(() => stop.abort());
  }
  const result = await time.run(
    runLoad(
      {
        workload: { ...WORKLOAD, warmUp: () => [] },
        load: { kind: "closed", concurrency: 4 },
        requests: 20,
        warmUpRequests: 0,
        maxWallMs: 1e9,
        maxInFlight: 100,
        random: seeded(1),
        ...options,
      },
      { send, now: () => time.nowMs, sleep: time.sleep, signal: stop.signal },
    ),
  );
  return { result, requests, startsMs, peak };
}

function answer(startMs: number, endMs: number, error: string | null, text: string): Exchange {
  return {
    startMs,
    firstTextMs: endMs,
    lastTextMs: endMs,
    endMs,
    text,
    promptTokens: 1,
    completionTokens: 1,
    cachedTokens: 0,
    predictedTokens: 0,
    worker: null,
    rung: null,
    error,
  };
}

describe("closed loop", () => {
  test("keeps the concurrency and stops at the number of requests", async () => {
    const { result, requests, peak } = await serve({ requests: 20 }, (i) => 10 + (i % 3));
    expect(peak).toBe(4);
    expect(requests).toHaveLength(20);
    expect(result.exchanges).toHaveLength(20);
    expect(result.endedBy).toBe("requests");
  });

  test("carries answers into the next turn, and begins anew after a failure", async () => {
    const options = { load: { kind: "closed", concurrency: 1 }, requests: 4 } as const;
    const { requests } = await serve(options, () => 1, { error: (i) => (i === 2 ? "http_503" : null) });
    expect(requests.map((request) => request.messages.length)).toEqual([2, 4, 2, 2]);
    expect(requests[1]?.messages[2]).toEqual({ role: "assistant", content: "answer 0" });
  });

  test("measures from the end of the warm-up to the last start, while the load is constant", async () => {
    const { result, startsMs } = await serve({ requests: 8, warmUpRequests: 8 }, () => 100);
    expect(result.exchanges).toHaveLength(8);
    expect(result.windowStartMs).toBe(startsMs[8]);
    expect(result.windowEndMs).toBe(startsMs[15]);
  });

  test("sends the workload's own warm-up first, unmeasured", async () => {
    const { requests, result } = await serve({ workload: WORKLOAD, requests: 5 }, () => 10);
    expect(requests.slice(0, 3).every((request) => request.max_tokens === 1)).toBe(true);
    expect(requests).toHaveLength(8);
    expect(result.exchanges).toHaveLength(5);
  });

  test("ends in time with what was measured", async () => {
    const { result, requests } = await serve({ requests: 1000, maxWallMs: 1005 }, () => 100);
    expect(result.endedBy).toBe("time");
    expect(result.exchanges).toHaveLength(40);
    expect(requests).toHaveLength(44);
    expect(result.windowEndMs).toBe(1005);
  });

  test("ends when it is stopped, with what was measured", async () => {
    const { result } = await serve({ requests: 1000 }, () => 100, { stopAtMs: 250 });
    expect(result.endedBy).toBe("stopped");
    expect(result.exchanges).toHaveLength(8);
    expect(result.exchanges.every((exchange) => exchange.error === null)).toBe(true);
  });

  test("ends with the workload and lets running conversations finish", async () => {
    const few: Workload = {
      ...WORKLOAD,
      warmUp: () => [],
      session: (i) => (i < 6 ? WORKLOAD.session(i) : null),
    };
    const { result } = await serve({ workload: few, requests: 1000 }, () => 10);
    expect(result.endedBy).toBe("workload");
    expect(result.exchanges).toHaveLength(12);
  });
});

describe("open loop", () => {
  test("arrives at the rate, whatever the answers take", async () => {
    const options = { load: { kind: "open", ratePerSecond: 50 }, requests: 4000, maxInFlight: 1000 } as const;
    const { startsMs } = await serve(options, () => 2000);
    const seconds = (startsMs.at(-1)! - startsMs[0]!) / 1000;
    // 4,000 arrivals: standard deviation of the mean rate 1.6 %.
    expect(Math.abs(startsMs.length / seconds / 50 - 1)).toBeLessThan(0.06);
    const gaps = startsMs.slice(1).map((startMs, i) => startMs - startsMs[i]!);
    const mean = gaps.reduce((a, b) => a + b) / gaps.length;
    const deviation = Math.sqrt(gaps.reduce((a, gap) => a + (gap - mean) ** 2, 0) / gaps.length);
    expect(deviation / mean).toBeGreaterThan(0.9);
    expect(deviation / mean).toBeLessThan(1.1);
  });

  test("mixes first and later turns as the conversations have them", async () => {
    const options = { load: { kind: "open", ratePerSecond: 100 }, requests: 2000 } as const;
    const { requests } = await serve(options, () => 10);
    const later = requests.filter((request) => request.messages.length > 2).length;
    expect(later / requests.length).toBeGreaterThan(0.42);
    expect(later / requests.length).toBeLessThan(0.52);
  });

  test("gives up when too many are unanswered", async () => {
    const options = { load: { kind: "open", ratePerSecond: 100 }, requests: 2000, maxInFlight: 30 } as const;
    const { result, peak } = await serve(options, () => 1e6);
    expect(result.endedBy).toBe("in-flight");
    expect(peak).toBe(30);
  });

  test("follows a trace, stretched, and counts from when a request was due", async () => {
    const workload: Workload = { ...WORKLOAD, warmUp: () => [], arrivalsMs: [0, 10, 10, 500] };
    const { startsMs, result } = await serve({ workload, load: { kind: "trace", stretch: 4 } }, () => 7);
    expect(startsMs).toEqual([0, 40, 40, 2000]);
    expect(result.exchanges.map((exchange) => exchange.endMs - exchange.startMs)).toEqual([7, 7, 7, 7]);
  });
});
