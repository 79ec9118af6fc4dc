/**
 * Ten minutes of mixed traffic over the whole distributed plane: two gateways in workerd, four engines behind agents, one engine restarted
 * each minute. No client sees an error that Kedge made, memory stays flat, and the index equals the engines' block tables at the end.
 * KEDGE_SOAK_SECONDS shortens it, KEDGE_SOAK_RATE sets the requests per second, KEDGE_SOAK_RESULT names a file for the result.
 */

import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { expect, it } from "vitest";
import { parseJson } from "../../src/json/index.ts";
import { ChatRenderer } from "../../src/prefix/render/index.ts";
import { seededRandom } from "../../src/routing/testing.ts";
import { ask } from "../faults/load.ts";
import { type Engine, Plane } from "../faults/plane.ts";
import { promptOf } from "../faults/prompts.ts";
import { describeWithServers } from "../support/servers.ts";
import { bundleWorker, type RunningWorker, runWorker } from "../support/worker-bundle.ts";
import { ChatLoad, type Message, type Outcome } from "./chats.ts";
import { cpuMs, MemoryLog, quantile } from "./processes.ts";

const SECONDS = Number(process.env.KEDGE_SOAK_SECONDS ?? 600);
const PER_SECOND = Number(process.env.KEDGE_SOAK_RATE ?? 110);
const LEAST_PER_SECOND = 100;
const SEED = 20_251;
const MODEL = "mock";
const KEY = "soak-key";
const GATEWAYS = 2;
const ENGINES = 4;
/** Of 16 tokens, per engine: half of what the chats that go on at a time would fill. */
const CACHE_BLOCKS = 400;
const MAX_TOKENS = 8;
const RESTART_EVERY_MS = 60_000;
const FIRST_RESTART_MS = 30_000;
const PROGRESS_MS = 10_000;
/** At half the rate, and left out of the comparison of memory: heaps grow to their working size. */
const WARM_UP_SECONDS = Math.min(60, SECONDS / 4);
/** In less, processes have not yet grown to their working size. */
const MEMORY_TOLD_SECONDS = 300;
/** An isolate's limit where it is deployed. Without one the runtime keeps garbage for as long as the machine has room for it. */
const ISOLATE_FLAGS = "--max-heap-size=128";
/** Of an isolate's heap without garbage, while tens of thousands of requests pass. */
const HEAP_GROWTH_ALLOWED_MB = 2;
/** A stream that dies with its engine is told of a moment later; on a busy machine that is long. */
const DEATH_TOLD_MS = 5_000;
const SETTLED_WITHIN_MS = 120_000;

interface Restart {
  readonly worker: string;
  readonly signal: NodeJS.Signals;
  readonly atMs: number;
  goneMs: number;
}

