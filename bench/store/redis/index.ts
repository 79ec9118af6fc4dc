/** The Redis store's part of the benchmark: what decisions, events and idleness cost, and the budgets that they must keep. */

import { REDIS_SERVER } from "../../../test/support/server-processes.ts";
import { count, type Options, type Verdict } from "../report.ts";
import { type DecisionFigures, type DecisionShape, measureDecisions } from "./decisions.ts";
import { type EntryFigures, measureEntries } from "./entries.ts";
import { type EventFigures, type IdleFigures, measureEvents, measureIdle } from "./events.ts";
import { startRig } from "./rig.ts";

export interface RedisFigures {
  /** Version of redis-server. */
  readonly redis: string;
  readonly decisions: readonly DecisionFigures[];
  readonly entries: EntryFigures;
  readonly events: readonly EventFigures[];
  readonly idle: readonly IdleFigures[];
}

/** Holders in a view that is filled for one row of the matrix. */
const MAX_CELLS = 2_000_000;

/** Takes one minute when quick, else four. */
export async function measureRedis({ seed, quick, say, progress }: Options): Promise<{
  figures: RedisFigures;
  verdicts: Verdict[];
}> {
  if (REDIS_SERVER === null)
    throw new Error("redis-server is not installed (Debian: apt-get install redis-server)");
  const rig = await startRig();
  try {
    const redis = /redis_version:(\S+)/.exec(await rig.redis.info("server"))?.[1] ?? "unknown";
    say(`\nthe view in Redis ${redis}, through redis-rest`);
    say(decisionsHeader());
    const decisions: DecisionFigures[] = [];
    for (const shape of shapes(quick)) {
      progress(`${shape.promptKeys} keys, ${shape.workers} workers …`);
      const settings = { seed, requests: quick ? 48 : 256, maxCells: quick ? MAX_CELLS / 8 : MAX_CELLS };
      const figures = await measureDecisions(rig, shape, settings);
      decisions.push(figures);
      progress("");
      say(decisionRow(figures));
    }
    progress("bytes per entry …");
    const entries = await measureEntries(quick ? 100_000 : 400_000, seed);
    progress("");
    say(
      `\nbytes per entry with two holders, ${count(entries.entries)} entries: ${entries.bytesPerEntry.toFixed(1)}; ` +
        `a Redis set per key: ${entries.baselineBytesPerEntry.toFixed(1)}`,
    );
    const events: EventFigures[] = [];
    for (const eventsPerS of EVENT_RATES) {
      progress(`${eventsPerS} block events/s …`);
      events.push(
        await measureEvents(rig, { workers: 16, eventsPerS, durationMs: quick ? 6_000 : 30_000, seed }),
      );
      progress("");
      say(eventLine(events.at(-1)!));
    }
    const idle: IdleFigures[] = [];
    for (const workers of [16, 256]) {
      progress(`idle, ${workers} workers …`);
      idle.push(await measureIdle(rig, workers, quick ? 5_000 : 30_000));
      progress("");
      say(idleLine(idle.at(-1)!));
    }
    const figures = { redis, decisions, entries, events, idle };
    return { figures, verdicts: judge(figures) };
  } finally {
    await rig.close();
  }
}

/** Of all workers together: a fleet with little to do, and one of 16 cards that are well used. */
const EVENT_RATES = [1_000, 10_000];

function shapes(quick: boolean): DecisionShape[] {
  const all: DecisionShape[] = [];
  for (const promptKeys of [64, 512, 8_192]) {
    for (const workers of [1, 16, 256]) all.push({ promptKeys, workers, depths: Math.min(4, workers) });
  }
  // Holders at many depths are what a search dislikes.
  return quick
    ? all
    : [
        ...all,
        { promptKeys: 8_192, workers: 64, depths: 64 },
        { promptKeys: 8_192, workers: 256, depths: 64 },
      ];
}

interface Column {
  readonly title: string;
  readonly width: number;
  readonly digits?: number;
  readonly of: (figures: DecisionFigures) => number;
}

const GROUPS: Readonly<Record<string, readonly Column[]>> = {
  view: [
    { title: "keys", width: 5, of: ({ shape }) => shape.promptKeys },
    { title: "workers", width: 7, of: ({ shape }) => shape.workers },
    { title: "depths", width: 6, of: ({ shape }) => shape.depths },
  ],
  "billed per request": [
    { title: "fresh", width: 8, digits: 2, of: ({ billedFresh }) => billedFresh },
    { title: "stale", width: 9, digits: 2, of: ({ billedStale }) => billedStale },
  ],
  lookup: [
    { title: "up B", width: 6, of: ({ lookup }) => lookup.bytesUp },
    { title: "down B", width: 6, of: ({ lookup }) => lookup.bytesDown },
    { title: "stale", width: 6, of: ({ staleLookup }) => staleLookup.bytesDown },
    { title: "probes", width: 6, digits: 1, of: ({ probes }) => probes },
    { title: "short", width: 5, digits: 2, of: ({ truncated }) => truncated },
    { title: "inner", width: 5, of: ({ lookup }) => lookup.inner },
    { title: "max", width: 4, of: ({ lookup }) => lookup.innerMax },
    { title: "held µs", width: 7, of: ({ lookup }) => lookup.heldUs },
    { title: "max", width: 6, of: ({ lookup }) => lookup.heldMaxUs },
    { title: "cpu µs", width: 6, of: ({ lookup }) => lookup.cpuUs },
  ],
  "reserve and predict": [
    { title: "up B", width: 6, of: ({ reserve }) => reserve.bytesUp },
    { title: "down B", width: 6, of: ({ reserve }) => reserve.bytesDown },
    { title: "inner", width: 5, of: ({ reserve }) => reserve.inner },
    { title: "max", width: 4, of: ({ reserve }) => reserve.innerMax },
    { title: "held µs", width: 7, of: ({ reserve }) => reserve.heldUs },
    { title: "max", width: 6, of: ({ reserve }) => reserve.heldMaxUs },
    { title: "cpu µs", width: 6, of: ({ reserve }) => reserve.cpuUs },
  ],
  "one SMEMBERS per key, and how much more than the lookup that is": [
    { title: "commands", width: 8, of: ({ baseline }) => baseline.commands },
    { title: "bytes", width: 10, of: ({ baseline }) => bytesOf(baseline) },
    { title: "×", width: 6, digits: 1, of: ({ lookup, baseline }) => bytesOf(baseline) / bytesOf(lookup) },
    { title: "cpu µs", width: 7, of: ({ baseline }) => baseline.cpuUs },
    { title: "×", width: 5, digits: 1, of: ({ lookup, baseline }) => baseline.cpuUs / lookup.cpuUs },
  ],
};

