/** Python's `json.dumps` with the options that chat templates' `tojson` exposes. */

import { TemplateFailure } from "./failures.ts";
import { Float, floatRepr, isInteger, isList, sequenceItems, Tuple, typeName, type Value } from "./values.ts";

export interface DumpOptions {
  readonly ensureAscii: boolean;
  /** Text of one indentation step; null prints on one line. */
  readonly indent: string | null;
  readonly itemSeparator: string;
  readonly keySeparator: string;
  readonly sortKeys: boolean;
}

export const DEFAULT_DUMP: DumpOptions = {
  ensureAscii: false,
  indent: null,
  itemSeparator: ", ",
  keySeparator: ": ",
  sortKeys: false,
};

/** Errors: {@link TemplateFailure} for what JSON cannot say. */
export function dumpJson(value: Value, options: DumpOptions = DEFAULT_DUMP, line = "\n"): string {
  if (typeof value === "string") return dumpString(value, options.ensureAscii);
  const scalar = dumpScalar(value);
  if (scalar !== undefined) return scalar;
  const inner = options.indent === null ? "" : line + options.indent;
  const outer = options.indent === null ? "" : line;
  const dumpInner = (item: Value) => dumpJson(item, options, inner);
  if (isList(value) || value instanceof Tuple) {
    return enclose("[", sequenceItems(value)!.map(dumpInner), "]", options.itemSeparator, inner, outer);
  }
  if (!(value instanceof Map)) {
    throw new TemplateFailure(`Object of type ${typeName(value)} is not JSON serializable`);
  }
  const entries = [...value];
  if (options.sortKeys) entries.sort(([a], [b]) => (dumpKey(a) < dumpKey(b) ? -1 : 1));
  const members = entries.map(
    ([key, item]) => dumpString(dumpKey(key), options.ensureAscii) + options.keySeparator + dumpInner(item),
  );
  return enclose("{", members, "}", options.itemSeparator, inner, outer);
}

function enclose(
  open: string,
  parts: readonly string[],
  close: string,
  separator: string,
  inner: string,
  outer: string,
): string {
  return parts.length === 0 ? open + close : open + inner + parts.join(separator + inner) + outer + close;
}

function dumpScalar(value: Value): string | undefined {
  if (value === null) return "null";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (isInteger(value)) return String(value);
  if (!(value instanceof Float)) return undefined;
  if (Number.isNaN(value.value)) return "NaN";
  if (!Number.isFinite(value.value)) return value.value > 0 ? "Infinity" : "-Infinity";
  return floatRepr(value.value);
}

function dumpKey(key: Value): string {
  const text = typeof key === "string" ? key : dumpScalar(key);
  if (text === undefined) throw new TemplateFailure(`keys must be str, int, float, bool or None`);
  return text;
}

function dumpString(text: string, ensureAscii: boolean): string {
  const json = JSON.stringify(text);
  if (!ensureAscii) return json;
  return json.replace(/[\u007f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