describeWithServers("Soak", () => {
  it(`${SECONDS} s of chats: no error by Kedge, memory flat, index true`, async () => {
    const plane = await Plane.start({
      engines: ENGINES,
      engineFlags: ["--num-gpu-blocks-override", String(CACHE_BLOCKS)],
    });
    const workers = await startWorkers(plane);
    const parts: Readonly<Record<string, () => number | undefined>> = {
      ...Object.fromEntries(workers.map(({ pid }, i) => [`workerd-${i}`, () => pid])),
      ...Object.fromEntries(plane.engines.map(({ agent }) => [agent.name, () => agent.pid])),
      indexer: () => plane.indexers[0]!.process.pid,
      "redis-rest": () => plane.rest.pid,
      "redis-server": () => plane.redis.pid,
      "nats-server": () => plane.nats.pid,
    };
    const memory = new MemoryLog(parts);
    const outcomes: Outcome[] = [];
    const load = new ChatLoad(
      {
        urls: workers.map(({ url }) => url),
        headers: { authorization: `Bearer ${KEY}` },
        model: MODEL,
        maxTokens: MAX_TOKENS,
        random: seededRandom(SEED),
      },
      (outcome) => outcomes.push(outcome),
    );
    const cpuBefore = cpuOf(parts);
    const startMs = performance.now();
    const restarts: Restart[] = [];
    const restarting = restartEngines(plane.engines, restarts, startMs);
    let told = 0;
    const progress = setInterval(() => {
      console.log(progressLine(outcomes.slice(told), performance.now() - startMs, load, memory.sample()));
      told = outcomes.length;
    }, PROGRESS_MS);
    await load.run(WARM_UP_SECONDS * 1_000, PER_SECOND / 2);
    const heapsBeforeMb = await heapsMb(workers);
    const warmAtMs = performance.now();
    const warmedUp = outcomes.length;
    await load.run((SECONDS - WARM_UP_SECONDS) * 1_000, PER_SECOND);
    const tookSeconds = (performance.now() - warmAtMs) / 1_000;
    clearInterval(progress);
    const cpuAfter = cpuOf(parts);
    await restarting;
    const heapsAfterMb = await heapsMb(workers);

    const prompts = await renderAll(plane, load.prompts);
    let indexFault: unknown = null;
    const settling = performance.now();
    await plane.indexIsTrue(prompts, plane.engines, SETTLED_WITHIN_MS).catch((thrown) => {
      indexFault = thrown;
    });
    const settledMs = Math.round(performance.now() - settling);
    const restartedStreams = outcomes.filter(
      (one) => one.kind === "broken in band" && diedWith(one, restarts),
    );
    const faults = outcomes.filter(
      (one) => (one.kind === "wrong" || one.kind === "broken in band") && !restartedStreams.includes(one),
    );
    const growth = memory.growth(Math.ceil((WARM_UP_SECONDS * 1_000) / PROGRESS_MS));
    const rate = (outcomes.length - warmedUp) / tookSeconds;
    const result = {
      seconds: Math.round(tookSeconds),
      warmUpSeconds: WARM_UP_SECONDS,
      requests: outcomes.length,
      perSecond: rounded(rate),
      heldBack: load.heldBack,
      kinds: countBy(outcomes, ({ kind }) => kind),
      statuses: countBy(outcomes, ({ status }) => String(status)),
      rungs: countBy(outcomes, ({ rung }) => rung),
      workers: countBy(outcomes, ({ worker }) => worker),
      streamsDeadWithTheirEngine: restartedStreams.length,
      faults: faults.length,
      latencyMs: latencies(outcomes.slice(warmedUp)),
      cachedShare: cachedShare(outcomes),
      restarts: restarts.map(
        ({ worker, signal, atMs }) => `${Math.round((atMs - startMs) / 1_000)} s ${worker} ${signal}`,
      ),
      growth: growth.map((one) => ({
        ...one,
        firstHalfMb: rounded(one.firstHalfMb),
        secondHalfMb: rounded(one.secondHalfMb),
      })),
      cpuMsPerRequest: Object.fromEntries(
        Object.keys(parts).map((part) => [
          part,
          rounded((cpuAfter[part]! - cpuBefore[part]!) / outcomes.length, 2),
        ]),
      ),
      heapsBeforeMb,
      heapsAfterMb,
      promptsCompared: prompts.length,
      indexTrueAfterMs: indexFault === null ? settledMs : null,
    };
    console.log(JSON.stringify(result, null, 2));
    for (const one of faults.slice(0, 20))
      console.log(
        JSON.stringify({ ...one, sentAtMs: one.sentAtMs - startMs, endedAtMs: one.endedAtMs - startMs }),
      );
    if (process.env.KEDGE_SOAK_RESULT)
      writeFileSync(process.env.KEDGE_SOAK_RESULT, JSON.stringify(result, null, 2));
    expect(faults).toEqual([]);
    if (indexFault !== null) throw indexFault;
    for (const [i, mb] of heapsAfterMb.entries()) {
      expect(mb - heapsBeforeMb[i]!).toBeLessThan(HEAP_GROWTH_ALLOWED_MB);
    }
    if (SECONDS >= MEMORY_TOLD_SECONDS) expect(growth.filter(({ isFlat }) => !isFlat)).toEqual([]);
    expect(rate).toBeGreaterThanOrEqual(LEAST_PER_SECOND);
    expect(load.heldBack).toBe(0);
  });
});

async function startWorkers(plane: Plane): Promise<RunningWorker[]> {
  const bundle = await bundleWorker("workers/gateway/index.ts");
  const settings = {
    ...plane.workerSettings,
    KEDGE_API_KEYS: createHash("sha256").update(KEY).digest("hex"),
  };
  const headers = { authorization: `Bearer ${KEY}` };
  const workers: RunningWorker[] = [];
  process.env.MINIFLARE_WORKERD_V8_FLAGS ??= ISOLATE_FLAGS;
  // One after the other: the newest workerd is the one just started.
  for (let i = 0; i < GATEWAYS; i++) {
    const worker = await runWorker(bundle, settings);
    plane.closeAtEnd(() => worker.close());
    await plane.until("the Worker knows the fleet", async () => {
      return (await ask(worker.url, promptOf(i, i), { headers })).rung === "exact";
    });
    workers.push(worker);
  }
  return workers;
}

