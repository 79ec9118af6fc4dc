/**
 * Faults by chance, one to three at a time, over the whole distributed plane under load: whatever dies, hangs or comes back empty together,
 * no request fails that could be served, and index and rungs come right by themselves.
 * KEDGE_FAULT_ROUNDS sets how many, KEDGE_FAULT_SEED repeats a run.
 */

import { createHash } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { expect, it } from "vitest";
import { seededRandom } from "../../src/routing/testing.ts";
import { type Answer, ask, Load, type Prompt } from "../faults/load.ts";
import { Plane } from "../faults/plane.ts";
import type { KedgeProcess } from "../faults/process.ts";
import { promptOf } from "../faults/prompts.ts";
import { describeWithServers } from "../support/servers.ts";
import { bundleWorker, runWorker } from "../support/worker-bundle.ts";

const ROUNDS = Number(process.env.KEDGE_FAULT_ROUNDS ?? 30);
const SEED = Number(process.env.KEDGE_FAULT_SEED ?? 20_261);
const ENGINES = 3;
const MOST_AT_ONCE = 3;
const BEGIN_WITHIN_MS = 1_500;
const LONGEST_MS = 9_000;
const RIGHT_WITHIN_MS = 60_000;
const KEY = "faults-key";
const AUTHORIZED = { headers: { authorization: `Bearer ${KEY}` } };

/** What a part suffers for some milliseconds. */
interface Fault {
  readonly part: string;
  readonly name: string;
  /** Streams that had begun may end in-band. */
  readonly cutsStreams: boolean;
  suffer(ms: number): Promise<void>;
}

function faultsOf(plane: Plane, random: () => number): Fault[] {
  const one = <T>(parts: readonly T[]): T => parts[Math.floor(random() * parts.length)]!;
  const killed = (of: () => KedgeProcess, signal?: NodeJS.Signals) => async (ms: number) => {
    const process = of();
    await process.stop(signal);
    await pause(ms);
    await process.start();
  };
  const hung = (of: () => { pause(): void; resume(): void }) => async (ms: number) => {
    const process = of();
    process.pause();
    await pause(ms);
    process.resume();
  };
  const fault = (part: string, name: string, suffer: Fault["suffer"], cutsStreams = false): Fault => ({
    part,
    name,
    cutsStreams,
    suffer,
  });
  const agent = () => one(plane.engines).agent;
  return [
    fault("redis", "emptied", async (ms) => {
      await plane.redis.stop("SIGKILL");
      await pause(ms);
      await plane.restartRedis();
    }),
    fault(
      "redis",
      "hung",
      hung(() => plane.redis),
    ),
    ...(["kept", "lost"] as const).map((streams) =>
      fault("nats", `stopped, streams ${streams}`, async (ms) => {
        await plane.nats.stop("SIGKILL");
        await pause(ms);
        await plane.restartNats(streams);
      }),
    ),
    fault(
      "nats",
      "hung",
      hung(() => plane.nats),
    ),
    fault(
      "rest",
      "killed",
      killed(() => plane.rest),
    ),
    fault(
      "rest",
      "hung",
      hung(() => plane.rest),
    ),
    fault(
      "indexer",
      "killed",
      killed(() => one(plane.indexers).process),
    ),
    fault(
      "indexer",
      "hung",
      hung(() => one(plane.indexers).process),
    ),
    fault("agent", "killed", killed(agent), true),
    fault("agent", "ended", killed(agent, "SIGTERM"), true),
    fault(
      "engine",
      "killed",
      killed(() => one(plane.engines).process),
      true,
    ),
  ];
}

/** Of different parts, with the time at which each begins and how long it lasts. */
function drawn(faults: readonly Fault[], random: () => number) {
  const chosen: { readonly fault: Fault; readonly afterMs: number; readonly ms: number }[] = [];
  const count = 1 + Math.floor(random() * MOST_AT_ONCE);
  while (chosen.length < count) {
    const fault = faults[Math.floor(random() * faults.length)]!;
    const [afterMs, ms] = [random() * BEGIN_WITHIN_MS, random() * random() * LONGEST_MS].map(Math.round);
    if (!chosen.some((other) => other.fault.part === fault.part)) {
      chosen.push({ fault, afterMs: afterMs!, ms: ms! });
    }
  }
  return chosen;
}

async function startWorker(plane: Plane): Promise<string> {
  const worker = await runWorker(await bundleWorker("workers/gateway/index.ts"), {
    ...plane.workerSettings,
    KEDGE_API_KEYS: createHash("sha256").update(KEY).digest("hex"),
  });
  plane.closeAtEnd(() => worker.close());
  const isExact = async () => (await ask(worker.url, promptOf(1, 1), AUTHORIZED)).rung === "exact";
  await plane.until("the Worker knows the fleet", isExact);
  return worker.url;
}

const isCut = ({ wrong }: Answer) => wrong?.startsWith("in band: ") ?? false;

describeWithServers("Faults by chance", () => {
  it(`${ROUNDS} rounds, seed ${SEED}: no request fails, the index becomes true, everything is exact again`, async () => {
    const random = seededRandom(SEED);
    const plane = await Plane.start({ engines: ENGINES, shards: 3 });
    await plane.addIndexer();
    const gateways = [await plane.gateway(), await plane.gateway()];
    await plane.isExact(gateways);
    const urls = [...gateways.map(({ url }) => url), await startWorker(plane)];
    const faults = faultsOf(plane, random);
    const prompts = new Set<Prompt>();
    for (let round = 0; round < ROUNDS; round++) {
      const load = new Load(urls, { ...AUTHORIZED, families: 5, members: 24 });
      await plane.until("under load", () => load.answers.length > 30);
      const chosen = drawn(faults, random);
      const label = chosen.map(({ fault, ms }) => `${fault.part} ${fault.name} for ${ms} ms`).join(", ");
      await Promise.all(
        chosen.map(async ({ fault, afterMs, ms }) => {
          await pause(afterMs);
          await fault.suffer(ms);
        }),
      );
      const overMs = performance.now();
      const isExact = () => load.isOn("exact", overMs);
      await plane.until(`exact under load after ${label}`, isExact, RIGHT_WITHIN_MS);
      const exactMs = Math.round(performance.now() - overMs);
      await load.stop();
      for (const prompt of load.prompts) prompts.add(prompt);
      await plane.indexIsTrue([...prompts], plane.engines, RIGHT_WITHIN_MS);
      const trueMs = Math.round(performance.now() - overMs);
      const mayCut = chosen.some(({ fault }) => fault.cutsStreams);
      const wrong = load.wrong.filter((answer) => !(mayCut && isCut(answer)));
      const cut = load.wrong.length - wrong.length;
      console.log(
        `${round}: ${label}: ${load.answers.length} answers, ${cut} cut, exact after ${exactMs} ms, true after ${trueMs} ms`,
      );
      expect(wrong, label).toEqual([]);
    }
  });
});
