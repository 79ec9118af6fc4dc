/** Plan keys as settings name them: text, files and URLs. */

import { access, constants, readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { KedgeError } from "../errors/index.ts";
import { splitKeySources } from "../plan/key-sources.ts";

const TIMEOUT_MS = 5_000;
const MAX_BYTES = 256 * 1024;

/** The text of a gateway's key setting, which may name a file. Errors: `config_invalid`. */
export async function signingKeyText(setting: string): Promise<string> {
  if (/^\s*(\{|-----BEGIN)/.test(setting)) return setting;
  try {
    return await readFile(setting.trim(), "utf8");
  } catch (cause) {
    throw new KedgeError(
      "config_invalid",
      `KEDGE_PLAN_KEY is neither a key (JWK, JWKS, PEM) nor a file that can be read; make one with: kedge plan-key.`,
      { cause, param: "plan" },
    );
  }
}

/** An agent's key setting with its files as URLs, so that they are read again when keys rotate. Errors: `config_invalid` for a file that cannot be read. */
export async function keySources(setting: string): Promise<string> {
  const parts = splitKeySources(setting).map(async (part) => {
    if (/^(\{|[a-z]+:\/\/)/i.test(part)) return part;
    try {
      await access(part, constants.R_OK);
    } catch (cause) {
      throw new KedgeError(
        "config_invalid",
        `KEDGE_PLAN_JWKS: "${part}" is neither JSON nor a URL nor a file that can be read.`,
        { cause, param: "plan.jwks" },
      );
    }
    return pathToFileURL(resolve(part)).href;
  });
  return (await Promise.all(parts)).join("\n");
}

/** The text at a file or HTTP URL. Errors: what reading gives; more than 256 KB, more than 5 s. */
export async function loadKeys(url: string): Promise<string> {
  const text = url.startsWith("file:") ? await readFile(fileURLToPath(url), "utf8") : await fetched(url);
  if (text.length > MAX_BYTES) throw new Error(`it is longer than ${MAX_BYTES} bytes`);
  return text;
}

async function fetched(url: string): Promise<string> {
  const response = await fetch(url, { redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!response.ok) throw new Error(`it answered ${response.status}`);
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of response.body ?? []) {
    text += decoder.decode(chunk, { stream: true });
    if (text.length > MAX_BYTES) break;
  }
  return text;
}
