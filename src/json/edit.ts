/** Edits a JSON object by span: what is not named stays byte for byte (design D9). */

import { KedgeError } from "../errors/index.ts";
import type { JsonMember, JsonNode, JsonObject } from "./parse.ts";

/** A top-level member, or a member of a top-level object. */
export type JsonPath = readonly [string] | readonly [string, string];

export type JsonEdit =
  /** Leaves exactly one member of that key, holding `json` (JSON text, not checked). */
  | { readonly op: "set"; readonly path: JsonPath; readonly json: string }
  /** Removes every member of that key; nothing happens if there is none. */
  | { readonly op: "remove"; readonly path: JsonPath };

interface Splice {
  readonly start: number;
  readonly end: number;
  readonly text: string;
}

/** New content of a member: JSON text, nested edits, or null to remove it. */
type Change = string | null | Map<string, string | null>;

/**
 * Applies edits to the text that `document` was parsed from. A nested set makes its parent when that is absent or null.
 * Later edits of one path win.
 * Errors: `KedgeError` `invalid_request` when the document, or the parent of a nested set, is not an object.
 */
export function editJson(text: string, document: JsonNode, edits: readonly JsonEdit[]): string {
  if (edits.length === 0) return text;
  if (document.type !== "object") {
    throw new KedgeError("invalid_request", "The request body must be a JSON object.");
  }
  const splices: Splice[] = [];
  editObject(document, collect(edits), splices);
  return applySplices(text, splices);
}

function collect(edits: readonly JsonEdit[]): Map<string, Change> {
  const changes = new Map<string, Change>();
  for (const edit of edits) {
    const [key, nested] = edit.path;
    const json = edit.op === "set" ? edit.json : null;
    if (nested === undefined) {
      changes.set(key, json);
      continue;
    }
    const earlier = changes.get(key);
    if (typeof earlier === "string") {
      throw new KedgeError(
        "internal_error",
        `Edits of "${key}" and "${key}.${nested}" contradict each other.`,
      );
    }
    const inner = earlier ?? new Map<string, string | null>();
    inner.set(nested, json);
    changes.set(key, inner);
  }
  return changes;
}

function editObject(node: JsonObject, changes: ReadonlyMap<string, Change>, splices: Splice[]): void {
  const removed = new Set<JsonMember>();
  const added: string[] = [];
  for (const [key, change] of changes) {
    const members = node.members.filter((entry) => entry.key === key);
    const last = members.at(-1);
    if (change === null) {
      for (const entry of members) removed.add(entry);
      continue;
    }
    if (last === undefined) {
      const json = newValue(change);
      if (json !== null) added.push(`${JSON.stringify(key)}:${json}`);
      continue;
    }
    // Earlier duplicates go too: a reader that takes the first of equal keys must not see the old value.
    for (const entry of members.slice(0, -1)) removed.add(entry);
    replaceValue(key, last.value, change, splices);
  }
  removeMembers(node, removed, splices);
  addMembers(node, removed, added, splices);
}

function replaceValue(key: string, node: JsonNode, change: Exclude<Change, null>, splices: Splice[]): void {
  if (typeof change === "string") {
    splices.push({ start: node.start, end: node.end, text: change });
  } else if (node.type === "object") {
    editObject(node, change, splices);
  } else {
    const json = newValue(change);
    if (json === null) return;
    if (node.type !== "null") {
      throw new KedgeError("invalid_request", `"${key}" must be an object.`, { param: key });
    }
    splices.push({ start: node.start, end: node.end, text: json });
  }
}

function newValue(change: Exclude<Change, null>): string | null {
  if (typeof change === "string") return change;
  const members: string[] = [];
  for (const [key, json] of change) if (json !== null) members.push(`${JSON.stringify(key)}:${json}`);
  return members.length > 0 ? `{${members.join(",")}}` : null;
}

/** A removed member takes one neighbouring comma along: the one before it if a kept member precedes, else the one after. */
function removeMembers(node: JsonObject, removed: ReadonlySet<JsonMember>, splices: Splice[]): void {
  let kept = false;
  node.members.forEach((entry, i) => {
    if (!removed.has(entry)) {
      kept = true;
      return;
    }
    const next = node.members[i + 1];
    if (kept) splices.push({ start: node.members[i - 1]!.value.end, end: entry.value.end, text: "" });
    else splices.push({ start: entry.keyStart, end: next?.keyStart ?? entry.value.end, text: "" });
  });
}

function addMembers(
  node: JsonObject,
  removed: ReadonlySet<JsonMember>,
  added: readonly string[],
  splices: Splice[],
): void {
  if (added.length === 0) return;
  const lastKept = node.members.findLast((entry) => !removed.has(entry));
  const at = lastKept?.value.end ?? node.start + 1;
  const text = lastKept === undefined ? added.join(",") : `,${added.join(",")}`;
  splices.push({ start: at, end: at, text });
}

function applySplices(text: string, splices: Splice[]): string {
  // At one place an insertion comes before a removal, hence the second key.
  splices.sort((a, b) => a.start - b.start || a.end - b.end);
  let result = "";
  let position = 0;
  for (const splice of splices) {
    result += text.slice(position, splice.start) + splice.text;
    position = splice.end;
  }
  return result + text.slice(position);
}
