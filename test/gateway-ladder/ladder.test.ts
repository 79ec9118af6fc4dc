/** With the view failing, hanging, slow and back: no request fails, none waits longer than its deadline, and the rung is told (D8). */

import { describe, expect, it } from "vitest";
import { WebClient } from "../../src/gateway/client.ts";
import { MODEL, registration } from "../e2e/gateway-fleet.ts";
import { idle, type Ladder, type LadderOptions, ladder, type Mood } from "./harness.ts";

const WORKERS = ["a", "b", "c", "d"];
const LONG = "The quick brown fox jumps over the lazy dog. ".repeat(40);
const RUNG = "x-kedge-rung";

/** A gateway that has served one request with the view in reach. */
async function warm(options: LadderOptions = {}): Promise<Ladder> {
  const made = await ladder({ registrations: WORKERS.map((worker) => registration(worker)), ...options });
  const first = await made.chat("hello");
  expect([first.status, first.headers.get(RUNG), first.costMs]).toEqual([200, "exact", 0]);
  return made;
}

const spread = (plans: readonly { readonly worker: string }[]): Record<string, number> => {
  const counts: Record<string, number> = {};
  for (const { worker } of plans) counts[worker] = (counts[worker] ?? 0) + 1;
  return counts;
};

describe("a view out of reach", () => {
  it.each<[string, Mood, number]>([
    ["fails", "fail", 0],
    ["throws", "throw", 0],
    ["hangs", "hang", 50],
    ["takes 200 ms", { slowMs: 200 }, 50],
  ])("that %s costs a few requests the deadline at most, and fails none", async (_, mood, mostMs) => {
    const { chat, store, clock } = await warm();
    store.mood = mood;
    for (let i = 0; i < 3; i++) {
      const answer = await chat(`${LONG}${i}`);
      expect([answer.status, answer.headers.get(RUNG)]).toEqual([200, "consistent-hash"]);
      expect(answer.costMs).toBe(mostMs);
    }
    const reads = store.calls.read;
    for (let i = 0; i < 20; i++) {
      const answer = await chat(`${LONG}${i}`);
      expect([answer.status, answer.headers.get(RUNG), answer.costMs]).toEqual([200, "consistent-hash", 0]);
    }
    expect(store.calls.read).toBe(reads);
    // One request per second looks whether it is back.
    for (let second = 1; second <= 3; second++) {
      clock.advance(1_000);
      const costs = [];
      for (let i = 0; i < 4; i++) costs.push((await chat(LONG)).costMs);
      expect(costs).toEqual([mostMs, 0, 0, 0]);
      expect(store.calls.read).toBe(reads + second);
    }
  });

  it("that comes back is used again without a restart", async () => {
    const { chat, store, clock, metric } = await warm();
    store.mood = "hang";
    for (let i = 0; i < 5; i++) await chat(LONG);
    expect(metric("kedge_view_unavailable")).toBe(1);
    store.mood = "ok";
    expect((await chat(LONG)).headers.get(RUNG)).toBe("consistent-hash");
    clock.advance(1_000);
    for (let i = 0; i < 3; i++) expect((await chat(LONG)).headers.get(RUNG)).toBe("exact");
    expect(metric("kedge_view_unavailable")).toBe(0);
  });

  it("does not lose requests that come all at once, nor let them wait in turn", async () => {
    const { app, paid, store } = await warm();
    store.mood = "hang";
    const body = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: LONG }] });
    const headers = { "content-type": "application/json", "content-length": String(body.length) };
    const answers = await Promise.all(
      Array.from({ length: 100 }, () =>
        app.request("/v1/chat/completions", { method: "POST", body, headers }),
      ).map((answer, i) => (i === 0 ? paid(answer) : answer)),
    );
    expect(answers.every(({ status }) => status === 200)).toBe(true);
    expect((answers[0] as { costMs: number }).costMs).toBe(50);
  });

  it("names the rung in header, explanation and metrics, and what went wrong in metrics", async () => {
    const { chat, route, store, metric } = await warm();
    store.mood = "fail";
    for (let i = 0; i < 5; i++) await chat(LONG);
    const { json } = await route(LONG);
    expect(json.rung).toBe("consistent-hash");
    expect(json.ranking.every((one: object) => !("rung" in one))).toBe(true);
    expect(metric(`kedge_rung_requests_total{model="${MODEL}",rung="consistent-hash"}`)).toBe(5);
    expect(metric('kedge_view_errors_total{code="view_unavailable"}')).toBe(3);
    expect(metric("kedge_view_skipped_reads_total")).toBe(3);
    const other = await warm();
    other.store.mood = "hang";
    await other.chat(LONG);
    expect(other.metric('kedge_view_errors_total{code="deadline_exceeded"}')).toBe(1);
    expect(other.metric("kedge_view_read_seconds_count")).toBeGreaterThanOrEqual(2);
  });

  it("says of each candidate on which rung it stands, where they differ", async () => {
    const registrations = [registration("a"), registration("b", { kvEvents: false })];
    const { route } = await ladder({ registrations });
    const { json } = await route(LONG);
    const rungs = Object.fromEntries(
      json.ranking.map((one: { worker: string; rung?: string }) => [one.worker, one.rung ?? json.rung]),
    );
    expect(rungs).toEqual({ a: "exact", b: "predicted" });
  });

  it("gives a cold request one deadline for all that it asks", async () => {
    const { chat, store } = await ladder({ deps: { seedFleet: [registration("a")] } });
    store.mood = "hang";
    const answer = await chat(LONG);
    expect([answer.status, answer.costMs]).toEqual([200, 50]);
  });

  it("keeps to the deadline of the settings", async () => {
    const { chat, store } = await warm({ config: { store: { deadlineMs: 20 } } });
    store.mood = "hang";
    expect((await chat(LONG)).costMs).toBe(20);
  });

  it("is told of once, as is its return, and late or failed answers escape nowhere", async () => {
    const { chat, store, clock, warnings } = await warm();
    const told = () => warnings.filter((line) => /^The view (is out of reach|answers again)/.test(line));
    store.mood = "fail";
    for (let i = 0; i < 100; i++) await chat(LONG);
    for (let i = 0; i < 5; i++) {
      clock.advance(1_000);
      await chat(LONG);
    }
    expect(told()).toHaveLength(1);
    store.mood = "ok";
    clock.advance(1_000);
    for (let i = 0; i < 5; i++) await chat(LONG);
    expect(told().map((line) => line.slice(0, 24))).toEqual([
      "The view is out of reach",
      "The view answers again. ",
    ]);
  });
});

