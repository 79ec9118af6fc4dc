/** Inside workerd the gateway's app answers, routes by what the view holds, and explains itself. */

import { beforeAll, describe, expect, it } from "vitest";
import { defineConfig } from "../../src/config/index.ts";
import { createGateway } from "../../src/gateway/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import { Registry } from "../../src/telemetry/registry.ts";
import { registration } from "./registration.ts";

const plans: Plan[] = [];
let app: ReturnType<typeof createGateway>;

beforeAll(async () => {
  const store = new MemoryStore({ now: () => performance.now(), random: Math.random });
  const idle = { activeBlocks: 0, prefillTokens: 0, running: 0, waiting: 0, publishedSequence: 0 };
  let sequence = 0;
  const report = (worker: string, admitted: readonly string[]) => {
    sequence++;
    store.report([{ worker, rank: 0, incarnation: "1", sequence, ...idle, admitted }]);
  };
  for (const worker of ["a", "b"]) {
    store.register(registration(worker));
    report(worker, []);
  }
  app = createGateway({
    config: defineConfig({ explain: true }),
    store,
    transport: {
      send: async (plan) => {
        plans.push(plan);
        report(plan.worker, [plan.requestId]);
        const answer = new TextEncoder().encode('{"choices":[]}');
        return {
          status: 200,
          headers: { "content-type": "application/json" },
          body: {
            start: (sink) => {
              sink.data(answer);
              sink.end();
            },
            resume: () => {},
            cancel: () => {},
          },
        };
      },
    },
    hasher: await createHasher(),
    clock: {
      now: () => performance.now(),
      wall: () => Date.now(),
      setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
      clearTimeout: (handle) => clearTimeout(handle as number),
    },
    random: Math.random,
    log: { warn: () => {} },
    registry: new Registry(),
  });
});

const post = (path: string, body: object) =>
  app.request(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
const chat = { model: "m", messages: [{ role: "user", content: "word ".repeat(200) }] };

describe("the app", () => {
  it("serves models, health and metrics", async () => {
    expect(await (await app.request("/v1/models")).json()).toMatchObject({ data: [{ id: "m" }] });
    expect((await app.request("/ready")).status).toBe(200);
    expect(await (await app.request("/metrics")).text()).toContain("kedge_requests_total");
    expect((await app.request("/nowhere")).status).toBe(404);
  });

  it("routes a prompt to the worker that got it before", async () => {
    for (let i = 0; i < 6; i++) expect((await post("/v1/chat/completions", chat)).status).toBe(200);
    expect(new Set(plans.map(({ worker }) => worker)).size).toBe(1);
  });

  it("explains a route by its keys", async () => {
    const route = await (await post("/v1/route", chat)).json();
    expect(route).toMatchObject({ object: "route", prompt: { scheme: "bytes", keys: 7 } });
  });

  it("refuses what is no request as the client's fault", async () => {
    expect((await post("/v1/chat/completions", { model: "m" })).status).toBe(400);
    expect((await post("/v1/chat/completions", { ...chat, model: "other" })).status).toBe(404);
  });
});