function cpuOf(parts: Readonly<Record<string, () => number | undefined>>): Record<string, number> {
  return Object.fromEntries(Object.entries(parts).map(([part, pid]) => [part, cpuMs(pid())]));
}

/** Of the Workers' isolates, in MB, once their garbage is collected. */
async function heapsMb(workers: readonly RunningWorker[]): Promise<number[]> {
  const heaps = await Promise.all(workers.map((worker) => worker.heapBytes()));
  return heaps.map((bytes) => rounded(bytes / 2 ** 20));
}

/** In turn, by turns killed and asked to end, until the time is over. */
async function restartEngines(
  engines: readonly Engine[],
  restarts: Restart[],
  startMs: number,
): Promise<void> {
  for (let i = 0, atMs = FIRST_RESTART_MS; atMs < SECONDS * 1_000; i++, atMs += RESTART_EVERY_MS) {
    const waitMs = startMs + atMs - performance.now();
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    const { worker, process } = engines[i % engines.length]!;
    const signal = i % 2 === 0 ? "SIGKILL" : "SIGTERM";
    const restart: Restart = { worker, signal, atMs: performance.now(), goneMs: Number.POSITIVE_INFINITY };
    restarts.push(restart);
    await process.stop(signal);
    restart.goneMs = performance.now();
    await process.start();
  }
}

/** A stream that had begun when its engine ended: nobody else can go on with it, and it says so itself (design D9). */
function diedWith({ worker, sentAtMs, endedAtMs, stream }: Outcome, restarts: readonly Restart[]): boolean {
  return (
    stream &&
    restarts.some(
      (one) =>
        `${one.worker}/0` === worker &&
        sentAtMs <= one.goneMs &&
        endedAtMs >= one.atMs &&
        endedAtMs <= one.goneMs + DEATH_TOLD_MS,
    )
  );
}

/** As engines read them. */
async function renderAll(plane: Plane, chats: Iterable<readonly Message[]>): Promise<string[]> {
  const [row] = await plane.fleet();
  const renderer = new ChatRenderer(row!.card, { now: () => Date.now() });
  return Array.from(chats, (messages) => {
    const rendered = renderer.renderChat(parseJson(JSON.stringify({ model: MODEL, messages })));
    if (rendered.kind !== "text") throw new Error("a chat without a text");
    return rendered.text;
  });
}

function progressLine(
  outcomes: readonly Outcome[],
  sinceMs: number,
  load: ChatLoad,
  memoryMb: Readonly<Record<string, number>>,
): string {
  const seconds = String(Math.round(sinceMs / 1_000)).padStart(4);
  const kinds = JSON.stringify(countBy(outcomes, ({ kind }) => kind));
  const rungs = JSON.stringify(countBy(outcomes, ({ rung }) => rung));
  const { p50, p99 } = latencies(outcomes);
  const rate = rounded((outcomes.length / PROGRESS_MS) * 1_000);
  const memory = Object.entries(memoryMb).map(([part, mb]) => `${part} ${mb}`);
  return `${seconds} s: ${rate}/s, ${load.underWay} under way, p50 ${p50} p99 ${p99} ms, ${kinds} ${rungs} MB: ${memory.join(", ")}`;
}

function latencies(outcomes: readonly Outcome[]): { p50: number; p99: number; most: number } {
  const costs = outcomes.filter(({ kind }) => kind === "answered").map((one) => one.endedAtMs - one.sentAtMs);
  return {
    p50: rounded(quantile(costs, 0.5)),
    p99: rounded(quantile(costs, 0.99)),
    most: rounded(quantile(costs, 1)),
  };
}

function cachedShare(outcomes: readonly Outcome[]): number {
  const sum = (of: (one: Outcome) => number) => outcomes.reduce((total, one) => total + of(one), 0);
  return rounded(sum(({ cachedTokens }) => cachedTokens) / sum(({ promptTokens }) => promptTokens), 3);
}

function countBy(outcomes: readonly Outcome[], name: (outcome: Outcome) => string): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const one of outcomes) counts[name(one)] = (counts[name(one)] ?? 0) + 1;
  return counts;
}

const rounded = (figure: number, digits = 1): number => Number(figure.toFixed(digits));