describe("a slow view", () => {
  it("still tells of the fleet, however late: a worker that came and one that went", async () => {
    const { chat, store, clock, plans } = await warm();
    store.mood = { slowMs: 200 };
    store.retire(registration("a"));
    store.register(registration("e"));
    for (let i = 0; i < 4; i++) await chat(LONG);
    clock.advance(300);
    await new Promise(setImmediate);
    plans.length = 0;
    for (let i = 0; i < 60; i++) await chat(`${i} ${LONG}`);
    expect(Object.keys(spread(plans)).sort()).toEqual(["b", "c", "d", "e"]);
  });

  it("within the deadline is not out of reach", async () => {
    const { chat, store } = await warm();
    store.mood = { slowMs: 30 };
    for (let i = 0; i < 5; i++) {
      const answer = await chat(LONG);
      expect([answer.headers.get(RUNG), answer.costMs]).toEqual(["exact", 30]);
    }
  });
});

describe("without a fleet", () => {
  it("is a typed 503 with a time to retry, in time", async () => {
    const { chat, call, store } = await ladder();
    store.mood = "hang";
    const answer = await chat("x");
    expect([answer.status, answer.json.error.code, answer.headers.get("retry-after")]).toEqual([
      503,
      "view_unavailable",
      "1",
    ]);
    // With nothing to fall back to, the view gets longer: its first answer may take a handshake.
    expect(answer.costMs).toBe(500);
    for (let i = 0; i < 3; i++) await chat("x");
    expect((await chat("x")).costMs).toBe(0);
    expect((await call("/ready")).json).toMatchObject({ status: "not_ready", view: "unavailable" });
    expect((await call("/v1/models")).json.error.code).toBe("view_unavailable");
    expect((await call("/busy_threshold")).json.error.code).toBe("view_unavailable");
  });

  it("a list of models says so too, from the first failure on", async () => {
    const { call, store } = await ladder();
    store.mood = "fail";
    expect((await call("/v1/models")).json.error.code).toBe("view_unavailable");
    store.mood = "ok";
    expect((await call("/v1/models")).json.data).toEqual([]);
  });

  it("a view that is slower than a request's deadline is waited for once", async () => {
    const { chat, store } = await ladder({ registrations: [registration("a")] });
    store.mood = { slowMs: 200 };
    const first = await chat(LONG);
    expect([first.status, first.headers.get(RUNG), first.costMs]).toEqual([200, "consistent-hash", 250]);
    expect((await chat(LONG)).costMs).toBe(50);
  });

  it("the seed is one, until the view has told of another", async () => {
    const seedFleet = ["s1", "s2"].map((worker) => registration(worker));
    const { chat, store, plans, clock } = await ladder({ deps: { seedFleet } });
    store.mood = "fail";
    for (let i = 0; i < 30; i++) {
      const answer = await chat(`${i} ${LONG}`);
      expect([answer.status, answer.headers.get(RUNG)]).toEqual([200, "consistent-hash"]);
    }
    expect(Object.keys(spread(plans)).sort()).toEqual(["s1", "s2"]);
    store.mood = "ok";
    store.register(registration("real"));
    clock.advance(1_000);
    plans.length = 0;
    await chat(LONG);
    store.mood = "fail";
    for (let i = 0; i < 10; i++) await chat(LONG);
    expect(spread(plans)).toEqual({ real: 11 });
  });

  it("a seed of other models is none", async () => {
    const { chat, store } = await ladder({ deps: { seedFleet: [registration("s")] } });
    store.mood = "fail";
    expect((await chat("x", { model: "other" })).json.error.code).toBe("view_unavailable");
  });
});

