/** Python's operators on template values: int and float kept apart, ints of any size. */

import { TemplateFailure, UnsupportedTemplate } from "./failures.ts";
import { percentFormat } from "./strings.ts";
import {
  compare,
  contains,
  equal,
  Float,
  isInteger,
  isList,
  narrow,
  numeric,
  repr,
  Tuple,
  toText,
  typeName,
  type Value,
} from "./values.ts";

type Binary = (left: Value, right: Value) => Value;

function unsupported(operator: string, left: Value, right: Value): never {
  throw new TemplateFailure(
    `unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`,
  );
}

/** Ints with ints exactly, anything with a float in floating point; undefined if one is no number. */
function arithmetic(
  left: Value,
  right: Value,
  exact: (a: bigint, b: bigint) => bigint,
  rounded: (a: number, b: number) => number,
): Value {
  const [a, b] = [numeric(left), numeric(right)];
  if (a === undefined || b === undefined) return undefined;
  if (left instanceof Float || right instanceof Float) return new Float(rounded(Number(a), Number(b)));
  return narrow(exact(BigInt(a), BigInt(b)));
}

const add: Binary = (left, right) => {
  if (typeof left === "string" && typeof right === "string") return left + right;
  if (typeof left === "number" && typeof right === "number") {
    const sum = left + right;
    if (Number.isSafeInteger(sum)) return sum;
  }
  if (isList(left) && isList(right)) return [...left, ...right];
  if (left instanceof Tuple && right instanceof Tuple) return new Tuple([...left.items, ...right.items]);
  const sum = arithmetic(
    left,
    right,
    (a, b) => a + b,
    (a, b) => a + b,
  );
  return sum ?? unsupported("+", left, right);
};

const subtract: Binary = (left, right) => {
  const difference = arithmetic(
    left,
    right,
    (a, b) => a - b,
    (a, b) => a - b,
  );
  return difference ?? unsupported("-", left, right);
};

const multiply: Binary = (left, right) => {
  const product = arithmetic(
    left,
    right,
    (a, b) => a * b,
    (a, b) => a * b,
  );
  if (product !== undefined) return product;
  const [sequence, times] = isInteger(right) ? [left, right] : [right, left];
  if (!isInteger(times)) return unsupported("*", left, right);
  const count = Math.max(Number(times), 0);
  if (typeof sequence === "string") return sequence.repeat(count);
  if (isList(sequence)) return Array.from({ length: count }, () => sequence).flat();
  return unsupported("*", left, right);
};

function floorDivide(a: bigint, b: bigint): bigint {
  const quotient = a / b;
  return a % b !== 0n && a < 0n !== b < 0n ? quotient - 1n : quotient;
}

/** The remainder takes the divisor's sign. */
function floorRemainder(a: number, b: number): number {
  const remainder = a % b;
  return remainder !== 0 && remainder < 0 !== b < 0 ? remainder + b : remainder;
}

function checkDivisor(value: Value): void {
  const divisor = numeric(value);
  if (divisor === 0 || divisor === 0n) throw new TemplateFailure("division by zero");
}

const divide: Binary = (left, right) => {
  checkDivisor(right);
  const [a, b] = [numeric(left), numeric(right)];
  if (a === undefined || b === undefined) return unsupported("/", left, right);
  return new Float(Number(a) / Number(b));
};

const divideFloor: Binary = (left, right) => {
  checkDivisor(right);
  return arithmetic(left, right, floorDivide, (a, b) => Math.floor(a / b)) ?? unsupported("//", left, right);
};

const modulo: Binary = (left, right) => {
  if (typeof left === "string") {
    const text = percentFormat(left, right, repr);
    if (text === null) throw new UnsupportedTemplate(`the format string ${repr(left)}`);
    return text;
  }
  checkDivisor(right);
  const exact = (a: bigint, b: bigint) => a - floorDivide(a, b) * b;
  return arithmetic(left, right, exact, floorRemainder) ?? unsupported("%", left, right);
};

const power: Binary = (left, right) => {
  const exponent = numeric(right);
  const negative = exponent !== undefined && exponent < 0;
  if (negative || Number(exponent) > 4096) {
    const base = numeric(left);
    if (base === undefined) return unsupported("**", left, right);
    return new Float(Number(base) ** Number(exponent));
  }
  return (
    arithmetic(
      left,
      right,
      (a, b) => a ** b,
      (a, b) => a ** b,
    ) ?? unsupported("**", left, right)
  );
};

/** Operators by their token; `and` and `or` are the compiler's, for they do not always evaluate both sides. */
export const BINARY: Readonly<Record<string, Binary>> = {
  "+": add,
  "-": subtract,
  "*": multiply,
  "/": divide,
  "//": divideFloor,
  "%": modulo,
  "**": power,
  "~": (left, right) => toText(left) + toText(right),
  "==": equal,
  "!=": (left, right) => !equal(left, right),
  "<": (left, right) => compare(left, right) < 0,
  "<=": (left, right) => compare(left, right) <= 0,
  ">": (left, right) => compare(left, right) > 0,
  ">=": (left, right) => compare(left, right) >= 0,
  in: (left, right) => contains(right, left),
  "not in": (left, right) => !contains(right, left),
};

/** `-x`. Errors: {@link TemplateFailure}. */
export function negate(value: Value): Value {
  if (value instanceof Float) return new Float(-value.value);
  const number = numeric(value);
  if (number === undefined) throw new TemplateFailure(`bad operand type for unary -: '${typeName(value)}'`);
  return number === 0 ? 0 : -number;
}

/** `+x`. Errors: {@link TemplateFailure}. */
export function unaryPlus(value: Value): Value {
  if (value instanceof Float) return value;
  const number = numeric(value);
  if (number === undefined) throw new TemplateFailure(`bad operand type for unary +: '${typeName(value)}'`);
  return number;
}
