/** Load reports: own requests at once, direct traffic by scrape, nothing twice, every admitted id exactly once. */

import { beforeEach, describe, expect, test } from "vitest";
import type { LoadReport } from "../../src/fleet/types.ts";
import type { Plan } from "../../src/plan/index.ts";
import { ManualTimers } from "../../test/bridge/manual-timers.ts";
import { LoadLedger } from "./ledger.ts";

const BLOCK = 16;

let timers: ManualTimers;
let reports: LoadReport[];
let ledger: LoadLedger;
let incarnation: string;

beforeEach(() => {
  timers = new ManualTimers();
  reports = [];
  incarnation = "life-1";
  ledger = new LoadLedger({ publish: (report) => reports.push(report), timers });
});

function addRank({ rank = 0, scraped = false } = {}): void {
  const describe = () => ({ key: { worker: "w", rank, incarnation }, sequence: 7 });
  ledger.addRank({ worker: "w", rank, blockSize: BLOCK, scraped, describe });
}

function plan(requestId: string, promptTokens: number, overlapTokens = 0, rank = 0): Plan {
  const load = { promptTokens, overlapTokens, blocks: Math.ceil(promptTokens / BLOCK) };
  return {
    requestId,
    agent: null,
    dropUsage: false,
    model: "m",
    worker: "w",
    rank,
    incarnation,
    role: "aggregated",
    deadlineMs: null,
    load,
    cacheSalt: null,
  };
}

/** The last report after changes had time to go out. */
function report(): LoadReport {
  timers.advance(10);
  return reports.at(-1)!;
}

const loadOf = ({ activeBlocks, prefillTokens, running, waiting }: LoadReport) => ({
  activeBlocks,
  prefillTokens,
  running,
  waiting,
});

describe("own requests", () => {
  test("count from admission to the end: blocks grow as they fill, prefill is done at the first data", () => {
    addRank();
    ledger.admitted(plan("a", 100, 64));
    expect(loadOf(report())).toEqual({ activeBlocks: 7, prefillTokens: 36, running: 1, waiting: null });
    ledger.firstData("a");
    expect(report()).toMatchObject({ activeBlocks: 7, prefillTokens: 0 });
    ledger.progressed("a", 12);
    expect(report().activeBlocks).toBe(7);
    ledger.progressed("a", 13);
    expect(report().activeBlocks).toBe(8);
    ledger.finished("a");
    ledger.finished("a");
    expect(loadOf(report())).toEqual({ activeBlocks: 0, prefillTokens: 0, running: 0, waiting: null });
  });

  test("a request that ends before its first data takes its prefill with it", () => {
    addRank();
    ledger.admitted(plan("a", 100));
    ledger.finished("a");
    expect(report()).toMatchObject({ activeBlocks: 0, prefillTokens: 0 });
  });

  test("an id that is admitted again (a retry elsewhere) is carried once", () => {
    addRank({ rank: 0 });
    addRank({ rank: 1 });
    ledger.admitted(plan("a", 32, 0, 0));
    ledger.admitted(plan("a", 32, 0, 1));
    timers.advance(10);
    const last = (rank: number) => reports.filter((each) => each.rank === rank).at(-1);
    expect([last(0)?.activeBlocks, last(1)?.activeBlocks, ledger.carried]).toEqual([0, 2, 1]);
  });

  test("unknown requests and ranks are nothing", () => {
    ledger.admitted(plan("a", 32));
    ledger.firstData("x");
    ledger.progressed("x", 5);
    ledger.finished("x");
    timers.advance(10);
    expect([reports, ledger.carried]).toEqual([[], 0]);
  });
});

describe("scrapes", () => {
  test("before the first one the load of a scraped engine is unknown, not zero", () => {
    addRank({ scraped: true });
    expect(loadOf(report())).toEqual({ activeBlocks: null, prefillTokens: 0, running: null, waiting: null });
  });

  test("what they show above the own count is direct traffic, added until the next one", () => {
    addRank({ scraped: true });
    ledger.admitted(plan("a", 160));
    ledger.scraped("w", 0, { activeBlocks: 25, running: 3, waiting: 1 });
    expect(loadOf(report())).toEqual({ activeBlocks: 25, prefillTokens: 160, running: 3, waiting: 1 });
    ledger.admitted(plan("b", 32));
    expect(report()).toMatchObject({ activeBlocks: 27, running: 4 });
    ledger.finished("a");
    expect(report()).toMatchObject({ activeBlocks: 17, running: 3 });
    ledger.scraped("w", 0, { activeBlocks: 2, running: 1, waiting: 0 });
    expect(loadOf(report())).toEqual({ activeBlocks: 2, prefillTokens: 32, running: 1, waiting: 0 });
  });

  test("blocks that requests share, which the engine counts once, take nothing off", () => {
    addRank({ scraped: true });
    for (const id of ["a", "b", "c"]) ledger.admitted(plan(id, 160));
    ledger.scraped("w", 0, { activeBlocks: 12, running: 3, waiting: 0 });
    expect(report()).toMatchObject({ activeBlocks: 30, running: 3 });
  });
});

describe("reports", () => {
  test("every admitted id is named once, in the first report after it", () => {
    addRank();
    ledger.admitted(plan("a", 16));
    ledger.admitted(plan("b", 16));
    expect(report().admitted).toEqual(["a", "b"]);
    ledger.admitted(plan("c", 16));
    expect(report().admitted).toEqual(["c"]);
    ledger.finished("c");
    expect(report().admitted).toEqual([]);
  });

  test("a burst of changes is one report, within 10 ms", () => {
    addRank();
    report();
    reports = [];
    for (let i = 0; i < 100; i++) ledger.admitted(plan(`r${i}`, 16));
    expect(reports).toEqual([]);
    timers.advance(10);
    expect(reports).toHaveLength(1);
    expect(reports[0]!.admitted).toHaveLength(100);
  });

  test("a quiet rank is reported each second, with its KV batch number", () => {
    addRank();
    report();
    reports = [];
    timers.advance(3_000);
    expect(reports.map(({ publishedSequence }) => publishedSequence)).toEqual([7, 7, 7]);
  });

  test("are numbered from 1 in each life of the rank", () => {
    addRank();
    report();
    ledger.admitted(plan("a", 16));
    report();
    incarnation = "life-2";
    ledger.finished("a");
    report();
    expect(reports.map((each) => `${each.incarnation} ${each.sequence}`)).toEqual([
      "life-1 1",
      "life-1 2",
      "life-2 1",
    ]);
  });

  test("none are of a rank that was removed, though its requests still end", () => {
    addRank();
    ledger.admitted(plan("a", 16));
    report();
    reports = [];
    ledger.removeRank("w", 0);
    ledger.progressed("a", 40);
    ledger.finished("a");
    timers.advance(5_000);
    expect([reports, ledger.carried]).toEqual([[], 0]);
  });

  test("of a rank that came back do not count what its former life carried", () => {
    addRank();
    ledger.admitted(plan("a", 160));
    ledger.removeRank("w", 0);
    addRank();
    ledger.admitted(plan("b", 32));
    expect(report()).toMatchObject({ activeBlocks: 2, running: 1 });
    ledger.firstData("a");
    ledger.finished("a");
    expect(report()).toMatchObject({ activeBlocks: 2, prefillTokens: 32, running: 1 });
  });

  test("none follow after stopping", () => {
    addRank();
    ledger.admitted(plan("a", 16));
    ledger.stop();
    timers.advance(5_000);
    expect(reports).toEqual([]);
  });
});
