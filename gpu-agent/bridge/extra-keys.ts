/** What a block's hash commits to besides its tokens: adapter, salt, or content (images) that has no prefix key. */

/** Extra keys of one block, told apart. */
export interface ExtraKeys {
  /** Salt that stands tagged. */
  readonly salt: string | null;
  /** Untagged texts other than the adapter's name: a salt, or hashes of images. */
  readonly texts: readonly string[];
  /** Something else is in the block: an image with its position, prompt embeddings, an unknown kind. */
  readonly foreign: boolean;
}

const NONE: ExtraKeys = { salt: null, texts: [], foreign: false };

/**
 * Reads the extra keys of one block: untagged texts in the order adapter, images, salt (vLLM's events), tagged tuples
 * `["cache_salt", s]` and `["lora", name, path]`, or maps with those names (engines.md §1.6).
 */
export function readExtraKeys(raw: readonly unknown[] | null | undefined, adapter: string | null): ExtraKeys {
  if (raw === null || raw === undefined || raw.length === 0) return NONE;
  let salt: string | null = null;
  let foreign = false;
  const texts: string[] = [];
  // Only the first of that name is the adapter: a tenant may choose it as a salt.
  let adapterAhead = adapter !== null;
  for (const key of raw) {
    if (key === null || key === undefined) continue;
    if (adapterAhead && key === adapter) {
      adapterAhead = false;
      continue;
    }
    if (typeof key === "string") {
      texts.push(key);
      continue;
    }
    const [tag, value] = tagged(key);
    if (tag === "cache_salt" && typeof value === "string") salt = value;
    else if (tag !== "lora") foreign = true;
  }
  return { salt, texts, foreign };
}

function tagged(key: unknown): readonly [unknown, unknown] {
  if (Array.isArray(key)) return [key[0], key[1]];
  if (typeof key !== "object" || key === null) return [null, null];
  if ("cache_salt" in key) return ["cache_salt", key.cache_salt];
  if ("lora" in key || "lora_name" in key) return ["lora", null];
  return [null, null];
}

/**
 * The salt of the chain that begins with this block: the tagged one, or the only text there is (an image in the first
 * block comes with its position or beside others, and a text taken for a salt by mistake is a salt that nobody asks
 * for). `undefined`: the block holds content that no prefix key can stand for.
 */
export function saltOfFirstBlock(keys: ExtraKeys): string | null | undefined {
  if (keys.foreign) return undefined;
  if (keys.salt !== null) return keys.texts.length === 0 ? keys.salt || null : undefined;
  if (keys.texts.length > 1) return undefined;
  return keys.texts[0] || null;
}

/** True if a later block of a chain with this salt holds text only; salts may be repeated on every block. */
export function isPlain(keys: ExtraKeys, salt: string | null): boolean {
  return !keys.foreign && keys.texts.every((text) => text === salt);
}
