/** The process that makes the load: apart from the gateway, so that neither's event loop delays what the other times. */

import { setTimeout as delay } from "node:timers/promises";
import { chatClient, type Exchange } from "./client.ts";
import { type FromLoadProcess, type Job, type JobResult, type ToLoadProcess, workloadOf } from "./job.ts";
import { type LoadProgress, runLoad } from "./load.ts";
import { type MachineUse, meter } from "./machine.ts";
import { seeded } from "./random.ts";

const PROGRESS_INTERVAL_MS = 250;

const stop = new AbortController();

// Ctrl-C reaches the whole process group; the parent decides what it means, and this process hands over what it has.
process.on("SIGINT", () => {});
process.on("SIGTERM", () => {});
process.on("disconnect", () => process.exit(1));
process.on("message", (message: ToLoadProcess) => {
  if (message.type === "stop") stop.abort();
  else void run(message.job);
});

function tell(message: FromLoadProcess): void {
  process.send?.(message);
}

async function run(job: Job): Promise<void> {
  try {
    const result = await measure(job);
    tell({ type: "done", result });
  } catch (thrown) {
    tell({ type: "failed", message: thrown instanceof Error ? thrown.message : String(thrown) });
  }
}

async function measure(job: Job): Promise<JobResult> {
  const client = chatClient({
    url: job.url,
    model: job.model,
    headers: job.headers,
    timeoutMs: job.requestTimeoutMs,
    now: () => performance.now(),
  });
  let stopMeter: (() => MachineUse) | null = null;
  let machine: MachineUse = { busy: 0, processCores: 0, loopLagP99Ms: 0 };
  try {
    const result = await runLoad(
      {
        workload: workloadOf(job.workload),
        load: job.load,
        requests: job.requests,
        warmUpRequests: job.warmUpRequests,
        maxWallMs: job.maxWallMs,
        maxInFlight: job.maxInFlight,
        random: seeded(job.seed, "arrivals"),
      },
      {
        send: client.chat,
        now: () => performance.now(),
        sleep: (ms, signal) => delay(ms, undefined, { signal }).catch(() => {}),
        signal: stop.signal,
        onWindow: (at) => {
          if (at === "start") stopMeter = meter();
          else if (stopMeter !== null) machine = stopMeter();
          tell({ type: "window", at });
        },
        onProgress: throttled((progress) => tell({ type: "progress", progress }), PROGRESS_INTERVAL_MS),
      },
    );
    // Answers have served their purpose; they would only be copied.
    const mute = (exchange: Exchange): Exchange => ({ ...exchange, text: "" });
    return { ...result, exchanges: result.exchanges.map(mute), warmUps: result.warmUps.map(mute), machine };
  } finally {
    await client.close();
  }
}

function throttled(
  report: (progress: LoadProgress) => void,
  intervalMs: number,
): (progress: LoadProgress) => void {
  let lastMs = Number.NEGATIVE_INFINITY;
  return (progress) => {
    const nowMs = performance.now();
    if (nowMs - lastMs < intervalMs) return;
    lastMs = nowMs;
    report(progress);
  };
}
