/** The gateway Worker over a real Redis: it decides as a Node gateway does, gateways see each other's reservations, Redis may go. */

import { expect, it } from "vitest";
import { MODEL, registration } from "../e2e/gateway-fleet.ts";
import { chatChunk, DONE, type Script, startUpstream } from "../e2e/gateway-upstream.ts";
import { describeWithRedis } from "../support/servers.ts";
import { post, startRedisView } from "./redis-view.ts";
import { AUTHORIZED, closeAfterTest, eventually, metricOf, UNVOUCHED } from "./worker-stack.ts";

const user = (content: string) => ({ role: "user", content });
const PROMPTS = ["alpha ", "beta ", "gamma "].map((word) => [user(word.repeat(400))]);
const chat = (messages: readonly object[], extra: object = {}) => ({ model: MODEL, messages, ...extra });

const good: Script = (response) => {
  response.writeHead(200, UNVOUCHED);
  response.end(chatChunk("a") + DONE);
};

async function agentBehind(script: Script) {
  const agent = await startUpstream(script);
  closeAfterTest(() => agent.close());
  return agent;
}

/** What stands in an explanation besides how long it took. */
async function explanation(url: string, messages: readonly object[]) {
  const answer = await post(url, "/v1/route", chat(messages));
  expect(answer.status).toBe(200);
  const { keying_ms, decision_ms, ...rest } = (await answer.json()) as Record<string, unknown>;
  expect([typeof keying_ms, typeof decision_ms]).toEqual(["number", "number"]);
  return rest;
}

describeWithRedis("a gateway Worker and a Node gateway over one view", () => {
  it("decide the same, to the digit, for every prompt and load", async () => {
    const view = await startRedisView();
    const workers = ["w0", "w1", "w2", "w3"].map((name) => registration(name));
    for (const [i, one] of workers.entries()) {
      await view.register(one);
      await view.report(one, { activeBlocks: 7 * i, prefillTokens: 100 * i });
    }
    await view.hold(workers[1]!, PROMPTS[0]!, 12);
    await view.hold(workers[2]!, PROMPTS[0]!, 5);
    await view.hold(workers[3]!, PROMPTS[1]!, 15);
    const worker = await view.startWorker();
    const node = await view.startNodeGateway();
    for (const [turn, messages] of [...PROMPTS, ...PROMPTS].entries()) {
      const load = (i: number) => ({ activeBlocks: 7 * i, prefillTokens: 100 * i + 10 * turn });
      for (const [i, one] of workers.entries()) await view.report(one, load(i));
      const [atEdge, inNode] = await Promise.all([
        explanation(worker.url, messages),
        explanation(node, messages),
      ]);
      expect(atEdge).toEqual(inNode);
      expect(atEdge).toMatchObject({ object: "route", rung: "exact" });
    }
    expect(await explanation(worker.url, PROMPTS[0]!)).toMatchObject({
      chosen: { worker: "w1" },
      overlap_tokens: 384,
    });
  });

  it("see each other's reservations on the next request", async () => {
    const view = await startRedisView();
    const held = await agentBehind((response) => {
      response.writeHead(200, UNVOUCHED);
      response.flushHeaders();
    });
    const agent = { id: "r/c/n", url: held.url };
    const workers = ["w0", "w1"].map((name) => registration(name, { agent }));
    for (const one of workers) {
      await view.register(one);
      await view.report(one, { activeBlocks: 0, prefillTokens: 0 });
    }
    const gateways = [
      (await view.startWorker()).url,
      (await view.startWorker()).url,
      await view.startNodeGateway(),
    ];
    const leaving = new AbortController();
    for (const [i, url] of gateways.entries()) {
      post(url, "/v1/chat/completions", chat([user(`request ${i} `.repeat(40 + i))], { stream: true }), {
        signal: leaving.signal,
      }).catch(() => {});
      await held.arrival(i);
      // The reservation is written beside the request, not before it.
      await eventually(async () => (await reserved(view.store.fleet())) === i + 1);
      for (const other of gateways) {
        const { ranking } = (await explanation(other, PROMPTS[2]!)) as { ranking: Ranked[] };
        expect(ranking.reduce((sum, { load }) => sum + load.active_requests, 0)).toBe(i + 1);
      }
    }
    leaving.abort();
  });
});

interface Ranked {
  readonly load: { readonly active_requests: number };
}

async function reserved(fleet: ReturnType<Awaited<ReturnType<typeof startRedisView>>["store"]["fleet"]>) {
  return (await fleet).reduce((sum, row) => sum + row.reserved.requests, 0);
}

describeWithRedis("while Redis is away", () => {
  /** One good worker; known to the view, or to the Worker's seed fleet alone: that of a setting, or of the key-value binding. */
  async function setUp(knownTo: "view" | "setting" | "entry") {
    const view = await startRedisView();
    const agent = await agentBehind(good);
    const one = registration("w0", { agent: { id: "r/c/n", url: agent.url } });
    if (knownTo === "view") {
      await view.register(one);
      await view.report(one, { activeBlocks: 0, prefillTokens: 0 });
    }
    const seed = JSON.stringify([one]);
    const worker = await view.startWorker(
      { KEDGE_STORE_DEADLINE_MS: "200", ...(knownTo === "setting" && { KEDGE_SEED_FLEET: seed }) },
      knownTo === "entry" ? { "seed-fleet": seed } : {},
    );
    const ask = () => post(worker.url, "/v1/chat/completions", chat(PROMPTS[0]!, { stream: true }));
    return { view, worker, ask };
  }

  it("a Worker that knew a fleet serves on, says by what rung, and comes back by itself", async () => {
    const { view, worker, ask } = await setUp("view");
    const before = await ask();
    expect([before.status, before.headers.get("x-kedge-rung")]).toEqual([200, "exact"]);
    await before.text();
    view.redis.pause();
    for (let i = 0; i < 6; i++) {
      const answer = await ask();
      expect([answer.status, answer.headers.get("x-kedge-rung")]).toEqual([200, "consistent-hash"]);
      expect(await answer.text()).toBe(chatChunk("a") + DONE);
    }
    view.redis.resume();
    await eventually(async () => {
      const answer = await ask();
      await answer.text();
      return answer.headers.get("x-kedge-rung") !== "consistent-hash";
    });
    const metrics = await (await fetch(`${worker.url}/metrics`, { headers: AUTHORIZED })).text();
    expect(
      metricOf(metrics, `kedge_rung_requests_total{model="${MODEL}",rung="consistent-hash"}`),
    ).toBeGreaterThan(5);
  });

  it.each(["setting", "entry"] as const)(
    "a Worker that begins then serves its seed fleet, from its %s",
    async (where) => {
      const { view, ask } = await setUp(where);
      await view.redis.stop();
      const answer = await ask();
      expect([answer.status, answer.headers.get("x-kedge-rung")]).toEqual([200, "consistent-hash"]);
      await answer.text();
    },
  );
});
