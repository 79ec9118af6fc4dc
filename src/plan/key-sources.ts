/** Where an agent's public keys come from: JWKS in the setting itself and at URLs, read again for keys that are new. */

import type { CryptoKey } from "jose";
import { KedgeError, toKedgeError } from "../errors/index.ts";
import { readPublicKeys } from "./keys.ts";

export interface KeySourcesOptions {
  readonly text: string;
  readonly now: () => number;
  readonly load?: (url: string) => Promise<string>;
  readonly onError: (error: KedgeError) => void;
}

/** An unknown key makes a URL be read again, at most so often: anybody can name keys that do not exist. */
const COOLDOWN_MS = 5_000;
/** A key that is published no more is good for at most so long. */
const REFRESH_MS = 600_000;

interface Source {
  readonly url: string;
  keys: ReadonlyMap<string, CryptoKey>;
  triedAtMs: number;
  loading: Promise<void> | null;
}

export class KeySources {
  private readonly options: KeySourcesOptions;
  private fixed: ReadonlyMap<string, CryptoKey> = new Map();
  private remote: readonly Source[] = [];

  constructor(options: KeySourcesOptions) {
    this.options = options;
  }

  /** Reads what the setting holds and begins to read its URLs, which need not answer yet. Errors: `config_invalid`. */
  async open(): Promise<void> {
    const { text, load } = this.options;
    const parts = splitKeySources(text);
    const urls = parts.filter((part) => !part.startsWith("{"));
    const unfit = urls.find((url) => !/^[a-z]+:\/\//i.test(url) || !URL.canParse(url));
    if (parts.length === 0 || unfit !== undefined || (urls.length > 0 && load === undefined)) {
      throw new KedgeError(
        "config_invalid",
        `Plan keys: ${unfit === undefined ? "no public keys are given" : `"${unfit}" is neither JSON nor a URL`}.`,
        { param: "plan" },
      );
    }
    const maps = await Promise.all(parts.filter((part) => part.startsWith("{")).map(readPublicKeys));
    this.fixed = new Map(maps.flatMap((map) => [...map]));
    this.remote = urls.map((url) => ({ url, keys: new Map(), triedAtMs: -Infinity, loading: null }));
    for (const source of this.remote) void this.reload(source);
  }

  /** Null: nobody publishes it. Waits for a URL only if the key is not known yet. */
  async keyOf(kid: string): Promise<CryptoKey | null> {
    const known = this.find(kid);
    const nowMs = this.options.now();
    const due = known === undefined ? COOLDOWN_MS : REFRESH_MS;
    const loads = this.remote.map((source) => {
      // A clock that was set back must not keep a source from being read.
      const ageMs = Math.abs(nowMs - source.triedAtMs);
      return ageMs >= due ? this.reload(source) : source.loading;
    });
    if (known !== undefined) return known;
    await Promise.all(loads);
    return this.find(kid) ?? null;
  }

  private find(kid: string): CryptoKey | undefined {
    const fixed = this.fixed.get(kid);
    if (fixed !== undefined) return fixed;
    for (const { keys } of this.remote) {
      const key = keys.get(kid);
      if (key !== undefined) return key;
    }
    return undefined;
  }

  private reload(source: Source): Promise<void> {
    source.loading ??= this.load(source).finally(() => {
      source.loading = null;
    });
    return source.loading;
  }

  private async load(source: Source): Promise<void> {
    const { load, now, onError } = this.options;
    source.triedAtMs = now();
    try {
      source.keys = await readPublicKeys(await load!(source.url));
    } catch (cause) {
      const why = cause instanceof KedgeError || !(cause instanceof Error) ? toKedgeError(cause) : cause;
      onError(
        new KedgeError("config_invalid", `The plan keys at ${source.url} cannot be read: ${why.message}`, {
          cause,
        }),
      );
    }
  }
}

/** JSON objects and words of a text, in order; JSON may hold white space. */
export function splitKeySources(text: string): string[] {
  const parts: string[] = [];
  for (let at = 0; at < text.length; ) {
    const rest = text.slice(at);
    const blank = /^\s+/.exec(rest)?.[0].length ?? 0;
    if (blank > 0) {
      at += blank;
      continue;
    }
    const length = rest.startsWith("{") ? objectLength(rest) : /^\S+/.exec(rest)![0].length;
    parts.push(rest.slice(0, length));
    at += length;
  }
  return parts;
}

/** Characters up to the brace that closes the first one; all, if none does. */
function objectLength(text: string): number {
  let depth = 0;
  for (const { 0: token, index } of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}]/g)) {
    if (token === "{") depth++;
    else if (token === "}") depth--;
    if (depth === 0) return index + 1;
  }
  return text.length;
}
