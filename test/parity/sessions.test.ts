/** Kedge's index, load tracker and policies answer recorded sessions of Dynamo 0.9.1 and 1.6.1 as Dynamo did. */

import { describe, expect, it } from "vitest";
import { replayFile } from "../../src/node/cli/replay-scenario.ts";
import type { BlockIndex } from "../../src/node/replay/block-index.ts";
import { type History, parseSession, type Scenario } from "../../src/node/replay/file.ts";
import { answersOf, HISTORY_BLOCK_SIZE } from "../../src/node/replay/history.ts";
import { KedgeIndex } from "../../src/node/replay/kedge-index.ts";
import { replayScenario } from "../../src/node/replay/scenario.ts";
import { StrictIndex } from "../../src/node/replay/strict-index.ts";
import { Tally } from "../../src/node/replay/tally.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { seededRandom } from "../../src/routing/testing.ts";
import { fixtureLines, fixturePath } from "./fixtures.ts";

const hasher = await createHasher();
const kedgeIndex = (blockSize: number): KedgeIndex => new KedgeIndex(hasher, blockSize, seededRandom(5));

function scenarios(name: string): Scenario[] {
  return fixtureLines(name).map((text, line) => {
    const session = parseSession(text, line + 1);
    if (session.format !== "scenario") throw new Error(`${name} holds a history`);
    return session.scenario;
  });
}

function histories(): History[] {
  return fixtureLines("radix-histories.jsonl").map((text, line) => {
    const session = parseSession(text, line + 1);
    if (session.format !== "history") throw new Error("radix-histories holds a scenario");
    return session.history;
  });
}

describe("routing scenarios", () => {
  it.each([
    ["scenarios-0.9.jsonl", 40, 1528],
    ["scenarios-1.6.jsonl", 28, 1099],
  ])("%s: every overlap, load, cost and choice of %d sessions, %d routes", async (name, sessions, routes) => {
    const steps = scenarios(name).flatMap((scenario) => scenario.steps);
    const rows = steps.flatMap((step) => (step.op === "route" ? step.candidates : []));
    const tally = await replayFile(fixturePath(name));
    expect(tally.differences).toEqual([]);
    expect(tally.sessions).toBe(sessions);
    expect(steps.filter((step) => step.op === "route")).toHaveLength(routes);
    // Ten columns per row, the choice on top.
    expect(tally.compared).toBeGreaterThan(10 * rows.length + 4 * routes);
  });

  /** What a change of one setting by little does to the sessions that lean on it. */
  function differencesWith(name: string, session: string, setting: string, value: number | boolean): number {
    const tally = new Tally();
    for (const scenario of scenarios(name).filter((one) => one.name === session)) {
      const changed = { ...scenario, config: { ...scenario.config, [setting]: value } };
      const index = kedgeIndex(scenario.block_size);
      const keys = (tokenIds: readonly number[]) => [...index.chain(tokenIds).keys];
      replayScenario(changed, index, keys, seededRandom(5), tally);
    }
    return tally.differences.length;
  }

  it.each([
    ["scenarios-0.9.jsonl", "weight2", "overlap_score_weight", 2.001],
    ["scenarios-0.9.jsonl", "noactive", "router_track_active_blocks", true],
    ["scenarios-0.9.jsonl", "noreuse", "router_assume_kv_reuse", true],
    ["scenarios-1.6.jsonl", "default", "overlap_score_credit", 1.0001],
    ["scenarios-1.6.jsonl", "decay", "overlap_score_credit_decay", 1.0001],
    ["scenarios-1.6.jsonl", "scale", "prefill_load_scale", 2.0001],
    ["scenarios-1.6.jsonl", "reqweight", "decode_active_request_weight", 8.0001],
    ["scenarios-1.6.jsonl", "tiers", "host_cache_hit_weight", 0.7501],
    ["scenarios-1.6.jsonl", "tiers2", "disk_cache_hit_weight", 0.1001],
    ["scenarios-1.6.jsonl", "noprefill", "router_track_prefill_tokens", true],
  ])("%s, %s: notices %s at %s", (name, session, setting, value) => {
    expect(differencesWith(name, session, setting, value)).toBeGreaterThan(0);
  });
});

describe("index histories", () => {
  it("engine: every recorded lookup and block count", () => {
    const engine = histories().filter((one) => one.kind === "engine");
    expect(engine).toHaveLength(92);
    for (const history of engine) {
      expect(withoutZeros(answersOf(history, kedgeIndex(HISTORY_BLOCK_SIZE)))).toEqual(
        withoutZeros(history.both!),
      );
    }
  });

  it("the strict index, the measure of the others, gives those answers too", () => {
    for (const history of histories().filter((one) => one.kind === "engine")) {
      expect(withoutZeros(answersOf(history, new StrictIndex(HISTORY_BLOCK_SIZE)))).toEqual(
        withoutZeros(history.both!),
      );
    }
  });

  it.each(["middle", "private", "quirk"])("%s: the strict answer", (kind) => {
    const some = histories().filter((one) => one.kind === kind);
    expect(some.length).toBeGreaterThan(20);
    for (const history of some) {
      const strict = answersOf(history, new StrictIndex(HISTORY_BLOCK_SIZE));
      expect(answersOf(history, kedgeIndex(HISTORY_BLOCK_SIZE))).toEqual(strict);
    }
  });

  it("the command agrees, and says how often Dynamo does not", async () => {
    const tally = await replayFile(fixturePath("radix-histories.jsonl"));
    expect(tally.differences).toEqual([]);
    expect(tally.sessions).toBe(160);
    expect(tally.notes.get("Dynamo 1.6")!.different).toBeGreaterThan(0);
  });
});

describe("histories that a concurrent index gets wrong", () => {
  const lines = fixtureLines("concurrent-index.jsonl").map((text) => JSON.parse(text));

  it.each(lines)("history %#: no rank is credited with blocks that it never stored", (line) => {
    const { query, radix_tree } = line;
    const text = JSON.stringify({ id: 0, kind: "concurrent", events: [...line.events, ["q", query]] });
    const session = parseSession(text, 1);
    if (session.format !== "history") throw new Error("not a history");
    for (const index of [
      kedgeIndex(HISTORY_BLOCK_SIZE),
      new StrictIndex(HISTORY_BLOCK_SIZE),
    ] as BlockIndex[]) {
      expect(answersOf(session.history, index).lookups).toEqual([radix_tree]);
    }
  });
});

/** An absent count is a 0. */
function withoutZeros(answers: ReturnType<typeof answersOf>): ReturnType<typeof answersOf> {
  const kept = (counts: Readonly<Record<string, number>>) =>
    Object.fromEntries(Object.entries(counts).filter(([, count]) => count > 0));
  return { lookups: answers.lookups.map(kept), blocks: answers.blocks && kept(answers.blocks) };
}
