/** The text whose UTF-8 equals the concatenated bytes of a prompt's tokens, from the model card alone (scheme `bytes`). */

import type { ModelCard } from "./types.ts";

/** The part of a card that this depends on. */
export type TextRules = Pick<
  ModelCard,
  "addedPrefix" | "normalizer" | "strippingTokens" | "leadingSpace" | "addedTokens"
>;

/** `addSpecial`: the engine lets the tokenizer add its prefix (completions), as it does not for rendered chats. */
export type Canonicalizer = (text: string, options: { readonly addSpecial: boolean }) => string;

/** Unicode White_Space, which is what engines' tokenizers swallow; `\s` in JavaScript is a slightly different set. */
const WHITE_SPACE = "[\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const LEADING_SPACE = new RegExp(`^${WHITE_SPACE}`);

/**
 * Compiles a card's rules once. Order as in Hugging Face's tokenizers: added tokens are found, leftmost and then longest
 * first; each swallows the white space beside it that it asks for; every stretch between is normalised to NFC and given its
 * leading space; the tokenizer's own prefix goes in front of it all.
 */
export function createCanonicalizer(rules: TextRules): Canonicalizer {
  const prefix = rules.addedPrefix ?? "";
  const strips = new Map(rules.strippingTokens.map((token) => [token.content, token]));
  const pattern = tokenPattern([...strips.keys(), ...(rules.addedTokens ?? [])]);
  const movesSpace = strips.size > 0 || (rules.leadingSpace ?? null) !== null;

  const stretch = (text: string, before: string | null, after: string | null): string => {
    let stretched = text;
    if (before !== null && strips.get(before)?.rstrip) stretched = stretched.replace(LEADING_SPACE, "");
    if (after !== null && strips.get(after)?.lstrip) stretched = withoutTrailingSpace(stretched);
    if (rules.normalizer === "NFC") stretched = stretched.normalize("NFC");
    return needsSpace(rules.leadingSpace, stretched, before === null) ? ` ${stretched}` : stretched;
  };

  const betweenTokens = (text: string, tokens: RegExp): string => {
    let canonical = "";
    let before: string | null = null;
    let from = 0;
    for (const match of text.matchAll(tokens)) {
      const token = match[0];
      canonical += stretch(text.slice(from, match.index), before, token) + token;
      before = token;
      from = match.index + token.length;
    }
    return canonical + stretch(text.slice(from), before, null);
  };

  return (text, { addSpecial }) => {
    // Every part of a text in NFC is in NFC, so the usual prompt needs no search for tokens.
    const untouched = !movesSpace && (rules.normalizer === null || isNfc(text));
    let body = text;
    if (!untouched) body = pattern === null ? stretch(text, null, null) : betweenTokens(text, pattern);
    return addSpecial ? prefix + body : body;
  };
}

/** One text by a card's rules; where there are many, compile them once with {@link createCanonicalizer}. */
export function canonicalText(
  rules: TextRules,
  text: string,
  options: { readonly addSpecial: boolean },
): string {
  return createCanonicalizer(rules)(text, options);
}

/** Matches added tokens, leftmost and longest; null if there are none. */
function tokenPattern(contents: readonly string[]): RegExp | null {
  // Of alternatives the first that matches wins, so a longer token comes before its own beginning.
  const longestFirst = [...new Set(contents)].filter(Boolean).sort((a, b) => b.length - a.length);
  if (longestFirst.length === 0) return null;
  return new RegExp(
    longestFirst.map((content) => content.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"),
    "g",
  );
}

function needsSpace(rule: ModelCard["leadingSpace"], stretch: string, first: boolean): boolean {
  if (stretch === "") return false;
  if (rule === "always") return true;
  return (rule === "unless-space" || (rule === "first-unless-space" && first)) && !stretch.startsWith(" ");
}

/** Nothing below U+0300 composes or reorders, which spares most text the work. */
function isNfc(text: string): boolean {
  return !/[\u0300-\uffff]/.test(text) || text.normalize("NFC") === text;
}

/** A pattern anchored at the end would be tried at every run of spaces; from the end it is one short walk. */
function withoutTrailingSpace(text: string): string {
  let end = text.length;
  while (end > 0 && LEADING_SPACE.test(text.charAt(end - 1))) end--;
  return text.slice(0, end);
}
