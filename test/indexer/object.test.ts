/** The indexer's Durable Object in workerd, between a real NATS and a real Redis: it resumes after its end without loss or doubling. */

import { createHash } from "node:crypto";
import { Miniflare } from "miniflare";
import { afterAll, beforeAll, expect, it } from "vitest";
import { describeWithServers } from "../support/servers.ts";
import { bundleWorker, type WorkerBundle } from "../support/worker-bundle.ts";
import { Site } from "./site.ts";

const API_KEY = "operator";
const AUTHORIZED = { authorization: `Bearer ${API_KEY}` };

interface Status {
  readonly state: string;
  readonly natsConnected: boolean;
  readonly figures: Readonly<Record<string, number>>;
}

/** A method that the declared types leave out. */
interface Scheduled {
  scheduled(options: { readonly cron: string }): Promise<{ readonly outcome: string }>;
}

function runObject({ modules }: WorkerBundle, texts: Readonly<Record<string, string>>): Miniflare {
  const entries = modules.map(({ name, type, contents }) => {
    const own = type === "esm" ? new TextDecoder().decode(contents) : contents;
    return [name, { type, contents: own }] as const;
  });
  const settings = Object.entries(texts).map(([name, value]) => [name, { type: "text", value }] as const);
  return new Miniflare({
    cf: false,
    telemetry: { enabled: false },
    host: "127.0.0.1",
    workers: [
      {
        config: {
          name: "kedge-indexer",
          compatibilityDate: "2026-10-01",
          manifest: { mainModule: modules[0]!.name, modules: Object.fromEntries(entries) },
          env: {
            ...Object.fromEntries(settings),
            INDEXER: { type: "durable-object", worker: "kedge-indexer", exportName: "IndexerObject" },
          },
          exports: { IndexerObject: { type: "durable-object", storage: "sqlite" } },
        },
      },
    ],
  });
}

describeWithServers("the indexer's Durable Object", () => {
  let bundle: WorkerBundle;
  let site: Site;
  let worker: Miniflare;
  let url: string;

  beforeAll(async () => {
    bundle = await bundleWorker("test/indexer/abortable-worker.ts");
    site = await Site.start();
    worker = runObject(bundle, {
      ...site.environment,
      KEDGE_API_KEYS: createHash("sha256").update(API_KEY).digest("hex"),
    });
    url = (await worker.ready).origin;
  });
  afterAll(async () => {
    await worker?.dispose();
    await site?.close();
  });

  const call = (path: string, init: RequestInit = {}): Promise<Response> =>
    fetch(url + path, { headers: AUTHORIZED, ...init });
  const status = async (): Promise<Status> => (await (await call("/status")).json()) as Status;

  it("answers nobody without a key, and only what there is", async () => {
    expect((await call("/status", { headers: {} })).status).toBe(401);
    expect((await call("/nothing")).status).toBe(404);
    expect((await call("/start")).status).toBe(405);
  });

  it("begins with the cron trigger, and what agents publish arrives in Redis", async () => {
    const cron = (await worker.getWorker()) as unknown as Scheduled;
    expect(await cron.scheduled({ cron: "* * * * *" })).toMatchObject({ outcome: "ok" });
    site.addAgent("a", 6, 11);
    await site.publish(60);
    await site.converged();
    expect((await call("/start", { method: "POST" })).status).toBe(200);
    expect(await status()).toMatchObject({ state: "leading", natsConnected: true });
    expect(await (await call("/metrics")).text()).toContain(
      'kedge_indexer_lag_events{worker="a-0",rank="0"} 0',
    );
  });

  it("is made anew by its alarm after it was ended in the middle of its work", async () => {
    const before = (await status()).figures;
    const rounds = 120;
    await site.publish(rounds, async (round) => {
      if (round % 40 === 20) await call("/abort").catch(() => undefined);
    });
    // Nobody but the alarm asks for it until the view is what it should be.
    await site.converged(30_000);
    const after = (await status()).figures;
    // One object that had lived on would have applied them all.
    expect(after.batchesApplied).toBeLessThan(before.batchesApplied! + rounds * 6);
    expect((await status()).state).toBe("leading");
  });

  it("refills an emptied Redis and outlives an outage of NATS", async () => {
    await site.emptyRedis();
    await site.converged();
    await site.stopNats();
    await site.publish(20);
    await site.startNatsAgain();
    await site.publish(20);
    await site.converged();
  });

  it("holds nothing of Node but a fallback of the NATS client, which workerd never takes", () => {
    expect(bundle.platformImports.toSorted()).toEqual(["cloudflare:workers", "crypto"]);
  });
});

describeWithServers("a deployment without its settings", () => {
  it("says what is missing", async () => {
    const bundle = await bundleWorker("workers/indexer/index.ts");
    const key = createHash("sha256").update(API_KEY).digest("hex");
    const stored = { KEDGE_REDIS_URL: "http://127.0.0.1:1", KEDGE_REDIS_TOKEN: "t" };
    for (const [texts, told] of [
      [{}, "KEDGE_REDIS_URL"],
      [stored, "KEDGE_NATS_URL"],
      [{ ...stored, KEDGE_NATS_URL: "ws://127.0.0.1:1" }, "KEDGE_API_KEYS"],
      [{ ...stored, KEDGE_API_KEYS: key, KEDGE_NATS: "ws://127.0.0.1:1" }, "KEDGE_NATS_URL"],
    ] as const) {
      const worker = runObject(bundle, texts);
      const { origin } = await worker.ready;
      const answer = await fetch(`${origin}/status`, { headers: AUTHORIZED });
      const body = await answer.text();
      await worker.dispose();
      expect([answer.status >= 500, body.includes(told)]).toEqual([true, true]);
    }
  });
});
