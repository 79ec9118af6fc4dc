/** Compiles the expressions of a chat template to closures. */

import { getAttribute, getItem, slice } from "./access.ts";
import { Arguments } from "./arguments.ts";
import {
  type CallExpression,
  type Expression,
  type Identifier,
  type MemberExpression,
  NEGATED_TEST_FILTER,
  TEST_FILTER,
} from "./ast.ts";
import { TemplateFailure, UnsupportedTemplate } from "./failures.ts";
import { type Filter, filterNamed } from "./filters.ts";
import { BINARY, negate, unaryPlus } from "./operators.ts";
import type { Scope } from "./scope.ts";
import { TESTS, type Test } from "./tests.ts";
import {
  Float,
  iterate,
  type Kwargs,
  NO_KWARGS,
  Tuple,
  toText,
  truthy,
  typeName,
  type Value,
} from "./values.ts";

export type Evaluate = (scope: Scope) => Value;

/** Errors: {@link TemplateFailure} if it is no function. */
export function call(callee: Value, args: readonly Value[], kwargs: Kwargs): Value {
  if (typeof callee !== "function") throw new TemplateFailure(`'${typeName(callee)}' object is not callable`);
  return callee(args, kwargs);
}

/** Arguments are evaluated in order at each call. */
export function compileArguments(args: readonly Expression[]): (scope: Scope) => Arguments {
  if (args.length === 0) {
    const none = new Arguments([], NO_KWARGS);
    return () => none;
  }
  const plain = args.every(({ type }) => type !== "SpreadExpression" && !type.startsWith("Keyword"));
  if (plain) {
    const values = args.map(compileExpression);
    return (scope) =>
      new Arguments(
        values.map((evaluate) => evaluate(scope)),
        NO_KWARGS,
      );
  }
  const binders = args.map(compileArgument);
  return (scope) => {
    const positional: Value[] = [];
    const named = new Map<string, Value>();
    for (const bind of binders) bind(scope, positional, named);
    return new Arguments(positional, named);
  };
}

function compileArgument(
  arg: Expression,
): (scope: Scope, positional: Value[], named: Map<string, Value>) => void {
  if (arg.type === "KeywordArgumentExpression") {
    const evaluate = compileExpression(arg.value);
    return (scope, _, named) => named.set(arg.key.value, evaluate(scope));
  }
  if (arg.type === "SpreadExpression") {
    const evaluate = compileExpression(arg.argument);
    return (scope, positional) => positional.push(...iterate(evaluate(scope)));
  }
  if (arg.type === "KeywordSpreadExpression") {
    const evaluate = compileExpression(arg.argument);
    return (scope, _, named) => {
      const dict = evaluate(scope);
      if (!(dict instanceof Map)) throw new TemplateFailure("argument after ** must be a mapping");
      for (const [key, value] of dict) named.set(toText(key), value);
    };
  }
  const evaluate = compileExpression(arg);
  return (scope, positional) => positional.push(evaluate(scope));
}

/** A filter, or a test in filter form, with its arguments. */
export function compileFilter(filter: Identifier | CallExpression): (value: Value, scope: Scope) => Value {
  const name = filter.type === "Identifier" ? filter : filter.callee;
  if (name?.type !== "Identifier") throw new UnsupportedTemplate("a filter that is not a name");
  const apply = filterOrTest(name.value);
  const argumentsIn = compileArguments(filter.type === "Identifier" ? [] : filter.args);
  return (value, scope) => apply(value, argumentsIn(scope));
}

function filterOrTest(name: string): Filter {
  if (name.startsWith(TEST_FILTER)) return testNamed(name.slice(TEST_FILTER.length));
  if (name.startsWith(NEGATED_TEST_FILTER)) {
    const test = testNamed(name.slice(NEGATED_TEST_FILTER.length));
    return (value, args) => !test(value, args);
  }
  const filter = filterNamed(name);
  return filter ?? missing(`the filter '${name}'`);
}

function testNamed(name: string): Test {
  const test = Object.hasOwn(TESTS, name) ? TESTS[name] : undefined;
  return test ?? missing(`the test '${name}'`);
}

/** What is not there fails where it is used: a template may keep it in a branch that no request takes. */
function missing(what: string): () => never {
  return () => {
    throw new UnsupportedTemplate(what);
  };
}

