/** Compiles a chat template's syntax tree to closures: parsed once, run per request. */

import {
  type CallStatement,
  type Expression,
  type For,
  type Macro,
  type MemberExpression,
  type Node,
  type Parameter,
  parseTemplate,
  type SetStatement,
} from "./ast.ts";
import { call, compileArguments, compileExpression, compileFilter, type Evaluate } from "./expressions.ts";
import { TemplateFailure, UnsupportedTemplate } from "./failures.ts";
import { type Clock, globalsOf } from "./globals.ts";
import { Loop, Output, Scope } from "./scope.ts";
import { type Callable, iterate, Namespace, Tuple, toText, truthy, type Value } from "./values.ts";

const NEXT = 0;
const BREAK = 1;
const CONTINUE = 2;
type Flow = typeof NEXT | typeof BREAK | typeof CONTINUE;
type Run = (scope: Scope, out: Output) => Flow;

/** A template ready to run. */
export interface CompiledTemplate {
  /** Its syntax tree. */
  readonly nodes: readonly Node[];
  /** Errors: {@link TemplateFailure}, {@link UnsupportedTemplate}. */
  render(variables: ReadonlyMap<string, Value>): string;
}

/** Errors: {@link UnsupportedTemplate} for syntax, filters and tests that are not there. */
export function compileTemplate(source: string, clock: Clock): CompiledTemplate {
  const nodes = parseTemplate(source);
  const run = compileBlock(nodes);
  const globals = new Scope(null);
  for (const [name, value] of globalsOf(clock)) globals.set(name, value);
  return {
    nodes,
    render(variables) {
      const scope = new Scope(globals);
      for (const [name, value] of variables) scope.set(name, value);
      const out = new Output();
      run(scope, out);
      return out.text;
    },
  };
}

function compileBlock(nodes: readonly Node[]): Run {
  const steps = nodes.filter((node) => node.type !== "Comment").map(compileNode);
  const [only] = steps;
  if (steps.length === 1 && only !== undefined) return only;
  return (scope, out) => {
    for (const step of steps) {
      const flow = step(scope, out);
      if (flow !== NEXT) return flow;
    }
    return NEXT;
  };
}

/** The text of a block run on its own. */
function capture(run: Run, scope: Scope): string {
  const out = new Output();
  run(scope, out);
  return out.text;
}

function compileNode(node: Node): Run {
  switch (node.type) {
    case "If": {
      const test = compileExpression(node.test);
      const [body, alternate] = [compileBlock(node.body), compileBlock(node.alternate)];
      return (scope, out) => (truthy(test(scope)) ? body(scope, out) : alternate(scope, out));
    }
    case "For":
      return compileFor(node);
    case "Set":
      return compileSet(node);
    case "Macro":
      return compileMacro(node);
    case "CallStatement":
      return compileCallStatement(node);
    case "FilterStatement": {
      const body = compileBlock(node.body);
      const filter = compileFilter(node.filter);
      return (scope, out) => print(out, filter(capture(body, scope), scope));
    }
    case "Break":
      return () => BREAK;
    case "Continue":
      return () => CONTINUE;
    case "Comment":
      return () => NEXT;
    case "StringLiteral": {
      const { value } = node;
      return (_, out) => print(out, value);
    }
    default: {
      const evaluate = compileExpression(node);
      return (scope, out) => print(out, evaluate(scope));
    }
  }
}

function print(out: Output, value: Value): Flow {
  out.text += toText(value);
  return NEXT;
}

/** Binds a value to a name or, part by part, to a tuple of names. */
function compileTarget(target: Expression): (scope: Scope, value: Value) => void {
  if (target.type === "Identifier") {
    const name = target.value;
    return (scope, value) => scope.set(name, value);
  }
  if (target.type !== "TupleLiteral") throw new UnsupportedTemplate(`assignment to ${target.type}`);
  const parts = target.value.map(compileTarget);
  return (scope, value) => {
    const items = iterate(value);
    if (items.length !== parts.length) {
      throw new TemplateFailure(`expected ${parts.length} values to unpack, got ${items.length}`);
    }
    parts.forEach((bind, i) => {
      bind(scope, items[i]);
    });
  };
}

