/** The names every chat template may use besides its variables. */

import { TemplateFailure } from "./failures.ts";
import { createStrftime } from "./strftime.ts";
import {
  type Callable,
  isInteger,
  iterate,
  Namespace,
  sequenceItems,
  toText,
  typeName,
  type Value,
} from "./values.ts";

/** What Jinja's sandbox allows at most. */
const MAX_RANGE = 100_000;

export interface Clock {
  /** Unix time in ms. */
  readonly nowMs: () => number;
  /** IANA zone of dates that templates print. */
  readonly timeZone: string;
}

const range: Callable = (args) => {
  const bounds = args.map((value) => {
    if (!isInteger(value))
      throw new TemplateFailure(`'${typeName(value)}' object cannot be interpreted as an integer`);
    return Number(value);
  });
  const [start = 0, stop = 0, step = 1] = bounds.length === 1 ? [0, ...bounds] : bounds;
  if (step === 0) throw new TemplateFailure("range() arg 3 must not be zero");
  const size = Math.max(Math.ceil((stop - start) / step), 0);
  if (size > MAX_RANGE)
    throw new TemplateFailure(`Range too big. The sandbox blocks ranges larger than ${MAX_RANGE}`);
  return Array.from({ length: size }, (_, i) => start + i * step);
};

function pairs(source: Value): [string, Value][] {
  if (source instanceof Map) return Array.from(source, ([key, value]) => [toText(key), value]);
  return iterate(source).map((pair) => {
    const [key, value] = sequenceItems(pair) ?? [];
    return [toText(key), value];
  });
}

const namespace: Callable = (args, kwargs) => {
  return new Namespace(new Map([...(args.length > 0 ? pairs(args[0]) : []), ...kwargs]));
};

const dict: Callable = (args, kwargs) =>
  new Map<Value, Value>([...(args.length > 0 ? pairs(args[0]) : []), ...kwargs]);

const joiner: Callable = (args, kwargs) => {
  const separator = args[0] ?? kwargs.get("sep") ?? ", ";
  let used = false;
  return () => {
    if (used) return separator;
    used = true;
    return "";
  };
};

const cycler: Callable = (items) => {
  let position = 0;
  const next: Callable = () => items[position++ % items.length];
  const reset: Callable = () => {
    position = 0;
    return null;
  };
  return {
    attribute: (name) => ({ next, reset, current: items[position % items.length] })[name],
  };
};

const raiseException: Callable = ([message]) => {
  throw new TemplateFailure(toText(message), true);
};

const CONSTANTS: readonly (readonly [string, Value])[] = [
  ["true", true],
  ["True", true],
  ["false", false],
  ["False", false],
  ["none", null],
  ["None", null],
  ["range", range],
  ["namespace", namespace],
  ["dict", dict],
  ["joiner", joiner],
  ["cycler", cycler],
  ["raise_exception", raiseException],
];

export function globalsOf(clock: Clock): readonly (readonly [string, Value])[] {
  const strftime = createStrftime(clock.timeZone);
  const strftimeNow: Callable = ([format]) => strftime(toText(format), clock.nowMs());
  return [...CONSTANTS, ["strftime_now", strftimeNow]];
}
