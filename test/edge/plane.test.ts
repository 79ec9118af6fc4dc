/** The whole plane with real redis-server, nats-server and workerd: what an engine announces at one end decides at every gateway. */

import { expect, it } from "vitest";
import { defineConfig, type KedgeConfigInput } from "../../src/config/index.ts";
import { startAgentHost } from "../../src/node/agent-host.ts";
import { startGatewayHost } from "../../src/node/gateway-host.ts";
import { startIndexer } from "../../src/node/indexer.ts";
import { describeWithServers, startNats } from "../support/servers.ts";
import { post, startRedisView } from "./redis-view.ts";
import { closeAfterTest, KEYS, SETTINGS } from "./worker-stack.ts";

const MODEL = "mock";
const LONG = "The quick brown fox jumps over the lazy dog. ".repeat(40);
/** Processes start and reports travel; a busy machine takes its time. */
const WAIT = { timeout: 20_000, interval: 50 };

const chat = (content: string, extra: object = {}) => ({
  model: MODEL,
  max_tokens: 4,
  messages: [{ role: "user", content }],
  ...extra,
});

async function startPlane() {
  const view = await startRedisView();
  const nats = await startNats();
  closeAfterTest(() => nats.stop());
  const config = (input: KedgeConfigInput) =>
    defineConfig({
      port: 0,
      explain: true,
      store: { url: view.rest.url, token: view.settings.KEDGE_REDIS_TOKEN, deadlineMs: 2_000 },
      nats: { url: nats.url },
      limits: { drainTimeoutMs: 1_000 },
      ...input,
    });
  const place = (node: string) => ({ region: "eu", cluster: "c1", node });
  const indexer = await startIndexer({
    config: config({ place: place("indexer") }),
    host: "127.0.0.1",
    port: 0,
    log: () => {},
  });
  closeAfterTest(() => indexer.close());
  for (const node of ["n1", "n2"]) {
    const agent = await startAgentHost({
      config: config({ place: place(node), plan: { jwks: JSON.stringify(KEYS.publicJwks) } }),
      engines: [],
      mock: { workers: 1, profile: "zero", speed: 1, blocks: null, streamInterval: 1 },
      model: {},
      log: () => {},
    });
    closeAfterTest(() => agent.close());
  }
  const node = await startGatewayHost({
    config: config({
      apiKeyDigests: [SETTINGS.KEDGE_API_KEYS],
      plan: { signingKey: SETTINGS.KEDGE_PLAN_KEY },
    }),
    log: () => {},
  });
  closeAfterTest(() => node.close());
  const workers = await Promise.all([view.startWorker(), view.startWorker()]);
  return { view, gateways: [...workers.map(({ url }) => url), node.url] };
}

/** An explanation without how long it took and how old its figures are. */
async function explanation(url: string, content: string): Promise<Record<string, unknown>> {
  const answer = await post(url, "/v1/route", chat(content));
  const { keying_ms, decision_ms, ...rest } = (await answer.json()) as Record<string, unknown>;
  return rest;
}

describeWithServers("engines, agents, NATS, indexer, Redis, gateways in workerd and in Node", () => {
  it("a prompt that one gateway sent is known to all, exactly as its engine holds it, and all decide alike", async () => {
    const { view, gateways } = await startPlane();
    await expect.poll(async () => (await view.store.fleet()).length, WAIT).toBe(2);
    const [first, second] = gateways as [string, string, string];
    const sent = await post(first, "/v1/chat/completions", chat(LONG, { stream: true }));
    expect(sent.status).toBe(200);
    expect((await sent.text()).trimEnd().endsWith("data: [DONE]")).toBe(true);
    const holder = sent.headers.get("x-kedge-worker")!.split("/").slice(0, -1).join("/");

    // Announced, folded and read: no gateway predicts it, and the last load report says that all is quiet.
    for (const url of gateways) {
      await expect
        .poll(() => explanation(url, LONG), WAIT)
        .toMatchObject({ rung: "exact", chosen: { worker: holder } });
    }
    await expect
      .poll(async () => {
        const all = await Promise.all(gateways.map((url) => explanation(url, LONG)));
        return all.map((one) => JSON.stringify(one) === JSON.stringify(all[0]));
      }, WAIT)
      .toEqual([true, true, true]);

    const again = await post(second, "/v1/chat/completions", chat(LONG));
    expect(again.headers.get("x-kedge-worker")).toBe(sent.headers.get("x-kedge-worker"));
    const { usage } = (await again.json()) as Answer;
    expect(usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(300);
    // Short by at most a chunk and a block, and never above (design D2).
    const claimed = Number(again.headers.get("x-kedge-overlap-tokens"));
    expect(claimed).toBeLessThanOrEqual(usage.prompt_tokens_details.cached_tokens);
    expect(claimed).toBeGreaterThan(usage.prompt_tokens_details.cached_tokens - 64);
  });
});

interface Answer {
  readonly usage: { readonly prompt_tokens_details: { readonly cached_tokens: number } };
}
