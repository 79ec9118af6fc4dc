/** Models of the engines named on the command line: where their files are, their cards, keyers and tokenizers. */

import { existsSync } from "node:fs";
import { join } from "node:path";
import { type FileModel, loadAgentModel, type ModelCardOptions } from "../../gpu-agent/agent.ts";
import { KedgeError } from "../errors/index.ts";
import { createTokenizer, type PromptTokenizer } from "../prefix/tokenizer.ts";
import type { EngineOption } from "./engine-option.ts";

export type ModelSettings = Omit<ModelCardOptions, "model">;

export interface LoadedModel extends FileModel {
  /** Scheme `tokens` only. */
  readonly tokenizer: PromptTokenizer | null;
}

interface Named {
  readonly name: string;
  readonly path: string;
}

const ASK_TIMEOUT_MS = 5_000;

export interface ModelsOfEngines {
  /** Each model once, under the name that its engines serve it by. */
  readonly models: LoadedModel[];
  /** Engines that do not answer. */
  readonly silent: EngineOption[];
}

/** Errors: `config_invalid` with the option to add, `upstream_error`; `upstream_unreachable` if not one engine answers. */
export async function loadModels(
  engines: readonly EngineOption[],
  settings: ModelSettings,
): Promise<ModelsOfEngines> {
  const paths = new Map<string, string>();
  const silent: EngineOption[] = [];
  const answers = await Promise.allSettled(engines.map(locate));
  answers.forEach((answer, i) => {
    if (answer.status === "fulfilled") paths.set(answer.value.name, answer.value.path);
    else if (isUnreachable(answer.reason)) silent.push(engines[i]!);
    else throw answer.reason;
  });
  const first = answers[0];
  if (paths.size === 0 && first?.status === "rejected") throw first.reason;
  const models = [...paths].map(([model, path]) => loadModel(path, { ...settings, model }));
  return { models: await Promise.all(models), silent };
}

export function isUnreachable(thrown: unknown): boolean {
  return thrown instanceof KedgeError && thrown.code === "upstream_unreachable";
}

export async function loadModel(path: string, options: ModelCardOptions): Promise<LoadedModel> {
  const model = await loadAgentModel({ path, ...options });
  const { tokenizerJson, tokenizerConfig } = model.files;
  const isTokens = model.card.scheme === "tokens";
  return {
    ...model,
    tokenizer: isTokens ? createTokenizer(tokenizerJson as object, (tokenizerConfig ?? {}) as object) : null,
  };
}

/** The first served name is the canonical one; its files are where the option says, or where the engine loaded them from. */
async function locate(engine: EngineOption): Promise<Named> {
  const { name, root } = await firstModel(engine);
  if (engine.model !== null) return { name, path: engine.model };
  if (root !== null && existsSync(join(root, "tokenizer.json"))) return { name, path: root };
  throw new KedgeError(
    "config_invalid",
    `The engine at ${engine.url} serves ${name}, whose files are not on this machine. ` +
      `Add model=FOLDER to its --engine option: a folder with tokenizer.json and the chat template is enough.`,
    { param: "engine" },
  );
}

async function firstModel({ url, apiKey }: EngineOption): Promise<{ name: string; root: string | null }> {
  const response = await ask(`${url}/v1/models`, apiKey);
  const body = (await response.json().catch(() => null)) as {
    data?: { id?: string; root?: string }[];
  } | null;
  const first = body?.data?.[0];
  if (!response.ok || typeof first?.id !== "string") {
    throw new KedgeError(
      "upstream_error",
      `${url}/v1/models answered ${response.status} and named no model.`,
    );
  }
  return { name: first.id, root: first.root ?? null };
}

async function ask(url: string, apiKey: string | null): Promise<Response> {
  try {
    return await fetch(url, {
      headers: apiKey === null ? {} : { authorization: `Bearer ${apiKey}` },
      signal: AbortSignal.timeout(ASK_TIMEOUT_MS),
    });
  } catch (cause) {
    throw new KedgeError("upstream_unreachable", `No engine answers at ${url}; is it up?`, { cause });
  }
}
