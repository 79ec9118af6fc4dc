/** Twenty models' templates fit an isolate: what they add to what it holds is measured, printed and bounded. */

import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import type { ModelCard } from "../../src/prefix/types.ts";
import { registration } from "../e2e/gateway-fleet.ts";
import { exampleModel } from "../support/example-models.ts";
import { describeWithRedis } from "../support/servers.ts";
import { post, startRedisView } from "./redis-view.ts";

const MODELS = 20;
const ROUNDS = 5;
const LIMIT_BYTES = 64 * 1024 * 1024;

const mib = (bytes: number) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** Two real templates in turn, no two cards alike, so that nothing is shared. */
function cardsOf(count: number): ModelCard[] {
  const cards = (["qwen3", "llama3_1"] as const).map((name) => exampleModel(name).card);
  return Array.from({ length: count }, (_, i) => {
    const card = cards[i % cards.length]!;
    return { ...card, model: `model-${i}`, chatTemplate: `${card.chatTemplate}{# ${i} #}` };
  });
}

function residentBytes(pid: number): number {
  const [, kib] = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))!;
  return Number(kib) * 1024;
}

describeWithRedis("memory of the gateway Worker", () => {
  it("with twenty models' templates in use stays below 64 MB over an isolate without any", async () => {
    const view = await startRedisView();
    const cards = cardsOf(MODELS);
    for (const card of cards) {
      const one = registration(`w-${card.model}`, { model: card.model, servedNames: [card.model], card });
      await view.register(one);
      await view.report(one, { activeBlocks: 0, prefillTokens: 0 });
    }
    const worker = await view.startWorker();
    expect((await fetch(`${worker.url}/live`)).status).toBe(200);
    const residentBefore = residentBytes(worker.pid);
    const ask = async ({ model }: ModelCard, round: number) => {
      const messages = [{ role: "user", content: `round ${round}: `.repeat(1_000) }];
      const answer = await post(worker.url, "/v1/route", { model, messages });
      expect(answer.status).toBe(200);
      await answer.arrayBuffer();
    };
    await Promise.all(cards.map((card) => ask(card, 0)));
    const residentAfter = residentBytes(worker.pid);
    for (let round = 1; round < ROUNDS; round++) await Promise.all(cards.map((card) => ask(card, round)));
    // What the process holds includes garbage: its runtime has no limit here, where a deployed isolate has one. The heap tells.
    const held = await worker.heapBytes();
    const other = await view.startWorker();
    expect((await fetch(`${other.url}/live`)).status).toBe(200);
    const baseline = await other.heapBytes();
    console.log(
      `gateway Worker: heap ${mib(baseline)} without models, ${mib(held)} with ${MODELS}; ` +
        `process ${mib(residentBefore)} before and ${mib(residentAfter)} after a request to each`,
    );
    expect(held - baseline).toBeLessThan(LIMIT_BYTES);
    expect(residentAfter - residentBefore).toBeLessThan(LIMIT_BYTES);
  });
});
