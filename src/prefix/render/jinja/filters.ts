/** Jinja's filters (`x | trim`), by name, with Hugging Face's `tojson`. */

import { dictItems, getAttribute, getItem } from "./access.ts";
import { Arguments } from "./arguments.ts";
import { TemplateFailure, UnsupportedTemplate } from "./failures.ts";
import { DEFAULT_DUMP, type DumpOptions, dumpJson } from "./json-dumps.ts";
import { BINARY } from "./operators.ts";
import { capitalize, center, LINE_BREAK, percentFormat, replace, split, strip } from "./strings.ts";
import { TESTS } from "./tests.ts";
import {
  compare,
  equal,
  Float,
  isInteger,
  iterate,
  length,
  narrow,
  numeric,
  repr,
  sequenceItems,
  Tuple,
  toText,
  truthy,
  typeName,
  type Value,
} from "./values.ts";

export type Filter = (value: Value, args: Arguments) => Value;

type Getter = (item: Value) => Value;

/** `attribute="a.b.0"` as a path of items. */
function attributeGetter(path: Value, fallback?: Value): Getter {
  if (path === null || path === undefined) return (item) => item;
  const keys = isInteger(path)
    ? [path]
    : toText(path)
        .split(".")
        .map((key) => (/^\d+$/.test(key) ? Number(key) : key));
  return (item) => {
    let value = item;
    for (const key of keys) value = getItem(value, key);
    return value === undefined ? fallback : value;
  };
}

/** Strings in lower case unless case matters. */
function caseFolder(caseSensitive: Value): Getter {
  return (item) => (typeof item === "string" && !truthy(caseSensitive) ? item.toLowerCase() : item);
}

function sortBy(items: readonly Value[], key: Getter, reverse: boolean): Value[] {
  const keyed = items.map((item) => ({ item, key: key(item) }));
  keyed.sort((a, b) => (reverse ? compare(b.key, a.key) : compare(a.key, b.key)));
  return keyed.map(({ item }) => item);
}

const sort: Filter = (value, args) => {
  const get = attributeGetter(args.get(2, "attribute", null));
  const fold = caseFolder(args.get(1, "case_sensitive", false));
  return sortBy(iterate(value), (item) => fold(get(item)), truthy(args.get(0, "reverse", false)));
};

const dictSort: Filter = (value, args) => {
  if (!(value instanceof Map))
    throw new TemplateFailure(`'${typeName(value)}' object has no attribute 'items'`);
  const index = args.get(1, "by", "key") === "value" ? 1 : 0;
  const fold = caseFolder(args.get(0, "case_sensitive", false));
  const key = (item: Value) => fold(sequenceItems(item)?.[index]);
  return sortBy(dictItems(value), key, truthy(args.get(2, "reverse", false)));
};

const extreme =
  (sign: 1 | -1): Filter =>
  (value, args) => {
    const get = attributeGetter(args.get(1, "attribute", null));
    const fold = caseFolder(args.get(0, "case_sensitive", false));
    let best: { item: Value; key: Value } | undefined;
    for (const item of iterate(value)) {
      const key = fold(get(item));
      if (best === undefined || compare(key, best.key) * sign > 0) best = { item, key };
    }
    return best?.item;
  };

const unique: Filter = (value, args) => {
  const get = attributeGetter(args.get(1, "attribute", null));
  const fold = caseFolder(args.get(0, "case_sensitive", false));
  const seen: Value[] = [];
  return iterate(value).filter((item) => {
    const key = fold(get(item));
    if (seen.some((other) => equal(other, key))) return false;
    seen.push(key);
    return true;
  });
};

/** `select`, `reject` and their `…attr` forms: the test's name and arguments follow the attribute's. */
const selection = (byAttribute: boolean, keep: boolean): Filter => {
  return (value, args) => {
    const [first, ...rest] = args.positional;
    const get = byAttribute ? attributeGetter(first) : attributeGetter(null);
    const [name, ...testArgs] = byAttribute ? rest : args.positional;
    const test = name === undefined ? truthy : namedTest(name);
    const bound = new Arguments(testArgs, args.named);
    return iterate(value).filter((item) => test(get(item), bound) === keep);
  };
};

function namedTest(name: Value) {
  const test = typeof name === "string" && Object.hasOwn(TESTS, name) ? TESTS[name] : undefined;
  if (test === undefined) throw new UnsupportedTemplate(`the test ${repr(name)}`);
  return test;
}

