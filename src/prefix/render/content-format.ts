/** How an engine hands message content to a template: flattened text, or the list of parts if the template loops over it. */

import type { Expression, Node } from "./jinja/ast.ts";

export type ContentFormat = "string" | "openai";

/**
 * vLLM's detection (`--chat-template-content-format auto`): `openai` if some loop runs over the content of an item of
 * `messages`, or over a variable called `content`.
 */
export function detectContentFormat(nodes: readonly Node[]): ContentFormat {
  const all = descendants(nodes);
  const loops = all.filter((node) => node.type === "For");
  const messagesNames = namesOf("messages", all);
  const itemNames = new Set<string>();
  for (const { iterable, loopvar } of loops) {
    if (messagesNames.some((name) => accesses(iterated(iterable), name))) addName(itemNames, loopvar);
  }
  const loopsOverContent = loops.some(({ iterable }) => {
    const source = iterated(iterable);
    if (source.type === "Identifier" && source.value === "content") return true;
    return [...itemNames].some((name) => accesses(source, name, "content"));
  });
  return loopsOverContent ? "openai" : "string";
}

function iterated(iterable: Expression): Expression {
  return iterable.type === "SelectExpression" ? iterable.lhs : iterable;
}

function addName(names: Set<string>, target: Expression): void {
  if (target.type === "Identifier") names.add(target.value);
}

/** `name` and every variable that is assigned from it, directly or not. */
function namesOf(name: string, all: readonly Node[]): string[] {
  const names = new Set([name]);
  for (const known of names) {
    for (const node of all) {
      if (node.type === "Set" && node.value !== null && accesses(node.value, known))
        addName(names, node.assignee);
    }
  }
  return [...names];
}

/** Whether an expression is the variable (or its member `key`), seen through filters, tests and slices. */
function accesses(node: Expression, name: string, key?: string): boolean {
  if (node.type === "FilterExpression" || node.type === "TestExpression")
    return accesses(node.operand, name, key);
  if (node.type === "MemberExpression" && node.property.type === "SliceExpression") {
    return accesses(node.object, name, key);
  }
  if (key === undefined) return node.type === "Identifier" && node.value === name;
  if (node.type !== "MemberExpression") return false;
  const { object, property } = node;
  if (object.type !== "Identifier" || object.value !== name) return false;
  if (node.computed) return property.type === "StringLiteral" && property.value === key;
  return property.type === "Identifier" && property.value === key;
}

function descendants(root: unknown, found: Node[] = []): Node[] {
  if (Array.isArray(root)) for (const child of root) descendants(child, found);
  else if (root instanceof Map) for (const pair of root) descendants(pair, found);
  else if (isNode(root)) {
    found.push(root);
    for (const child of Object.values(root)) descendants(child, found);
  }
  return found;
}

function isNode(value: unknown): value is Node {
  return typeof value === "object" && value !== null && "type" in value;
}
