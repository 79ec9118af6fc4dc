/** JSON as Python's `json.loads` would hand it to a template. */

import type { JsonNode } from "../../json/index.ts";
import { Float, narrow, type Value } from "./jinja/values.ts";

/** Ints keep every digit, floats stay floats, of duplicate keys the first keeps the place and the last the value. */
export function toValue(node: JsonNode): Value {
  switch (node.type) {
    case "null":
      return null;
    case "number":
      return toNumber(node.source);
    case "array":
      return node.items.map(toValue);
    case "object":
      return new Map(node.members.map(({ key, value }) => [key, toValue(value)]));
    default:
      return node.value;
  }
}

function toNumber(source: string): Value {
  if (/[.eEIN]/.test(source)) return new Float(Number(source));
  const number = Number(source);
  return Number.isSafeInteger(number) ? number : narrow(BigInt(source));
}