describe("the consistent hash", () => {
  const LADEN = { registrations: WORKERS.map((worker) => registration(worker)) };

  it("keeps prompts with one head on one worker, at every gateway, and spreads heads", async () => {
    const one = await warm(LADEN);
    const other = await warm({ ...LADEN, deps: { random: () => 0.9 } });
    for (const { store, plans } of [one, other]) {
      store.mood = "fail";
      plans.length = 0;
    }
    for (let head = 0; head < 24; head++) {
      for (let turn = 0; turn < 3; turn++) {
        const prompt = `${head} ${LONG} turn ${turn}`;
        await one.chat(prompt);
        await other.chat(prompt);
      }
    }
    const chosen = one.plans.map(({ worker }) => worker);
    expect(other.plans.map(({ worker }) => worker)).toEqual(chosen);
    for (let head = 0; head < 24; head++) expect(new Set(chosen.slice(head * 3, head * 3 + 3)).size).toBe(1);
    expect(Object.keys(spread(one.plans)).sort()).toEqual(WORKERS);
  });

  it("bounds what one hot head loads a worker with", async () => {
    const { app, store, plans, hold } = await warm(LADEN);
    store.mood = "fail";
    plans.length = 0;
    const release = hold();
    const body = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: LONG }] });
    const headers = { "content-type": "application/json", "content-length": String(body.length) };
    const answers: (Response | Promise<Response>)[] = [];
    for (let i = 0; i < 40; i++) {
      answers.push(app.request("/v1/chat/completions", { method: "POST", body, headers }));
      await new Promise(setImmediate);
    }
    while (plans.length < 40) await new Promise(setImmediate);
    // 1.25 times the mean of 10, one on top, and the one that was let in there.
    expect(Math.max(...Object.values(spread(plans)))).toBeLessThanOrEqual(1.25 * 10 + 2);
    release();
    for (const answer of answers) expect((await answer).status).toBe(200);
  });

  it("goes on with the next worker when one does not answer, and leaves it alone then", async () => {
    const { chat, store, plans } = await ladder({ ...LADEN, dead: new Set(["a", "b"]) });
    await chat("x");
    store.mood = "fail";
    for (let i = 0; i < 40; i++) expect((await chat(`${i} ${LONG}`)).status).toBe(200);
    plans.length = 0;
    for (let i = 0; i < 40; i++) expect((await chat(`${i} ${LONG}`)).status).toBe(200);
    expect(Object.keys(spread(plans)).sort()).toEqual(["c", "d"]);
  });

  it("gives way to two choices for prompts without keys and for modes that look at no cache", async () => {
    const { call, chat, store, plans } = await warm(LADEN);
    store.mood = "fail";
    plans.length = 0;
    for (let i = 0; i < 40; i++) {
      const answer = await call("/v1/completions", { model: MODEL, prompt: [1, 2, 3] });
      expect([answer.status, answer.headers.get(RUNG)]).toEqual([200, "two-choices"]);
    }
    expect(Object.keys(spread(plans)).sort()).toEqual(WORKERS);
    for (const mode of ["round-robin", "random", "least-loaded", "power-of-two"]) {
      const answer = await chat(LONG, {}, { "x-kedge-router-mode": mode });
      expect([mode, answer.headers.get(RUNG)]).toEqual([mode, "two-choices"]);
    }
    expect((await chat(LONG, {}, { "x-kedge-router-mode": "kv-1.x" })).headers.get(RUNG)).toBe(
      "consistent-hash",
    );
  });

  it("keeps pins, roles and adapters", async () => {
    const { chat, store, plans } = await warm({
      registrations: [
        registration("a"),
        registration("b", { adapters: ["style"] }),
        registration("c", { role: "prefill" }),
      ],
    });
    store.mood = "fail";
    plans.length = 0;
    for (let i = 0; i < 20; i++) await chat(`${i} ${LONG}`);
    expect(Object.keys(spread(plans)).sort()).toEqual(["a", "b"]);
    plans.length = 0;
    for (let i = 0; i < 10; i++) {
      await chat(`${i} ${LONG}`, {}, { "x-kedge-worker": "a" });
      await chat(`${i} ${LONG}`, { model: "style" });
    }
    expect(plans.map(({ worker }) => worker)).toEqual(Array(10).fill(["a", "b"]).flat());
    expect((await chat(LONG, {}, { "x-kedge-worker": "z" })).json.error.code).toBe("worker_not_found");
  });

  it("believes a busy worker for two seconds, not for the whole outage", async () => {
    const made = await warm({ ...LADEN, config: { router: { activeDecodeBlocksThreshold: 0.5 } } });
    const { chat, store, plans, clock } = made;
    for (const worker of ["a", "b", "c"]) idle(store, registration(worker), 900);
    await chat("see it");
    store.mood = "fail";
    plans.length = 0;
    for (let i = 0; i < 10; i++) await chat(`${i} ${LONG}`);
    expect(spread(plans)).toEqual({ d: 10 });
    clock.advance(2_001);
    plans.length = 0;
    for (let i = 0; i < 40; i++) expect((await chat(`${i} ${LONG}`)).status).toBe(200);
    expect(Object.keys(spread(plans)).sort()).toEqual(WORKERS);
  });
});

