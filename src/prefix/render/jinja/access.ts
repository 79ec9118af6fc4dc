/** `a.b`, `a[b]` and `a[b:c:d]` as Jinja's sandbox resolves them. */

import { Arguments } from "./arguments.ts";
import { TemplateFailure } from "./failures.ts";
import { stringMethod } from "./strings.ts";
import {
  type Callable,
  contains,
  type Dict,
  equal,
  hasSurrogates,
  isInteger,
  isList,
  iterate,
  Namespace,
  sequenceItems,
  Tuple,
  typeName,
  type Value,
} from "./values.ts";

/** What the immutable sandbox forbids on lists and dicts. */
const MUTATORS = new Set([
  "append",
  "clear",
  "extend",
  "insert",
  "pop",
  "popitem",
  "remove",
  "reverse",
  "setdefault",
  "sort",
  "update",
]);

/** `object.name`: a method or attribute first, an item second. Errors: {@link TemplateFailure} on Undefined. */
export function getAttribute(object: Value, name: string): Value {
  if (object === undefined) throw new TemplateFailure(`undefined has no attribute '${name}'`);
  const own = ownAttribute(object, name);
  if (own !== undefined) return own;
  return object instanceof Map ? object.get(name) : undefined;
}

/** `object[key]`: an item first, a method or attribute second. Errors: {@link TemplateFailure} on Undefined. */
export function getItem(object: Value, key: Value): Value {
  if (object === undefined) throw new TemplateFailure("undefined has no items");
  if (object instanceof Map && object.has(key)) return object.get(key);
  if (isInteger(key)) return itemAt(object, Number(key));
  return typeof key === "string" ? ownAttribute(object, key) : undefined;
}

function itemAt(object: Value, index: number): Value {
  if (typeof object === "string") {
    return hasSurrogates(object) ? [...object].at(index) : object.at(index);
  }
  return sequenceItems(object)?.at(index);
}

function ownAttribute(object: Value, name: string): Value {
  if (typeof object === "string") {
    const method = stringMethod(name);
    return method && ((args, named) => method(object, new Arguments(args, named)));
  }
  if (object instanceof Namespace) return object.attributes.get(name);
  if (object instanceof Map) return dictMethod(object, name) ?? forbidden(name);
  const items = sequenceItems(object);
  if (items !== undefined) return listMethod(items, name) ?? (isList(object) ? forbidden(name) : undefined);
  if (typeof object === "object" && object !== null && "attribute" in object) return object.attribute(name);
  return undefined;
}

function forbidden(name: string): Callable | undefined {
  if (!MUTATORS.has(name)) return undefined;
  return () => {
    throw new TemplateFailure(`access to '${name}' is unsafe`);
  };
}

function dictMethod(dict: Dict, name: string): Callable | undefined {
  switch (name) {
    case "get":
      return ([key, fallback = null]) => (dict.has(key) ? dict.get(key) : fallback);
    case "items":
      return () => dictItems(dict);
    case "keys":
      return () => [...dict.keys()];
    case "values":
      return () => [...dict.values()];
    case "copy":
      return () => new Map(dict);
    default:
      return undefined;
  }
}

/** The (key, value) tuples of a dict. */
export function dictItems(dict: Dict): Tuple[] {
  return Array.from(dict, (entry) => new Tuple(entry));
}

function listMethod(items: readonly Value[], name: string): Callable | undefined {
  switch (name) {
    case "index":
      return ([wanted]) => {
        if (!contains(items, wanted)) throw new TemplateFailure("value is not in list");
        return items.findIndex((item) => equal(item, wanted));
      };
    case "count":
      return ([wanted]) => items.filter((item) => equal(item, wanted)).length;
    case "copy":
      return () => [...items];
    default:
      return undefined;
  }
}

/** `object[start:stop:step]`; null bounds are open. Errors: {@link TemplateFailure}. */
export function slice(object: Value, start: Value, stop: Value, step: Value): Value {
  const text = typeof object === "string";
  const items = text ? [] : sequenceItems(object);
  if (items === undefined) throw new TemplateFailure(`'${typeName(object)}' object is not subscriptable`);
  const stride = bound(step) ?? 1;
  if (stride === 0) throw new TemplateFailure("slice step cannot be zero");
  if (text && stride === 1 && !hasSurrogates(object)) {
    return object.slice(bound(start) ?? 0, bound(stop) ?? object.length);
  }
  const source = text ? iterate(object) : items;
  const picked = pick(source, bound(start), bound(stop), stride);
  if (text) return picked.join("");
  return isList(object) ? picked : new Tuple(picked);
}

function bound(value: Value): number | null {
  if (value === null || value === undefined) return null;
  if (!isInteger(value)) throw new TemplateFailure("slice indices must be integers or None");
  return Number(value);
}

function pick(items: readonly Value[], start: number | null, stop: number | null, stride: number): Value[] {
  const size = items.length;
  const [lowest, highest] = stride > 0 ? [0, size] : [-1, size - 1];
  const clamp = (index: number) => Math.min(Math.max(index < 0 ? index + size : index, lowest), highest);
  const from = start === null ? (stride > 0 ? 0 : size - 1) : clamp(start);
  const to = stop === null ? (stride > 0 ? size : -1) : clamp(stop);
  const picked: Value[] = [];
  for (let i = from; stride > 0 ? i < to : i > to; i += stride) picked.push(items[i]);
  return picked;
}