const map: Filter = (value, args) => {
  if (args.positional.length === 0) {
    const get = attributeGetter(args.get(0, "attribute"), args.get(1, "default"));
    return iterate(value).map(get);
  }
  const [name, ...rest] = args.positional;
  const filter = typeof name === "string" ? filterNamed(name) : undefined;
  if (filter === undefined) throw new UnsupportedTemplate(`the filter ${repr(name)}`);
  const bound = new Arguments(rest, args.named);
  return iterate(value).map((item) => filter(item, bound));
};

const join: Filter = (value, args) => {
  const get = attributeGetter(args.get(1, "attribute", null));
  return iterate(value)
    .map((item) => toText(get(item)))
    .join(toText(args.get(0, "d", "")));
};

const indent: Filter = (value, args) => {
  const width = args.get(0, "width", 4);
  const margin = typeof width === "string" ? width : " ".repeat(args.integer(0, "width", 4));
  const blank = truthy(args.get(2, "blank", false));
  const text = toText(value)
    .split(LINE_BREAK)
    .map((line, i) => (i === 0 || (line === "" && !blank) ? line : margin + line))
    .join("\n");
  return truthy(args.get(1, "first", false)) ? margin + text : text;
};

const toInteger: Filter = (value, args) => {
  const number = numeric(value);
  if (number !== undefined)
    return Number.isFinite(Number(number)) ? truncate(number) : args.get(0, "default", 0);
  if (typeof value !== "string") return args.get(0, "default", 0);
  const text = strip(value).replaceAll(/(?<=\d)_(?=\d)/g, "");
  if (args.integer(1, "base", 10) === 10 && /^[+-]?\d+$/.test(text))
    return narrow(BigInt(text.replace("+", "")));
  const parsed = parseFloatText(text);
  return parsed === undefined || !Number.isFinite(parsed) ? args.get(0, "default", 0) : truncate(parsed);
};

function truncate(number: number | bigint): number | bigint {
  if (typeof number === "bigint") return number;
  const whole = Math.trunc(number);
  return Number.isSafeInteger(whole) ? whole + 0 : BigInt(whole);
}

function parseFloatText(text: string): number | undefined {
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Number(text) : undefined;
}

const toFloat: Filter = (value, args) => {
  const number = typeof value === "string" ? parseFloatText(strip(value)) : numeric(value);
  return number === undefined ? args.get(0, "default", new Float(0)) : new Float(Number(number));
};

/** Python rounds exact halves to even; `ceil` and `floor` go their way. The result is a float unless it was an int. */
const round: Filter = (value, args) => {
  const number = numeric(value);
  if (number === undefined) throw new TemplateFailure(`type ${typeName(value)} doesn't define __round__`);
  const precision = args.integer(0, "precision", 0);
  const method = args.text(1, "method", "common");
  const scale = 10 ** precision;
  const scaled = Number(number) * scale;
  if (method === "ceil") return new Float(Math.ceil(scaled) / scale);
  if (method === "floor") return new Float(Math.floor(scaled) / scale);
  if (!(value instanceof Float)) return precision >= 0 ? number : new Float(halfEven(scaled) / scale);
  return new Float(
    precision > 0 ? Number(value.value.toFixed(Math.min(precision, 100))) : halfEven(scaled) / scale,
  );
};

function halfEven(value: number): number {
  const floor = Math.floor(value);
  const fraction = value - floor;
  if (fraction !== 0.5) return Math.round(value);
  return floor % 2 === 0 ? floor : floor + 1;
}

const toJson: Filter = (value, args) => {
  if (args.positional.length === 0 && args.named.size === 0) return dumpJson(value);
  return dumpJson(value, dumpOptions(args));
};

function dumpOptions(args: Arguments): DumpOptions {
  const indentation = args.get(1, "indent", null);
  const separators = sequenceItems(args.get(2, "separators", null));
  const compact = indentation === null ? DEFAULT_DUMP.itemSeparator : ",";
  return {
    ensureAscii: truthy(args.get(0, "ensure_ascii", false)),
    indent:
      indentation === null || typeof indentation === "string"
        ? indentation
        : " ".repeat(Math.max(args.integer(1, "indent"), 0)),
    itemSeparator: separators === undefined ? compact : toText(separators[0]),
    keySeparator: separators === undefined ? DEFAULT_DUMP.keySeparator : toText(separators[1]),
    sortKeys: truthy(args.get(3, "sort_keys", false)),
  };
}

