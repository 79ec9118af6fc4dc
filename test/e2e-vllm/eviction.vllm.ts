/** A real engine with 63 usable blocks: every few requests push others out, and the index keeps up. */

import { beforeAll, it } from "vitest";
import { type Engine, MODEL, startEngine } from "./engine.ts";
import { answered, describeVllm, expectExact, expectNeverAbove, series } from "./fixture.ts";
import { eventually, type Kedge, promise, startKedge } from "./kedge.ts";
import { Prompts } from "./prompts.ts";

const TOOL_FLAGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
const OPTIONS = { words: 25, salts: ["tenant-a"] };

describeVllm("an engine whose cache overflows", () => {
  let engine: Engine;
  let kedge: Kedge;

  beforeAll(async () => {
    engine = await startEngine({ maxModelLen: 1_008, blocks: 64, flags: TOOL_FLAGS });
    kedge = await startKedge([engine]);
  });

  /** Preempts and evicts in the midst of things. */
  const rush = async (prompts: Prompts): Promise<void> => {
    for (let round = 0; round < 6; round++) {
      const bodies = Array.from({ length: 6 }, () => ({ ...prompts.next(), max_tokens: 40 }));
      await Promise.all(bodies.map((body) => answered(kedge.url, body)));
    }
  };

  it("scheme bytes never promises what was pushed out", async () => {
    const prompts = new Prompts(5, OPTIONS);
    expectNeverAbove(await series(kedge.url, prompts, 200));
    await rush(prompts);
    expectNeverAbove(await series(kedge.url, prompts, 50));
  });

  it("scheme tokens stays exact", async () => {
    await kedge.stop();
    kedge = await startKedge([engine], "--scheme", "tokens");
    const marker = { model: MODEL, prompt: "The tide. ".repeat(40), max_tokens: 1 };
    await answered(kedge.url, marker);
    await eventually("events", async () => (await promise(kedge.url, marker)) > 0);
    const prompts = new Prompts(6, OPTIONS);
    expectExact(await series(kedge.url, prompts, 200));
    await rush(prompts);
    expectExact(await series(kedge.url, prompts, 50));
  });
});