function bytesOf({ bytesUp, bytesDown }: { bytesUp: number; bytesDown: number }): number {
  return bytesUp + bytesDown;
}

function decisionsHeader(): string {
  const groups = Object.entries(GROUPS).map(([name, columns]) => {
    const width = columns.reduce((sum, column) => sum + column.width + 1, -1);
    return name.padEnd(width);
  });
  const titles = Object.values(GROUPS).map((columns) =>
    columns.map(({ title, width }) => title.padStart(width)).join(" "),
  );
  return `${groups.join(" | ").trimEnd()}\n${titles.join(" | ")}`;
}

function decisionRow(figures: DecisionFigures): string {
  const cell = ({ of, width, digits = 0 }: Column): string =>
    of(figures)
      .toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
      .padStart(width);
  return Object.values(GROUPS)
    .map((columns) => columns.map(cell).join(" "))
    .join(" | ");
}

function eventLine(figures: EventFigures): string {
  return (
    `events, ${figures.workers} workers, ${count(figures.eventsPerS)} blocks/s and ` +
    `${count((figures.reassertedKeys / figures.blockEvents) * 1_000)} keys asserted again per 1,000: ` +
    `${figures.commandsPer1000.toFixed(2)} commands per 1,000 block events (one per block: 1,000), ` +
    `${figures.bytesUpPerEvent.toFixed(0)} bytes and ${figures.cpuUsPerEvent.toFixed(1)} µs of Redis's processor each`
  );
}

function idleLine({ workers, commandsPerS, bytesPerS, cpuShare }: IdleFigures): string {
  return (
    `idle, ${workers} workers: ${commandsPerS.toFixed(2)} commands/s, ${count(bytesPerS)} bytes/s, ` +
    `${(cpuShare * 100).toFixed(2)} % of Redis's core`
  );
}

function judge({ decisions, entries, events, idle }: RedisFigures): Verdict[] {
  const most = (of: (figures: DecisionFigures) => number, among = decisions): number =>
    Math.max(...among.map(of));
  const long = decisions.filter(({ shape }) => shape.promptKeys === 8_192);
  const many = decisions.filter(({ shape }) => shape.workers >= 16);
  return [
    atMost(
      2,
      most(({ billedFresh }) => billedFresh),
      "billed commands per routed request, fresh fleet copy",
    ),
    atMost(
      3,
      most(({ billedStale }) => billedStale),
      "billed commands per routed request, stale fleet copy",
    ),
    atMost(
      2_048,
      most(({ shape, lookup }) => lookup.bytesUp - 11 * shape.promptKeys),
      "bytes up per decision beside 11 per key",
    ),
    atMost(
      64,
      most(
        ({ shape, lookup, staleLookup }) => Math.max(lookup.bytesDown, staleLookup.bytesDown) / shape.workers,
        many,
      ),
      "bytes down per decision and worker, from 16 workers on",
      1,
    ),
    atMost(
      128,
      most(({ lookup }) => lookup.innerMax),
      "commands inside a lookup",
    ),
    atMost(
      256,
      most(({ reserve }) => reserve.innerMax),
      "commands inside a reservation with prediction",
    ),
    atMost(2, most(({ lookup }) => lookup.heldMaxUs, long) / 1_000, "ms held by a lookup of 8,192 keys", 2),
    atMost(
      2,
      most(({ reserve }) => reserve.heldMaxUs, long) / 1_000,
      "ms held by a reservation with prediction of 8,192 keys",
      2,
    ),
    atMost(150, entries.bytesPerEntry, "bytes of Redis per entry with two holders", 1),
    ...events.map(({ eventsPerS, commandsPer1000 }) =>
      atMost(20, commandsPer1000, `commands per 1,000 block events, at ${count(eventsPerS)}/s`, 2),
    ),
    ...idle.map(({ workers, commandsPerS }) =>
      atMost(5, commandsPerS, `commands per idle second and region, ${workers} workers`, 2),
    ),
  ];
}

function atMost(limit: number, value: number, what: string, digits = 0): Verdict {
  const text = value.toLocaleString("en-US", { maximumFractionDigits: Math.max(2, digits) });
  return { target: `≤ ${limit.toLocaleString("en-US")} ${what}`, value: text, met: value <= limit };
}
