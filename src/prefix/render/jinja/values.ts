/** Values of a template with Python's types, truth, equality, order and text forms. */

import { TemplateFailure } from "./failures.ts";

/** A Python float; ints are JavaScript numbers, or bigints beyond 2⁵³. */
export class Float {
  readonly value: number;

  constructor(value: number) {
    this.value = value;
  }
}

/** A Python tuple. */
export class Tuple {
  readonly items: readonly Value[];

  constructor(items: readonly Value[]) {
    this.items = items;
  }
}

/** `namespace(…)`: the one thing whose attributes a template may set. */
export class Namespace {
  readonly attributes: Map<string, Value>;

  constructor(attributes: Map<string, Value>) {
    this.attributes = attributes;
  }
}

/** A value with attributes of its own kind (`loop`, `cycler`). */
export interface NativeObject {
  attribute(name: string): Value;
}

export type Dict = Map<Value, Value>;
export type Kwargs = ReadonlyMap<string, Value>;
export type Callable = (args: readonly Value[], kwargs: Kwargs) => Value;

/** `undefined` is Jinja's Undefined, `null` is None. */
export type Value =
  | undefined
  | null
  | boolean
  | number
  | bigint
  | string
  | Float
  | Tuple
  | Namespace
  | NativeObject
  | Callable
  | readonly Value[]
  | Dict;

export const NO_KWARGS: Kwargs = new Map();

export function isList(value: Value): value is readonly Value[] {
  return Array.isArray(value);
}

export function isInteger(value: Value): value is number | bigint {
  return typeof value === "number" || typeof value === "bigint";
}

