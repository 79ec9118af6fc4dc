/** A real engine of two data-parallel ranks: each has its own cache, and the engine keeps to the rank that Kedge chose. */

import { beforeAll, expect, it } from "vitest";
import { MODEL, startEngine } from "./engine.ts";
import { describeVllm, expectExact, series, settled } from "./fixture.ts";
import { eventually, type Kedge, promise, startKedge } from "./kedge.ts";
import { Prompts } from "./prompts.ts";

const LONG = "Each rank keeps the tides of its own harbour. ".repeat(20);
const chat = (content: string) => ({
  model: MODEL,
  max_tokens: 1,
  messages: [{ role: "user", content }],
});

describeVllm("two data-parallel ranks", () => {
  let kedge: Kedge;

  beforeAll(async () => {
    const flags = ["--data-parallel-size", "2", "--api-server-count", "1"];
    const tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
    const engine = await startEngine({ flags: [...flags, ...tools] });
    kedge = await startKedge([engine], "--scheme", "tokens");
  });

  it("what one rank holds is promised there and nowhere else", async () => {
    for (const rank of [0, 1]) {
      const body = chat(`Rank ${rank}. ${LONG}`);
      const pin = (to: number) => ({ "x-kedge-worker": "e0", "x-kedge-rank": String(to) });
      expect(await settled(kedge.url, body, pin(rank))).toMatchObject({ worker: `e0/${rank}`, cached: 0 });
      await eventually("the event", async () => (await promise(kedge.url, body)) > 0);
      for (let i = 0; i < 3; i++) {
        const again = await settled(kedge.url, body);
        expect(again).toMatchObject({ worker: `e0/${rank}`, promised: again.cached });
        expect(again.cached).toBeGreaterThan(100);
      }
      const other = await settled(kedge.url, body, pin(1 - rank));
      expect(other).toMatchObject({ worker: `e0/${1 - rank}`, promised: 0, cached: 0 });
    }
  });

  it("both ranks take work, and every promise is exact", async () => {
    const answers = await series(kedge.url, new Prompts(7, { words: 40, salts: ["tenant-a"] }), 150);
    expectExact(answers);
    expect(new Set(answers.map(({ worker }) => worker))).toEqual(new Set(["e0/0", "e0/1"]));
  });
});