/** Errors: {@link UnsupportedTemplate}. */
export function compileExpression(node: Expression): Evaluate {
  switch (node.type) {
    case "IntegerLiteral":
    case "StringLiteral": {
      const { value } = node;
      return () => value;
    }
    case "FloatLiteral": {
      const value = new Float(node.value);
      return () => value;
    }
    case "ArrayLiteral": {
      const items = node.value.map(compileExpression);
      return (scope) => items.map((item) => item(scope));
    }
    case "TupleLiteral": {
      const items = node.value.map(compileExpression);
      return (scope) => new Tuple(items.map((item) => item(scope)));
    }
    case "ObjectLiteral": {
      const entries = Array.from(
        node.value,
        ([k, v]) => [compileExpression(k), compileExpression(v)] as const,
      );
      return (scope) => new Map(entries.map(([key, value]) => [key(scope), value(scope)]));
    }
    case "Identifier": {
      const name = node.value;
      return (scope) => scope.get(name);
    }
    case "MemberExpression":
      return compileMember(node);
    case "CallExpression": {
      const callee = compileExpression(node.callee);
      const argumentsIn = compileArguments(node.args);
      return (scope) => {
        const { positional, named } = argumentsIn(scope);
        return call(callee(scope), positional, named);
      };
    }
    case "FilterExpression": {
      const operand = compileExpression(node.operand);
      const filter = compileFilter(node.filter);
      return (scope) => filter(operand(scope), scope);
    }
    case "TestExpression": {
      const operand = compileExpression(node.operand);
      const test = testNamed(node.test.value);
      const none = new Arguments([], NO_KWARGS);
      const { negate: negated } = node;
      return (scope) => test(operand(scope), none) !== negated;
    }
    case "BinaryExpression":
      return compileBinary(node.operator.value, compileExpression(node.left), compileExpression(node.right));
    case "UnaryExpression":
      return compileUnary(node.operator.value, compileExpression(node.argument));
    case "Ternary": {
      const condition = compileExpression(node.condition);
      const [yes, no] = [compileExpression(node.trueExpr), compileExpression(node.falseExpr)];
      return (scope) => (truthy(condition(scope)) ? yes(scope) : no(scope));
    }
    case "SelectExpression": {
      const [value, test] = [compileExpression(node.lhs), compileExpression(node.test)];
      return (scope) => (truthy(test(scope)) ? value(scope) : undefined);
    }
    default:
      throw new UnsupportedTemplate(`${node.type} in this place`);
  }
}

function compileMember(node: MemberExpression): Evaluate {
  const object = compileExpression(node.object);
  const { property } = node;
  if (property.type === "SliceExpression") {
    const [start, stop, step] = [property.start, property.stop, property.step].map((part) =>
      part === undefined ? () => null : compileExpression(part),
    ) as [Evaluate, Evaluate, Evaluate];
    return (scope) => slice(object(scope), start(scope), stop(scope), step(scope));
  }
  if (!node.computed && property.type === "Identifier") {
    const name = property.value;
    return (scope) => getAttribute(object(scope), name);
  }
  const key = compileExpression(property);
  return (scope) => getItem(object(scope), key(scope));
}

function compileBinary(operator: string, left: Evaluate, right: Evaluate): Evaluate {
  if (operator === "and") {
    return (scope) => {
      const value = left(scope);
      return truthy(value) ? right(scope) : value;
    };
  }
  if (operator === "or") {
    return (scope) => {
      const value = left(scope);
      return truthy(value) ? value : right(scope);
    };
  }
  const apply = Object.hasOwn(BINARY, operator) ? BINARY[operator] : undefined;
  if (apply === undefined) throw new UnsupportedTemplate(`the operator ${operator}`);
  return (scope) => apply(left(scope), right(scope));
}

function compileUnary(operator: string, argument: Evaluate): Evaluate {
  switch (operator) {
    case "not":
      return (scope) => !truthy(argument(scope));
    case "-":
      return (scope) => negate(argument(scope));
    case "+":
      return (scope) => unaryPlus(argument(scope));
    default:
      throw new UnsupportedTemplate(`the operator ${operator}`);
  }
}