/** A bigint as a number where that is exact. */
export function narrow(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** The numeric value of an int, float or bool; undefined for anything else. */
export function numeric(value: Value): number | bigint | undefined {
  if (typeof value === "boolean") return value ? 1 : 0;
  if (value instanceof Float) return value.value;
  return isInteger(value) ? value : undefined;
}

export function truthy(value: Value): boolean {
  if (typeof value === "string") return value !== "";
  if (isList(value)) return value.length > 0;
  if (value instanceof Map) return value.size > 0;
  if (value instanceof Tuple) return value.items.length > 0;
  if (value instanceof Float) return value.value !== 0;
  return Boolean(value);
}

/** Python's name of the type, for messages. */
export function typeName(value: Value): string {
  if (value === undefined) return "Undefined";
  if (value === null) return "NoneType";
  if (typeof value === "boolean") return "bool";
  if (isInteger(value)) return "int";
  if (typeof value === "string") return "str";
  if (isList(value)) return "list";
  if (value instanceof Map) return "dict";
  if (value instanceof Float) return "float";
  if (value instanceof Tuple) return "tuple";
  return "object";
}

/** The items of a list or tuple; undefined for anything else. */
export function sequenceItems(value: Value): readonly Value[] | undefined {
  return isList(value) ? value : value instanceof Tuple ? value.items : undefined;
}

/** What iterating yields: items, keys of a dict, characters. Errors: {@link TemplateFailure}. */
export function iterate(value: Value): readonly Value[] {
  const items = sequenceItems(value);
  if (items !== undefined) return items;
  if (value === undefined) return [];
  if (value instanceof Map) return [...value.keys()];
  if (typeof value === "string") return [...value];
  throw new TemplateFailure(`'${typeName(value)}' object is not iterable`);
}

/** Length in items or code points. Errors: {@link TemplateFailure}. */
export function length(value: Value): number {
  if (typeof value === "string") return codePointLength(value);
  if (value === undefined) return 0;
  if (value instanceof Map) return value.size;
  const items = sequenceItems(value);
  if (items === undefined) throw new TemplateFailure(`object of type '${typeName(value)}' has no len()`);
  return items.length;
}

const SURROGATE = /[\ud800-\udbff]/;

/** Whether UTF-16 units and code points differ in a string. */
export function hasSurrogates(text: string): boolean {
  return SURROGATE.test(text);
}

function codePointLength(text: string): number {
  if (!hasSurrogates(text)) return text.length;
  let count = 0;
  for (const _ of text) count++;
  return count;
}

export function equal(a: Value, b: Value): boolean {
  if (a === b) return true;
  const left = numeric(a);
  if (left !== undefined) {
    const right = numeric(b);
    // An int may be a number on one side and a bigint on the other.
    return right !== undefined && left <= right && left >= right;
  }
  if (isList(a)) return isList(b) && equalItems(a, b);
  if (a instanceof Tuple) return b instanceof Tuple && equalItems(a.items, b.items);
  if (a instanceof Map) return b instanceof Map && equalDicts(a, b);
  return false;
}

function equalItems(a: readonly Value[], b: readonly Value[]): boolean {
  return a.length === b.length && a.every((item, i) => equal(item, b[i]));
}

function equalDicts(a: Dict, b: Dict): boolean {
  if (a.size !== b.size) return false;
  for (const [key, value] of a) if (!b.has(key) || !equal(value, b.get(key))) return false;
  return true;
}

/** Negative, zero or positive, as Python orders. Errors: {@link TemplateFailure} for values without an order. */
export function compare(a: Value, b: Value): number {
  if (typeof a === "string" && typeof b === "string") return compareText(a, b);
  const left = numeric(a);
  const right = numeric(b);
  if (left !== undefined && right !== undefined) return left < right ? -1 : left > right ? 1 : 0;
  const items = sequenceItems(a);
  const others = sequenceItems(b);
  if (items === undefined || others === undefined || isList(a) !== isList(b)) {
    throw new TemplateFailure(`'<' not supported between '${typeName(a)}' and '${typeName(b)}'`);
  }
  for (let i = 0; i < items.length && i < others.length; i++) {
    if (!equal(items[i], others[i])) return compare(items[i], others[i]);
  }
  return items.length - others.length;
}

/** Order by code points, which differs from UTF-16 order where surrogates meet U+E000…U+FFFF. */
function compareText(a: string, b: string): number {
  if (a === b) return 0;
  if (!hasSurrogates(a) && !hasSurrogates(b)) return a < b ? -1 : 1;
  const [left, right] = [[...a], [...b]];
  for (let i = 0; i < left.length && i < right.length; i++) {
    const difference = left[i]!.codePointAt(0)! - right[i]!.codePointAt(0)!;
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}

/** `item in container`. Errors: {@link TemplateFailure}. */
export function contains(container: Value, item: Value): boolean {
  if (typeof container === "string") {
    if (typeof item === "string") return container.includes(item);
    throw new TemplateFailure(`'in <string>' requires string as left operand, not ${typeName(item)}`);
  }
  if (container instanceof Map) return container.has(item);
  return iterate(container).some((candidate) => equal(candidate, item));
}

/** Python's `repr` of a float: shortest digits, exponent from 1e16 up and below 1e-4. */
export function floatRepr(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (Object.is(value, -0)) return "-0.0";
  const magnitude = Math.abs(value);
  if (magnitude === 0 || (magnitude >= 1e-4 && magnitude < 1e16)) {
    const text = String(value);
    return /[.e]/.test(text) ? text : `${text}.0`;
  }
  const [mantissa, exponent] = value.toExponential().split("e") as [string, string];
  return `${mantissa}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}

/** Python's `str(value)`: what `{{ value }}` prints. */
export function toText(value: Value): string {
  return typeof value === "string" ? value : value === undefined ? "" : repr(value);
}

/** Python's `repr(value)`. */
export function repr(value: Value): string {
  if (typeof value === "string") return stringRepr(value);
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (isInteger(value)) return String(value);
  if (value instanceof Float) return floatRepr(value.value);
  if (isList(value)) return `[${value.map(repr).join(", ")}]`;
  if (value instanceof Tuple) {
    return value.items.length === 1 ? `(${repr(value.items[0])},)` : `(${value.items.map(repr).join(", ")})`;
  }
  if (value instanceof Map) return `{${[...value].map(([k, v]) => `${repr(k)}: ${repr(v)}`).join(", ")}}`;
  return value === undefined ? "Undefined" : "<object>";
}

const SIMPLE_ESCAPES: Readonly<Record<string, string>> = {
  "\\": "\\\\",
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
};
// What Python's str.isprintable() denies, save the space.
const UNPRINTABLE = /[\\\p{C}\p{Z}]/gu;

function stringRepr(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(UNPRINTABLE, (char) => {
    if (char === " ") return char;
    const simple = SIMPLE_ESCAPES[char];
    if (simple !== undefined) return simple;
    const code = char.codePointAt(0)!;
    if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
    if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
    return `\\U${code.toString(16).padStart(8, "0")}`;
  });
  return quote + (quote === "'" ? escaped.replaceAll("'", "\\'") : escaped) + quote;
}
