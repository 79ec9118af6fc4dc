/** Two real engines: conversations stay where their cache is, and Kedge goes on while one of them dies, ends or comes back. */

import { beforeAll, expect, it } from "vitest";
import { type Engine, MODEL, startEngine } from "./engine.ts";
import { answered, describeVllm, settled } from "./fixture.ts";
import { ask, type Body, eventually, type Kedge, metric, promise, startKedge } from "./kedge.ts";

const LONG = "The harbour master writes down every boat, its name and the hour of the tide. ".repeat(12);

const chat = (content: string, extra: object = {}): Body => ({
  model: MODEL,
  max_tokens: 1,
  messages: [{ role: "user", content }],
  ...extra,
});

describeVllm("two engines", () => {
  let engines: [Engine, Engine];
  let kedge: Kedge;

  beforeAll(async () => {
    engines = await Promise.all([startEngine(), startEngine()]);
    kedge = await startKedge(engines);
  });

  const engineOf = (worker: string | null): number => Number(/^e(\d)\/0$/.exec(worker ?? "")?.[1]);
  const workers = async (): Promise<number> => {
    const response = await fetch(`${kedge.url}/v1/route`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(chat("Who is there?")),
    });
    const { ranking = [] } = (await response.json()) as { ranking?: unknown[] };
    return ranking.length;
  };

  it("ten conversations take turns, and each stays with its cache", async () => {
    const homes = new Map<number, string>();
    const talks = Array.from({ length: 10 }, (_, i) => [{ role: "system", content: `${i}. ${LONG}` }]);
    for (let turn = 0; turn < 4; turn++) {
      for (const [i, messages] of talks.entries()) {
        messages.push({ role: "user", content: `Turn ${turn} of talk ${i}: and then?` });
        const answer = await settled(kedge.url, { model: MODEL, messages, max_tokens: 1 });
        expect(answer.promised).toBeLessThanOrEqual(answer.cached);
        expect(answer.worker).toBe(homes.get(i) ?? answer.worker);
        if (turn > 0) expect(answer.promised).toBeGreaterThan(100);
        homes.set(i, answer.worker!);
        messages.push({ role: "assistant", content: "Then the next boat comes in." });
      }
    }
    expect(new Set(homes.values()).size).toBe(2);
  });

  it("an engine that is killed and comes back at once has lost its cache, and Kedge knows", async () => {
    const body = chat(`Killed. ${LONG}`);
    const home = engineOf((await answered(kedge.url, body)).worker);
    await eventually("the event", async () => (await promise(kedge.url, body)) > 0);
    const { ports } = engines[home]!;
    await engines[home]!.kill();
    // The other one serves meanwhile, without an error to the client.
    for (let i = 0; i < 5; i++) expect(engineOf((await answered(kedge.url, body)).worker)).toBe(1 - home);
    engines[home] = await startEngine({ ports });
    await eventually("both engines", async () => (await workers()) === 2);
    const pin = { "x-kedge-worker": `e${home}` };
    expect(await answered(kedge.url, body, pin)).toMatchObject({ promised: 0, cached: 0, rung: "exact" });
    await eventually("its new events", async () => {
      const again = await answered(kedge.url, body, pin);
      return again.promised > 0 && again.promised <= again.cached;
    });
  });

  it("a stream whose engine is killed ends in an error, not in an invented end", async () => {
    const streamed = ask(kedge.url, chat("Cut off.", { stream: true, max_tokens: 6_000, ignore_eos: true }));
    const running = () => Promise.all(engines.map(({ url }) => metric(url, "vllm:num_requests_running")));
    let at = -1;
    await eventually("a running request", async () => {
      at = (await running()).indexOf(1);
      return at >= 0;
    });
    const { ports } = engines[at]!;
    await engines[at]!.kill();
    const { raw } = await streamed;
    expect(raw).toContain("stream_interrupted");
    expect(raw).not.toContain("[DONE]");
    engines[at] = await startEngine({ ports });
    await eventually("both engines", async () => (await workers()) === 2);
  });

  it("an engine that ends by SIGTERM is left at once, by requests under way too", async () => {
    const body = chat(`Terminated. ${LONG}`);
    const home = engineOf((await answered(kedge.url, body)).worker);
    const pin = { "x-kedge-worker": `e${home}` };
    const long = { max_tokens: 3_000, ignore_eos: true };
    // Its prefix draws it there; pinned, it could not go elsewhere.
    const whole = ask(kedge.url, { ...body, ...long, max_tokens: 2_000 });
    const stream = ask(kedge.url, chat("A stream under way.", { ...long, stream: true }), pin);
    const running = () => metric(engines[home]!.url, "vllm:num_requests_running");
    await eventually("two running requests", async () => (await running()) === 2);
    engines[home]!.terminate();
    const meanwhile = await Promise.all(
      Array.from({ length: 40 }, async (_, i) => {
        await new Promise((resolve) => setTimeout(resolve, i * 50));
        return ask(kedge.url, body);
      }),
    );
    expect(meanwhile.filter(({ status }) => status !== 200)).toEqual([]);
    await eventually("one engine", async () => (await workers()) === 1);
    expect(engineOf((await answered(kedge.url, body)).worker)).toBe(1 - home);
    // The engine computes nothing more and would wait for ever; what was begun ends, what was not is computed elsewhere.
    expect((await stream).raw).toContain("stream_interrupted");
    expect(await whole).toMatchObject({ status: 200, worker: `e${1 - home}/0` });
    await eventually("the engine's end", async () => engines[home]!.hasEnded(), 20_000);
  });
});
