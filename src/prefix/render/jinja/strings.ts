/** The methods of Python's `str`, on JavaScript strings. */

import type { Arguments } from "./arguments.ts";
import { TemplateFailure } from "./failures.ts";
import { hasSurrogates, iterate, length, Tuple, toText, typeName, type Value } from "./values.ts";

type Method = (text: string, args: Arguments) => Value;

/** What `str.isspace` says yes to; JavaScript's `\s` lacks U+001C…U+001F and U+0085 and has U+FEFF. */
const SPACE =
  "[\\t-\\r\\u001c-\\u0020\\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const ONE_SPACE = new RegExp(SPACE);
const SPACES = new RegExp(`${SPACE}+`, "g");
/** Where `str.splitlines` splits. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: Python splits at some of them.
export const LINE_BREAK = /\r\n|[\n-\r\u001c-\u001e\u0085\u2028\u2029]/g;

export function strip(text: string, chars: string | null = null, left = true, right = true): string {
  if (chars !== null) return stripChars(text, chars, left, right);
  let start = 0;
  let end = text.length;
  if (left) while (start < end && isSpace(text.charCodeAt(start))) start++;
  if (right) while (end > start && isSpace(text.charCodeAt(end - 1))) end--;
  return text.slice(start, end);
}

function isSpace(code: number): boolean {
  if (code < 0x80) return code === 0x20 || (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x1f);
  return ONE_SPACE.test(String.fromCharCode(code));
}

function stripChars(text: string, chars: string, left: boolean, right: boolean): string {
  let start = 0;
  let end = text.length;
  if (left) while (start < end && chars.includes(charAt(text, start))) start += charAt(text, start).length;
  if (right) while (end > start && chars.includes(charBefore(text, end))) end -= charBefore(text, end).length;
  return text.slice(start, end);
}

function charAt(text: string, index: number): string {
  return String.fromCodePoint(text.codePointAt(index)!);
}

function charBefore(text: string, end: number): string {
  const pair = text.slice(Math.max(end - 2, 0), end);
  return pair.length === 2 && pair.codePointAt(0)! > 0xffff ? pair : text.charAt(end - 1);
}

/** `limit` −1: no limit. */
export function split(text: string, separator: string | null, limit: number): string[] {
  if (separator === null) return splitWords(text, limit);
  if (separator === "") throw new TemplateFailure("empty separator");
  const parts = text.split(separator);
  if (limit < 0 || parts.length <= limit + 1) return parts;
  return [...parts.slice(0, limit), parts.slice(limit).join(separator)];
}

function splitWords(text: string, limit: number): string[] {
  const words: string[] = [];
  let rest = strip(text, null, true, false);
  while (rest !== "" && (limit < 0 || words.length < limit)) {
    SPACES.lastIndex = 0;
    const gap = SPACES.exec(rest);
    words.push(gap === null ? rest : rest.slice(0, gap.index));
    rest = gap === null ? "" : rest.slice(gap.index + gap[0].length);
  }
  return rest === "" ? words : [...words, rest];
}

function splitFromRight(text: string, separator: string | null, limit: number): string[] {
  if (limit < 0) return split(text, separator, limit);
  const backwards = (part: string) => [...part].reverse().join("");
  return split(backwards(text), separator === null ? null : backwards(separator), limit)
    .map(backwards)
    .reverse();
}

function splitLines(text: string, keepEnds: boolean): string[] {
  const lines: string[] = [];
  let start = 0;
  for (const match of text.matchAll(LINE_BREAK)) {
    const end = match.index + match[0].length;
    lines.push(text.slice(start, keepEnds ? end : match.index));
    start = end;
  }
  if (start < text.length) lines.push(text.slice(start));
  return lines;
}

/** `count` −1: all. */
export function replace(text: string, from: string, to: string, count: number): string {
  if (count < 0) return from === "" ? replaceEmpty(text, to, Infinity) : text.replaceAll(from, () => to);
  if (from === "") return replaceEmpty(text, to, count);
  const parts = text.split(from);
  const replaced = parts.slice(0, count + 1).join(to);
  return parts.length > count + 1 ? [replaced, ...parts.slice(count + 1)].join(from) : replaced;
}