describe("names", () => {
  it("known from a copy within its age cost no question; the read tells that they changed their meaning", async () => {
    const { chat, store, clock } = await warm();
    expect(store.calls.fleet).toBe(1);
    clock.advance(9_000);
    await chat(LONG);
    expect(store.calls.fleet).toBe(1);
    clock.advance(1_001);
    await chat(LONG);
    expect(store.calls.fleet).toBe(2);
    // The same name comes to stand for another model, on other workers.
    for (const worker of WORKERS) store.retire(registration(worker));
    const card = { ...registration("n").card, model: "new" };
    store.register(registration("n", { model: "new", card }));
    clock.advance(1_000);
    const { json } = await chat(LONG);
    expect(json.choices).toHaveLength(1);
    expect(store.calls.fleet).toBe(3);
  });

  it("unknown ones are asked for at once, by many with one question", async () => {
    const { app, store } = await warm();
    const body = JSON.stringify({ model: "none", messages: [] });
    const headers = { "content-type": "application/json", "content-length": String(body.length) };
    const ask = () => app.request("/v1/chat/completions", { method: "POST", body, headers });
    const answers = await Promise.all(Array.from({ length: 50 }, ask));
    expect(answers.every(({ status }) => status === 404)).toBe(true);
    expect(store.calls.fleet).toBe(2);
    store.register(registration("n", { model: "none", servedNames: ["none"] }));
    expect((await ask()).status).not.toBe(404);
  });

  it("stay known through an outage of any length; unknown ones are not denied for good", async () => {
    const { chat, call, store, clock } = await warm();
    store.mood = "hang";
    clock.advance(3_600_000);
    for (let i = 0; i < 5; i++) expect((await chat(LONG)).status).toBe(200);
    const unknown = await chat(LONG, { model: "none" });
    expect([unknown.status, unknown.json.error.code, unknown.headers.get("retry-after")]).toEqual([
      503,
      "view_unavailable",
      "1",
    ]);
    const { json } = await call("/v1/models");
    expect(json.data.map(({ id }: { id: string }) => id)).toEqual([MODEL]);
  });

  it("an edge host that drops a question makes nobody wait beyond the deadline", async () => {
    const { chat, store } = await ladder({ registrations: [registration("a")] });
    store.mood = "hang";
    expect((await chat("x")).costMs).toBe(500);
    store.mood = "ok";
    expect((await chat("x")).status).toBe(200);
  });
});

