/** Jinja's tests (`x is string`), by name. */

import type { Arguments } from "./arguments.ts";
import { TemplateFailure } from "./failures.ts";
import {
  compare,
  contains,
  equal,
  Float,
  isInteger,
  isList,
  numeric,
  Tuple,
  toText,
  typeName,
  type Value,
} from "./values.ts";

export type Test = (value: Value, args: Arguments) => boolean;

function remainder(value: Value, divisor: Value): boolean {
  const [a, b] = [numeric(value), numeric(divisor)];
  if (a === undefined || b === undefined) {
    throw new TemplateFailure(`unsupported operand for %: '${typeName(value)}' and '${typeName(divisor)}'`);
  }
  return Number(a) % Number(b) === 0;
}

const isCallable: Test = (value) => typeof value === "function";
const isSequence: Test = (value) =>
  value === undefined ||
  typeof value === "string" ||
  isList(value) ||
  value instanceof Tuple ||
  value instanceof Map;
const eq: Test = (value, args) => equal(value, args.get(0, "other"));
const ordered =
  (accept: (order: number) => boolean): Test =>
  (value, args) =>
    accept(compare(value, args.get(0, "other")));
const gt = ordered((order) => order > 0);
const ge = ordered((order) => order >= 0);
const lt = ordered((order) => order < 0);
const le = ordered((order) => order <= 0);
const ne: Test = (value, args) => !eq(value, args);

export const TESTS: Readonly<Record<string, Test>> = {
  boolean: (value) => typeof value === "boolean",
  callable: isCallable,
  defined: (value) => value !== undefined,
  divisibleby: (value, args) => remainder(value, args.get(0, "num")),
  eq,
  equalto: eq,
  escaped: () => false,
  even: (value) => remainder(value, 2),
  false: (value) => value === false,
  float: (value) => value instanceof Float,
  ge,
  greaterthan: gt,
  gt,
  in: (value, args) => contains(args.get(0, "seq"), value),
  integer: isInteger,
  iterable: isSequence,
  le,
  lessthan: lt,
  lower: (value) =>
    toText(value) === toText(value).toLowerCase() && toText(value) !== toText(value).toUpperCase(),
  lt,
  mapping: (value) => value instanceof Map,
  ne,
  none: (value) => value === null,
  number: (value) => numeric(value) !== undefined,
  odd: (value) => !remainder(value, 2),
  sameas: (value, args) => value === args.get(0, "other"),
  sequence: isSequence,
  string: (value) => typeof value === "string",
  true: (value) => value === true,
  undefined: (value) => value === undefined,
  upper: (value) =>
    toText(value) === toText(value).toUpperCase() && toText(value) !== toText(value).toLowerCase(),
};
