/** Inside workerd the Worker takes its bindings: agents through a fetcher, a seed fleet from a key-value entry, good or bad. */

import { describe, expect, it } from "vitest";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import type { GatewayBindings } from "../../workers/gateway/environment.ts";
import { createWorker } from "../../workers/gateway/worker.ts";
import { registration } from "./registration.ts";

const KEY = "key";
const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(KEY)));
const SETTINGS = {
  KEDGE_API_KEYS: Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join(""),
  KEDGE_REDIS_URL: "http://127.0.0.1:1",
  KEDGE_REDIS_TOKEN: "unused",
  KEDGE_PLAN_KEY: JSON.stringify((await newPlanKeys()).privateJwks),
};
const AGENT = { id: "r/c/n", url: "https://n.internal" };

/** A Worker of its own per test, with a view that knows one rank or nobody. */
function open(bindings: GatewayBindings, known: boolean) {
  const worker = createWorker((_config, clock) => {
    const store = new MemoryStore({ now: () => clock.now(), random: Math.random });
    if (known) store.register(registration("w", AGENT));
    return store;
  });
  const work: Promise<unknown>[] = [];
  const context = { waitUntil: (given: Promise<unknown>) => void work.push(given) };
  return (path: string, init: RequestInit = {}) =>
    worker.fetch(
      new Request(`https://gateway${path}`, {
        ...init,
        headers: { authorization: `Bearer ${KEY}`, ...init.headers },
      }),
      { ...SETTINGS, ...bindings },
      context,
    );
}

const CHAT: RequestInit = {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ model: "m", messages: [{ role: "user", content: "Hello." }] }),
};

describe("bindings", () => {
  it("KEDGE_AGENTS is what reaches agents", async () => {
    const asked: string[] = [];
    const agents = {
      fetch: async (url: string, { headers }: RequestInit) => {
        asked.push(`${url} ${new Headers(headers).get("authorization")?.slice(0, 7)}`);
        return new Response('{"choices":[]}', {
          headers: { "content-type": "application/json", "x-kedge-door": "1" },
        });
      },
    };
    const answer = await open({ KEDGE_AGENTS: agents }, true)("/v1/chat/completions", CHAT);
    expect(await answer.json()).toEqual({ choices: [] });
    expect(asked).toEqual(["https://n.internal/v1/chat/completions Bearer "]);
  });

  it.each([
    ["nothing", null],
    ["no JSON", "{"],
    ["no fleet", '[{"worker":1}]'],
  ])("a KEDGE_KV entry with %s does no harm", async (_name, text) => {
    const keys: string[] = [];
    const store = {
      get: async (key: string) => {
        keys.push(key);
        return text;
      },
    };
    const answer = await open({ KEDGE_KV: store }, true)("/v1/models");
    expect(answer.status).toBe(200);
    expect(keys).toEqual(["seed-fleet"]);
  });

  it("settings are read once for all requests of an isolate", async () => {
    let reads = 0;
    const store = {
      get: async () => {
        reads++;
        return null;
      },
    };
    const call = open({ KEDGE_KV: store }, false);
    const answers = await Promise.all(Array.from({ length: 5 }, () => call("/live")));
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200]);
    expect(reads).toBe(1);
  });
});