describe("an emptied view", () => {
  it("is no reason to fail: last known workers serve until they are back, by new slots alone", async () => {
    const { chat, route, store, clock, plans } = await warm();
    await chat(LONG);
    store.reset();
    for (let i = 0; i < 10; i++) {
      const answer = await chat(`${i} ${LONG}`);
      expect([answer.status, answer.headers.get(RUNG)]).toEqual([200, "predicted"]);
    }
    // Whatever the slots of the new epoch are, they say nothing of workers that are not back.
    const { json } = await route(LONG);
    expect(json.ranking).toHaveLength(4);
    expect(json.ranking.every((one: { overlap_blocks: number }) => one.overlap_blocks === 0)).toBe(true);
    for (const worker of ["a", "b", "c"]) store.register(registration(worker));
    for (const worker of ["a", "b", "c"]) idle(store, registration(worker));
    const rungAt = async (worker: string) =>
      (await chat(LONG, {}, { "x-kedge-worker": worker })).headers.get(RUNG);
    expect([await rungAt("a"), await rungAt("d")]).toEqual(["exact", "predicted"]);
    expect((await route(LONG)).json.ranking).toHaveLength(4);
    // Who is not back ten seconds after the first is gone.
    clock.advance(10_001);
    await chat(LONG);
    expect((await route(LONG)).json.ranking).toHaveLength(3);
    plans.length = 0;
    for (let i = 0; i < 20; i++) await chat(`${i} ${LONG}`);
    expect(Object.keys(spread(plans))).not.toContain("d");
  });

  it("that stays empty does not undo the fleet, and one that went away after it neither", async () => {
    const { chat, store, clock } = await warm();
    store.reset();
    for (let i = 0; i < 3; i++) {
      expect((await chat(LONG)).status).toBe(200);
      clock.advance(60_000);
    }
    store.mood = "fail";
    for (let i = 0; i < 5; i++) expect((await chat(LONG)).status).toBe(200);
  });
});