function compileFor(node: For): Run {
  const filtered = node.iterable.type === "SelectExpression" ? node.iterable : null;
  const source = compileExpression(filtered?.lhs ?? node.iterable);
  const condition = filtered && compileExpression(filtered.test);
  const bind = compileTarget(node.loopvar);
  const [body, otherwise] = [compileBlock(node.body), compileBlock(node.defaultBlock)];
  const accepts = (scope: Scope, item: Value): boolean => {
    const inner = new Scope(scope);
    bind(inner, item);
    return truthy(condition!(inner));
  };
  return (scope, out) => {
    let items = iterate(source(scope));
    if (condition !== null) items = items.filter((item) => accepts(scope, item));
    if (items.length === 0) return otherwise(scope, out);
    const loop = new Loop(items);
    for (let i = 0; i < items.length; i++) {
      loop.index0 = i;
      // Each pass has a scope of its own: what is set in one is gone in the next.
      const inner = new Scope(scope);
      inner.set("loop", loop);
      bind(inner, items[i]);
      if (body(inner, out) === BREAK) break;
    }
    return NEXT;
  };
}

function compileSet(node: SetStatement): Run {
  const evaluate = node.value === null ? null : compileExpression(node.value);
  const body = compileBlock(node.body);
  const valueIn: Evaluate = (scope) =>
    evaluate === null ? capture(body, new Scope(scope)) : evaluate(scope);
  const { assignee } = node;
  if (assignee.type === "MemberExpression") return compileSetAttribute(assignee, valueIn);
  const bind = compileTarget(assignee);
  return (scope) => {
    bind(scope, valueIn(scope));
    return NEXT;
  };
}

function compileSetAttribute(target: MemberExpression, valueIn: Evaluate): Run {
  const object = compileExpression(target.object);
  if (target.property.type !== "Identifier" || target.computed) {
    throw new UnsupportedTemplate("assignment to an item");
  }
  const name = target.property.value;
  return (scope) => {
    const namespace = object(scope);
    if (!(namespace instanceof Namespace)) {
      throw new TemplateFailure("cannot assign attribute on non-namespace object");
    }
    namespace.attributes.set(name, valueIn(scope));
    return NEXT;
  };
}

interface BoundParameter {
  readonly name: string;
  readonly fallback: Evaluate | null;
}

function compileParameters(parameters: readonly Parameter[]): readonly BoundParameter[] {
  return parameters.map((parameter) =>
    parameter.type === "Identifier"
      ? { name: parameter.value, fallback: null }
      : { name: parameter.key.value, fallback: compileExpression(parameter.value) },
  );
}

/** A macro sees the scope it was defined in, not the one it is called from. */
function macroValue(parameters: readonly BoundParameter[], body: Run, defined: Scope): Callable {
  return (args, kwargs) => {
    const scope = new Scope(defined);
    const extra = new Map<Value, Value>(kwargs);
    const missing: BoundParameter[] = [];
    parameters.forEach((parameter, i) => {
      const { name } = parameter;
      const given = i < args.length || kwargs.has(name);
      scope.set(name, i < args.length ? args[i] : kwargs.get(name));
      extra.delete(name);
      if (!given) missing.push(parameter);
    });
    scope.set("varargs", new Tuple(args.slice(parameters.length)));
    scope.set("caller", kwargs.get("caller"));
    extra.delete("caller");
    scope.set("kwargs", extra);
    for (const { name, fallback } of missing) if (fallback !== null) scope.set(name, fallback(scope));
    return capture(body, scope);
  };
}

function compileMacro(node: Macro): Run {
  const parameters = compileParameters(node.args);
  const body = compileBlock(node.body);
  const name = node.name.value;
  return (scope) => {
    scope.set(name, macroValue(parameters, body, scope));
    return NEXT;
  };
}

function compileCallStatement(node: CallStatement): Run {
  const parameters = compileParameters(node.callerArgs ?? []);
  const body = compileBlock(node.body);
  const callee = compileExpression(node.call.callee);
  const argumentsIn = compileArguments(node.call.args);
  return (scope, out) => {
    const { positional, named } = argumentsIn(scope);
    const caller = macroValue(parameters, body, scope);
    return print(out, call(callee(scope), positional, new Map(named).set("caller", caller)));
  };
}