function replaceEmpty(text: string, to: string, count: number): string {
  let result = "";
  let done = 0;
  for (const char of text) result += done++ < count ? to + char : char;
  return done < count ? result + to : result;
}

export function capitalize(text: string): string {
  const [first = ""] = text;
  return first.toUpperCase() + text.slice(first.length).toLowerCase();
}

function title(text: string): string {
  return text.replace(/\p{L}+/gu, capitalize);
}

function swapCase(text: string): string {
  return [...text].map((c) => (c === c.toUpperCase() ? c.toLowerCase() : c.toUpperCase())).join("");
}

/** Index in code points of the first (or last) occurrence; −1 if there is none. */
function find(text: string, args: Arguments, fromEnd = false): number {
  const start = args.integer(1, "start", 0);
  const [from, to] = range(text, start, args.get(2, "end", null) === null ? null : args.integer(2, "end"));
  const window = text.slice(from, to);
  const index = fromEnd ? window.lastIndexOf(args.text(0, "sub")) : window.indexOf(args.text(0, "sub"));
  return index < 0 ? -1 : length(text.slice(0, from + index));
}

/** Python's [start, end) in code points as UTF-16 indices. */
function range(text: string, start: number, end: number | null): [number, number] {
  const size = length(text);
  const clamp = (index: number) => Math.min(Math.max(index < 0 ? index + size : index, 0), size);
  const [from, to] = [clamp(start), end === null ? size : clamp(end)];
  if (!hasSurrogates(text)) return [from, to];
  const chars = [...text];
  return [chars.slice(0, from).join("").length, chars.slice(0, to).join("").length];
}

function affixed(text: string, args: Arguments, test: (text: string, affix: string) => boolean): boolean {
  const affix = args.get(0, "prefix");
  const options = affix instanceof Tuple ? affix.items : [affix];
  const start = args.get(1, "start", null);
  const subject =
    start === null ? text : text.slice(...range(text, args.integer(1, "start"), endArgument(args, 2)));
  return options.some((option) => {
    if (typeof option === "string") return test(subject, option);
    throw new TemplateFailure(`first arg must be str or a tuple of str, not ${typeName(option)}`);
  });
}

function endArgument(args: Arguments, index: number): number | null {
  return args.get(index, "end", null) === null ? null : args.integer(index, "end");
}

function pad(text: string, args: Arguments, left: (missing: number) => number): string {
  const missing = args.integer(0, "width") - length(text);
  if (missing <= 0) return text;
  const fill = args.text(1, "fillchar", " ");
  const before = left(missing);
  return fill.repeat(before) + text + fill.repeat(missing - before);
}

/** As CPython's str.center: the odd space goes left if the width is odd too. */
export function center(text: string, args: Arguments): string {
  const width = args.integer(0, "width", 80);
  return pad(text, args, (missing) => Math.floor(missing / 2) + (missing & width & 1));
}

function zeroFill(text: string, width: number): string {
  const sign = /^[+-]/.test(text) ? text.charAt(0) : "";
  const missing = width - length(text);
  return missing > 0 ? sign + "0".repeat(missing) + text.slice(sign.length) : text;
}

function partition(text: string, separator: string, index: number, missing: readonly Value[]): Value {
  if (separator === "") throw new TemplateFailure("empty separator");
  if (index < 0) return new Tuple(missing);
  return new Tuple([text.slice(0, index), separator, text.slice(index + separator.length)]);
}

function join(separator: string, items: readonly Value[]): string {
  return items
    .map((item, i) => {
      if (typeof item === "string") return item;
      throw new TemplateFailure(`sequence item ${i}: expected str instance, ${typeName(item)} found`);
    })
    .join(separator);
}

function found(index: number): number {
  if (index < 0) throw new TemplateFailure("substring not found");
  return index;
}

const every = (pattern: RegExp): Method => {
  return (text) => text !== "" && pattern.test(text);
};

