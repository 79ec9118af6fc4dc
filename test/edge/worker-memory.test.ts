/** Twenty models' templates fit an isolate: what they add to the Worker's runtime is measured, printed and bounded. */

import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { registration } from "../e2e/gateway-fleet.ts";
import { exampleModel } from "../support/example-models.ts";
import { describeWithRedis } from "../support/servers.ts";
import { post, startRedisView } from "./redis-view.ts";

const MODELS = 20;
const ROUNDS = 40;
const LIMIT_BYTES = 64 * 1024 * 1024;

function residentBytes(pid: number): number {
  const [, kib] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))!;
  return Number(kib) * 1024;
}

describeWithRedis("memory of the gateway Worker", () => {
  it("stays below 64 MB over its baseline with twenty models' templates in use", async () => {
    const view = await startRedisView();
    const cards = (["qwen3", "llama3_1"] as const).map((name) => exampleModel(name).card);
    const models = Array.from({ length: MODELS }, (_, i) => {
      const card = cards[i % cards.length]!;
      // No two alike, so that nothing is shared.
      const chatTemplate = `${card.chatTemplate}{# ${i} #}`;
      return { ...card, model: `model-${i}`, chatTemplate };
    });
    for (const card of models) {
      const one = registration(`w-${card.model}`, { model: card.model, servedNames: [card.model], card });
      await view.register(one);
      await view.report(one, { activeBlocks: 0, prefillTokens: 0 });
    }
    const worker = await view.startWorker();
    expect((await fetch(`${worker.url}/live`)).status).toBe(200);
    const before = residentBytes(worker.pid);
    for (let round = 0; round < ROUNDS; round++) {
      const answers = await Promise.all(
        models.map(({ model }) => {
          const messages = [{ role: "user", content: `round ${round}: `.repeat(1_000) }];
          return post(worker.url, "/v1/route", { model, messages });
        }),
      );
      for (const answer of answers) {
        expect(answer.status).toBe(200);
        await answer.arrayBuffer();
      }
    }
    const added = residentBytes(worker.pid) - before;
    console.log(
      `gateway Worker: ${(before / 2 ** 20).toFixed(0)} MiB at rest, ${(added / 2 ** 20).toFixed(0)} MiB more with ${MODELS} models after ${MODELS * ROUNDS} requests`,
    );
    expect(added).toBeLessThan(LIMIT_BYTES);
  });
});
