/** The syntax tree of a chat template, as @huggingface/jinja parses it, with what its parser does not take made up for. */

import { parse, tokenize } from "@huggingface/jinja";
import { UnsupportedTemplate } from "./failures.ts";

interface Operator {
  readonly value: string;
}

export type Expression =
  | { readonly type: "IntegerLiteral"; readonly value: number }
  | { readonly type: "FloatLiteral"; readonly value: number }
  | { readonly type: "StringLiteral"; readonly value: string }
  | { readonly type: "ArrayLiteral" | "TupleLiteral"; readonly value: readonly Expression[] }
  | { readonly type: "ObjectLiteral"; readonly value: ReadonlyMap<Expression, Expression> }
  | Identifier
  | MemberExpression
  | CallExpression
  | FilterExpression
  | {
      readonly type: "TestExpression";
      readonly operand: Expression;
      readonly negate: boolean;
      readonly test: Identifier;
    }
  | {
      readonly type: "BinaryExpression";
      readonly operator: Operator;
      readonly left: Expression;
      readonly right: Expression;
    }
  | { readonly type: "UnaryExpression"; readonly operator: Operator; readonly argument: Expression }
  | {
      readonly type: "Ternary";
      readonly condition: Expression;
      readonly trueExpr: Expression;
      readonly falseExpr: Expression;
    }
  | SelectExpression
  | SliceExpression
  | KeywordArgument
  | { readonly type: "SpreadExpression" | "KeywordSpreadExpression"; readonly argument: Expression };

export interface Identifier {
  readonly type: "Identifier";
  readonly value: string;
}

export interface MemberExpression {
  readonly type: "MemberExpression";
  readonly object: Expression;
  readonly property: Expression;
  /** `a[b]`, not `a.b`. */
  readonly computed: boolean;
}

export interface CallExpression {
  readonly type: "CallExpression";
  readonly callee: Expression;
  readonly args: readonly Expression[];
}

export interface FilterExpression {
  readonly type: "FilterExpression";
  readonly operand: Expression;
  readonly filter: Identifier | CallExpression;
}

/** `a if b`, and the condition of `for x in a if b`. */
export interface SelectExpression {
  readonly type: "SelectExpression";
  readonly lhs: Expression;
  readonly test: Expression;
}

export interface SliceExpression {
  readonly type: "SliceExpression";
  readonly start?: Expression;
  readonly stop?: Expression;
  readonly step?: Expression;
}

export interface KeywordArgument {
  readonly type: "KeywordArgumentExpression";
  readonly key: Identifier;
  readonly value: Expression;
}

export type Parameter = Identifier | KeywordArgument;

export interface For {
  readonly type: "For";
  readonly loopvar: Expression;
  readonly iterable: Expression;
  readonly body: readonly Node[];
  readonly defaultBlock: readonly Node[];
}

export interface SetStatement {
  readonly type: "Set";
  readonly assignee: Expression;
  /** Null in `{% set x %}…{% endset %}`, whose text is `body`. */
  readonly value: Expression | null;
  readonly body: readonly Node[];
}

export interface Macro {
  readonly type: "Macro";
  readonly name: Identifier;
  readonly args: readonly Parameter[];
  readonly body: readonly Node[];
}

export interface CallStatement {
  readonly type: "CallStatement";
  readonly call: CallExpression;
  readonly callerArgs: readonly Parameter[] | null;
  readonly body: readonly Node[];
}

export type Node =
  | Expression
  | {
      readonly type: "If";
      readonly test: Expression;
      readonly body: readonly Node[];
      readonly alternate: readonly Node[];
    }
  | For
  | SetStatement
  | Macro
  | CallStatement
  | {
      readonly type: "FilterStatement";
      readonly filter: Identifier | CallExpression;
      readonly body: readonly Node[];
    }
  | { readonly type: "Break" | "Continue" | "Comment" };

type Token = ReturnType<typeof tokenize>[number];

/** Marks a test with an argument, which the parser cannot read, as a filter of this name. */
export const TEST_FILTER = "is:";
export const NEGATED_TEST_FILTER = "is not:";

/** Parses with the white-space rules of Hugging Face's templates. Errors: {@link UnsupportedTemplate}. */
export function parseTemplate(source: string): readonly Node[] {
  try {
    const unified = source.replace(/\r\n?/g, "\n");
    const tokens = testsAsFilters(tokenize(unified, { trim_blocks: true, lstrip_blocks: true }));
    return parse(tokens).body as readonly Node[];
  } catch (error) {
    throw new UnsupportedTemplate(error instanceof Error ? error.message : "it does not parse", error);
  }
}

const NOT_AN_ARGUMENT = new Set(["and", "or", "else", "if", "is", "in", "not"]);

/** Rewrites `x is test(a)` and `x is test a` to the filter form `x | is:test(a)`. */
function testsAsFilters(tokens: readonly Token[]): Token[] {
  const rewritten: Token[] = [];
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i]!;
    const negated = isWord(tokens[i + 1], "not");
    const name = tokens[i + (negated ? 2 : 1)];
    const next = i + (negated ? 3 : 2);
    const isTest = isWord(token, "is") && name?.type === "Identifier" && tokens[i - 1]?.type !== "Dot";
    if (!isTest || !startsArgument(tokens[next])) {
      rewritten.push(token);
      continue;
    }
    const prefix = negated ? NEGATED_TEST_FILTER : TEST_FILTER;
    rewritten.push({ type: "Pipe", value: "|" }, { type: "Identifier", value: prefix + name.value });
    i = next - 1;
    if (tokens[next]!.type === "OpenParen") continue;
    const end = argumentEnd(tokens, next);
    const argument = testsAsFilters(tokens.slice(next, end));
    rewritten.push({ type: "OpenParen", value: "(" }, ...argument, { type: "CloseParen", value: ")" });
    i = end - 1;
  }
  return rewritten;
}

function isWord(token: Token | undefined, word: string): boolean {
  return token?.type === "Identifier" && token.value === word;
}

function startsArgument(token: Token | undefined): boolean {
  switch (token?.type) {
    case "Identifier":
      return !NOT_AN_ARGUMENT.has(token.value);
    case "OpenParen":
    case "OpenSquareBracket":
    case "OpenCurlyBracket":
    case "StringLiteral":
    case "NumericLiteral":
      return true;
    default:
      return false;
  }
}

/** The end of one primary expression: a token, or a bracketed group, with members and subscripts. */
function argumentEnd(tokens: readonly Token[], start: number): number {
  let end = start;
  let depth = 0;
  do {
    const type = tokens[end]?.type ?? "";
    if (type.startsWith("Open")) depth++;
    else if (type.startsWith("Close")) depth--;
    end++;
    if (depth === 0 && tokens[end]?.type === "Dot") end += 2;
    if (depth === 0 && tokens[end]?.type !== "OpenSquareBracket") break;
  } while (end < tokens.length);
  return end;
}
