/** A real engine whose layers differ: five groups with a sliding window of 64 tokens, one with full attention. */

import { beforeAll, expect, it } from "vitest";
import { type Engine, startEngine } from "./engine.ts";
import { describeVllm, expectExact, series } from "./fixture.ts";
import { type Kedge, startKedge } from "./kedge.ts";
import { Prompts } from "./prompts.ts";

describeVllm("a sliding-window model", () => {
  let engine: Engine;
  let kedge: Kedge;

  beforeAll(async () => {
    const tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
    engine = await startEngine({ model: "tiny-gemma3", maxModelLen: 1_024, blocks: 512, flags: tools });
    kedge = await startKedge([engine], "--scheme", "tokens");
  });

  it("is promised only where it can resume, to the token", async () => {
    expectExact(await series(kedge.url, new Prompts(10, { words: 25 }), 200));
  });

  it("scheme bytes never promises more", async () => {
    await kedge.stop();
    kedge = await startKedge([engine]);
    const answers = await series(kedge.url, new Prompts(11, { words: 25 }), 120);
    for (const { promised, cached } of answers) expect(promised).toBeLessThanOrEqual(cached);
  });
});