describe("writes", () => {
  it("that fail are warned of once a second at most, and are spared while the view is out of reach", async () => {
    const { chat, store, warnings, clock } = await warm();
    const reserve = store.reserve.bind(store);
    store.reserve = async () => {
      throw new Error("no writes today");
    };
    for (let i = 0; i < 50; i++) expect((await chat(LONG)).status).toBe(200);
    expect(warnings.filter((line) => line.startsWith("A write"))).toHaveLength(1);
    clock.advance(1_000);
    await chat(LONG);
    expect(warnings.filter((line) => line.startsWith("A write"))[1]).toContain('"more":49');
    store.reserve = reserve;
    store.mood = "hang";
    for (let i = 0; i < 3; i++) await chat(LONG);
    const before = store.calls.reserve;
    for (let i = 0; i < 20; i++) await chat(LONG);
    expect(store.calls.reserve).toBe(before);
  });
});

describe("an edge host", () => {
  it("is given the writes that outlive the answer", async () => {
    const { app, store, paid, clock } = await warm();
    store.mood = { slowMs: 20 };
    const kept: Promise<unknown>[] = [];
    const body = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: LONG }] });
    const request = new Request("http://gateway/v1/chat/completions", {
      method: "POST",
      body,
      headers: { "content-type": "application/json" },
    });
    const client = new WebClient(request, { waitUntil: (work) => kept.push(work) });
    const answer = await paid(app.fetch(request, { client }));
    expect([answer.status, answer.costMs]).toEqual([200, 20]);
    let written = false;
    void Promise.all(kept).then(() => {
      written = true;
    });
    await new Promise(setImmediate);
    expect(written).toBe(false);
    clock.advance(20);
    await new Promise(setImmediate);
    expect(written).toBe(true);
  });
});

describe("the other routes", () => {
  it("health and readiness answer in time and say what is known", async () => {
    const { call, store } = await warm();
    expect((await call("/health")).json).toEqual({ status: "healthy", models: 1, workers: 4 });
    store.mood = "hang";
    const health = await call("/health");
    expect(health.json).toEqual({ status: "healthy", models: 1, workers: 4, view: "unavailable" });
    expect([health.status, health.costMs]).toEqual([200, 50]);
    const ready = await call("/ready");
    expect([ready.status, ready.json]).toEqual([200, { status: "ready", view: "unavailable" }]);
    expect((await call("/live")).json).toEqual({ status: "live" });
  });

  it("busy thresholds of a view out of reach are a 503 with a time to retry", async () => {
    const { call, store } = await warm();
    store.mood = "fail";
    const answer = await call("/busy_threshold", { model: MODEL, active_decode_blocks_threshold: 0.5 });
    expect([answer.status, answer.json.error.code, answer.headers.get("retry-after")]).toEqual([
      503,
      "view_unavailable",
      "1",
    ]);
  });

  it("set through one gateway, thresholds rule the next request of another", async () => {
    const one = await warm();
    const other = await warm({ deps: { store: one.store } });
    for (const worker of WORKERS) idle(one.store, registration(worker), 900);
    await one.call("/busy_threshold", { model: MODEL, active_decode_blocks_threshold: 0.5 });
    expect((await other.chat(LONG)).json.error.code).toBe("workers_busy");
  });

  it("publish the keys of plans, for anybody and for a while", async () => {
    const keys = [{ kty: "OKP", crv: "Ed25519", x: "AA", kid: "1" }];
    const digest = "0".repeat(64);
    const { call } = await ladder({ deps: { jwks: { keys } }, config: { apiKeyDigests: [digest] } });
    const answer = await call("/.well-known/jwks.json");
    expect([answer.status, answer.json, answer.headers.get("cache-control")]).toEqual([
      200,
      { keys },
      "public, max-age=300",
    ]);
    expect((await (await ladder()).call("/.well-known/jwks.json")).status).toBe(404);
  });

  it("a host without a loopback needs keys", async () => {
    const { chat, call } = await ladder({ deps: { requireKeys: true }, registrations: [registration("a")] });
    expect((await chat("x")).json.error.code).toBe("service_unconfigured");
    expect((await call("/v1/models")).status).toBe(503);
    expect((await call("/health")).status).toBe(200);
  });
});