const HTML: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  "'": "&#39;",
  '"': "&#34;",
};
const escapeHtml: Filter = (value) => toText(value).replace(/[&<>'"]/g, (char) => HTML[char]!);

const batch: Filter = (value, args) => {
  const size = args.integer(0, "linecount");
  const fill = args.get(1, "fill_with", null);
  const items = iterate(value);
  const rows: Value[][] = [];
  for (let i = 0; i < items.length; i += size) rows.push(items.slice(i, i + size));
  const last = rows.at(-1);
  if (fill !== null) while (last !== undefined && last.length < size) last.push(fill);
  return rows;
};

const sum: Filter = (value, args) => {
  const get = attributeGetter(args.get(0, "attribute", null));
  return iterate(value).reduce<Value>(
    (total, item) => BINARY["+"]!(total, get(item)),
    args.get(1, "start", 0),
  );
};

const titleCase: Filter = (value) =>
  toText(value)
    .split(/([-\s({[<]+)/)
    .map(capitalize)
    .join("");

const fallbackTo: Filter = (value, args) => {
  const replaced = value === undefined || (truthy(args.get(1, "boolean", false)) && !truthy(value));
  return replaced ? args.get(0, "default_value", "") : value;
};

const format: Filter = (value, args) => {
  const values = args.named.size > 0 ? new Map(args.named) : new Tuple(args.positional);
  const text = percentFormat(toText(value), values, repr);
  if (text === null) throw new UnsupportedTemplate(`the format string ${repr(value)}`);
  return text;
};

const replaceText: Filter = (value, args) => {
  const count = args.get(2, "count", null) === null ? -1 : args.integer(2, "count");
  return replace(toText(value), toText(args.get(0, "old")), toText(args.get(1, "new")), count);
};

const reverse: Filter = (value) => {
  const items = [...iterate(value)].reverse();
  return typeof value === "string" ? items.join("") : items;
};

const urlEncode: Filter = (value) => {
  if (typeof value !== "string") throw new UnsupportedTemplate("urlencode of anything but a string");
  return encodeURIComponent(value)
    .replaceAll("%2F", "/")
    .replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
};

const absolute: Filter = (value) => {
  if (value instanceof Float) return new Float(Math.abs(value.value));
  const number = numeric(value);
  if (number === undefined) throw new TemplateFailure(`bad operand type for abs(): '${typeName(value)}'`);
  return number < 0 ? -number : number;
};

const size: Filter = (value) => length(value);

const FILTERS: Readonly<Record<string, Filter>> = {
  abs: absolute,
  attr: (value, args) => getAttribute(value instanceof Map ? null : value, args.text(0, "name")),
  batch,
  capitalize: (value) => capitalize(toText(value)),
  center: (value, args) => center(toText(value), args),
  count: size,
  d: fallbackTo,
  default: fallbackTo,
  dictsort: dictSort,
  e: escapeHtml,
  escape: escapeHtml,
  first: (value) => iterate(value)[0],
  float: toFloat,
  forceescape: escapeHtml,
  format,
  indent,
  int: toInteger,
  items: (value) => (value instanceof Map ? dictItems(value) : iterate(value)),
  join,
  last: (value) => iterate(value).at(-1),
  length: size,
  list: (value) => [...iterate(value)],
  lower: (value) => toText(value).toLowerCase(),
  map,
  max: extreme(1),
  min: extreme(-1),
  reject: selection(false, false),
  rejectattr: selection(true, false),
  replace: replaceText,
  reverse,
  round,
  safe: (value) => toText(value),
  select: selection(false, true),
  selectattr: selection(true, true),
  sort,
  string: (value) => toText(value),
  sum,
  title: titleCase,
  tojson: toJson,
  trim: (value, args) => strip(toText(value), args.textOrNone(0, "chars")),
  unique,
  upper: (value) => toText(value).toUpperCase(),
  urlencode: urlEncode,
  wordcount: (value) => split(toText(value), null, -1).length,
};

/** A filter by name; undefined if there is none here. */
export function filterNamed(name: string): Filter | undefined {
  return Object.hasOwn(FILTERS, name) ? FILTERS[name] : undefined;
}