const METHODS: Readonly<Record<string, Method>> = {
  capitalize,
  casefold: (text) => text.toLowerCase().replaceAll("ß", "ss"),
  center,
  count: (text, args) => countOf(text, args.text(0, "sub")),
  endswith: (text, args) => affixed(text, args, (subject, affix) => subject.endsWith(affix)),
  find: (text, args) => find(text, args),
  index: (text, args) => found(find(text, args)),
  isalnum: every(/^[\p{L}\p{N}]+$/u),
  isalpha: every(/^\p{L}+$/u),
  isdecimal: every(/^\p{Nd}+$/u),
  isdigit: every(/^[\p{Nd}\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089]+$/u),
  isnumeric: every(/^\p{N}+$/u),
  isspace: every(new RegExp(`^${SPACE}+$`)),
  islower: (text) => text === text.toLowerCase() && text !== text.toUpperCase(),
  isupper: (text) => text === text.toUpperCase() && text !== text.toLowerCase(),
  istitle: (text) => /\p{L}/u.test(text) && text === title(text),
  join: (text, args) => join(text, iterate(args.get(0, "iterable"))),
  ljust: (text, args) => pad(text, args, () => 0),
  lower: (text) => text.toLowerCase(),
  lstrip: (text, args) => strip(text, args.textOrNone(0, "chars"), true, false),
  partition: (text, args) =>
    partition(text, args.text(0, "sep"), text.indexOf(args.text(0, "sep")), [text, "", ""]),
  removeprefix: (text, args) => {
    const prefix = args.text(0, "prefix");
    return text.startsWith(prefix) ? text.slice(prefix.length) : text;
  },
  removesuffix: (text, args) => {
    const suffix = args.text(0, "suffix");
    return suffix !== "" && text.endsWith(suffix) ? text.slice(0, -suffix.length) : text;
  },
  replace: (text, args) =>
    replace(text, args.text(0, "old"), args.text(1, "new"), args.integer(2, "count", -1)),
  rfind: (text, args) => find(text, args, true),
  rindex: (text, args) => found(find(text, args, true)),
  rjust: (text, args) => pad(text, args, (missing) => missing),
  rpartition: (text, args) =>
    partition(text, args.text(0, "sep"), text.lastIndexOf(args.text(0, "sep")), ["", "", text]),
  rsplit: (text, args) => splitFromRight(text, args.textOrNone(0, "sep"), args.integer(1, "maxsplit", -1)),
  rstrip: (text, args) => strip(text, args.textOrNone(0, "chars"), false, true),
  split: (text, args) => split(text, args.textOrNone(0, "sep"), args.integer(1, "maxsplit", -1)),
  splitlines: (text, args) => splitLines(text, args.get(0, "keepends", false) === true),
  startswith: (text, args) => affixed(text, args, (subject, affix) => subject.startsWith(affix)),
  strip: (text, args) => strip(text, args.textOrNone(0, "chars")),
  swapcase: swapCase,
  title,
  upper: (text) => text.toUpperCase(),
  zfill: (text, args) => zeroFill(text, args.integer(0, "width")),
};

function countOf(text: string, part: string): number {
  return part === "" ? length(text) + 1 : text.split(part).length - 1;
}

/** A method of `str` by name; undefined if there is none. */
export function stringMethod(name: string): Method | undefined {
  return Object.hasOwn(METHODS, name) ? METHODS[name] : undefined;
}

const CONVERSION = /%(%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])/g;

/** `text % values` for `%s`, `%r`, `%d`, `%i` and `%%`; null if it asks for more. Errors: {@link TemplateFailure}. */
export function percentFormat(text: string, value: Value, repr: (value: Value) => string): string | null {
  const values = value instanceof Tuple ? [...value.items] : [value];
  let supported = true;
  const result = text.replace(CONVERSION, (_, kind: string) => {
    if (kind === "%") return "%";
    if (values.length === 0) throw new TemplateFailure("not enough arguments for format string");
    const next = values.shift();
    if (kind === "s") return toText(next);
    if (kind === "r") return repr(next);
    if ((kind === "d" || kind === "i") && (typeof next === "number" || typeof next === "bigint"))
      return String(next);
    supported = false;
    return "";
  });
  if (!supported) return null;
  if (values.length > 0) throw new TemplateFailure("not all arguments converted during string formatting");
  return result;
}
