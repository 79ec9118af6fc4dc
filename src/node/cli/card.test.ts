/** `kedge card` on real model files and on broken ones. */
import { copyFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { cardOf, type ModelCardOptions, readModelFiles } from "../../../gpu-agent/agent.ts";
import { exampleModel, exampleModelDirectory } from "../../../test/support/example-models.ts";
import { KedgeError } from "../../errors/index.ts";
import { parseModelCard } from "../../prefix/card.ts";
import type { ModelCard } from "../../prefix/types.ts";
import { cardCommand } from "./card.ts";

async function readModelCard(path: string, options: ModelCardOptions = {}): Promise<ModelCard> {
  return cardOf(await readModelFiles(path), options);
}

let directory: string;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "kedge-card-"));
});

afterEach(async () => {
  vi.restoreAllMocks();
  await rm(directory, { recursive: true });
});

async function codeOf(run: () => Promise<unknown>): Promise<string> {
  try {
    await run();
  } catch (error) {
    if (error instanceof KedgeError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return "nothing was thrown";
}

describe("a card from files", () => {
  it("gives the same card for the directory and for its tokenizer.json", async () => {
    const models = exampleModelDirectory("qwen3");
    const card = await readModelCard(models, { model: "qwen3" });
    expect(card).toEqual(exampleModel("qwen3").card);
    expect(await readModelCard(join(models, "tokenizer.json"), { model: "qwen3" })).toEqual(card);
  });

  it("does without tokenizer_config.json and config.json, and prefers chat_template.jinja", async () => {
    await copyFile(
      join(exampleModelDirectory("llama3_1"), "tokenizer.json"),
      join(directory, "tokenizer.json"),
    );
    expect((await readModelCard(directory)).chatTemplate).toBeNull();
    await writeFile(join(directory, "chat_template.jinja"), "{{ messages }}");
    const card = await readModelCard(directory, { scheme: "tokens", unitSize: 32, timeZone: "Europe/Oslo" });
    expect(card).toMatchObject({
      chatTemplate: "{{ messages }}",
      scheme: "tokens",
      unitSize: 32,
      timeZone: "Europe/Oslo",
      addedPrefix: "<|begin_of_text|>",
    });
  });

  it("names the file at fault", async () => {
    expect(await codeOf(() => readModelCard(join(directory, "nowhere")))).toMatch(
      /^config_invalid: .*nowhere/,
    );
    expect(await codeOf(() => readModelCard(directory))).toMatch(/^config_invalid: .*tokenizer\.json/);
    await writeFile(join(directory, "tokenizer.json"), "{");
    expect(await codeOf(() => readModelCard(directory))).toMatch(/tokenizer\.json is not valid JSON/);
    await writeFile(join(directory, "tokenizer.json"), "{}");
    expect(await codeOf(() => readModelCard(directory))).toMatch(/^config_invalid/);
  });
});

describe("kedge card", () => {
  it("prints a card that a gateway accepts, on one line with --json", async () => {
    const printed: string[] = [];
    vi.spyOn(process.stdout, "write").mockImplementation((text) => printed.push(String(text)) > 0);
    const models = exampleModelDirectory("llama3_1");
    await cardCommand().parseAsync([models, "--model", "llama", "--json"], { from: "user" });
    await cardCommand().parseAsync([models, "--model", "llama"], { from: "user" });
    const [line, pretty] = printed;
    expect(line?.trimEnd()).not.toContain("\n");
    expect(parseModelCard(JSON.parse(line!)).model).toBe("llama");
    expect(JSON.parse(pretty!)).toEqual(JSON.parse(line!));
  });

  it("explains itself and its options", () => {
    const help = cardCommand().helpInformation();
    for (const option of ["--model", "--scheme", "--unit", "--time-zone", "--json", "tokenizer.json"]) {
      expect(help).toContain(option);
    }
  });

  it.each([
    ["--scheme", "words"],
    ["--unit", "0"],
  ])("refuses %s %s", async (flag, value) => {
    const command = cardCommand()
      .exitOverride()
      .configureOutput({ writeErr: () => undefined });
    await expect(command.parseAsync([directory, flag, value], { from: "user" })).rejects.toThrow(/invalid/);
  });
});
