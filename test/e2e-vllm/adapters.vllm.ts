/** A real engine with two LoRA adapters: models of their own, whose prefixes are nobody else's. */

import { beforeAll, expect, it } from "vitest";
import { type Engine, MODEL, startEngine } from "./engine.ts";
import { answered, describeVllm, expectExact, expectNeverAbove, series, settled } from "./fixture.ts";
import { ask, eventually, type Kedge, promise, startKedge } from "./kedge.ts";
import { Prompts } from "./prompts.ts";

const LONG = "An adapter sees the same tide with other eyes. ".repeat(20);
const chat = (model: string, content: string, extra: object = {}) => ({
  model,
  max_tokens: 1,
  messages: [{ role: "user", content }],
  ...extra,
});

describeVllm("adapters", () => {
  let engine: Engine;
  let kedge: Kedge;

  beforeAll(async () => {
    const lora = [
      "--enable-lora",
      "--lora-modules",
      "tide=lora-tide",
      "--max-lora-rank",
      "8",
      "--max-loras",
      "2",
    ];
    const tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
    engine = await startEngine({ flags: [...lora, ...tools], runtimeAdapters: true });
    kedge = await startKedge([engine]);
  });

  it("are served under their names", async () => {
    const { data } = await (await fetch(`${kedge.url}/v1/models`)).json();
    expect(data.map(({ id }: { id: string }) => id).sort()).toEqual(["tide", MODEL]);
  });

  it("share no prefix with the base model, salted or not", async () => {
    const asks = [chat(MODEL, LONG), chat("tide", LONG), chat("tide", LONG, { cache_salt: "one" })];
    for (const body of asks) expect(await settled(kedge.url, body)).toMatchObject({ promised: 0, cached: 0 });
    for (const body of asks) expectNeverAbove([await settled(kedge.url, body)]);
  });

  it("scheme bytes: none promised more than there is", async () => {
    const prompts = new Prompts(8, { words: 50, salts: ["tenant-a"], models: [MODEL, "tide"] });
    expectNeverAbove(await series(kedge.url, prompts, 120));
  });

  it("that are loaded and unloaded while all runs come and go", async () => {
    const change = (action: string, body: object) =>
      fetch(`${engine.url}/v1/${action}_lora_adapter`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(body),
      });
    expect((await change("load", { lora_name: "gale", lora_path: "lora-gale" })).status).toBe(200);
    await eventually(
      "the new adapter",
      async () => (await ask(kedge.url, chat("gale", LONG))).status === 200,
    );
    await eventually("its events", async () => (await promise(kedge.url, chat("gale", LONG))) > 0);
    expectNeverAbove([await answered(kedge.url, chat("gale", LONG))]);
    expect((await change("unload", { lora_name: "gale" })).status).toBe(200);
    await eventually("its end", async () => (await ask(kedge.url, chat("gale", LONG))).status === 404);
  });

  it("scheme tokens: exact", async () => {
    await kedge.stop();
    kedge = await startKedge([engine], "--scheme", "tokens");
    await eventually("the engine's cache", async () => (await promise(kedge.url, chat("tide", LONG))) > 0);
    const prompts = new Prompts(9, { words: 50, salts: ["tenant-a"], models: [MODEL, "tide"] });
    expectExact(await series(kedge.url, prompts, 120));
  });
});
