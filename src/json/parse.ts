/** Reads JSON text into nodes that keep spans, number source, key order and duplicate keys. */

import { KedgeError } from "../errors/index.ts";

/** A value's place in the text: [start, end) in UTF-16 code units. */
export interface JsonSpan {
  readonly start: number;
  readonly end: number;
}

export interface JsonString extends JsonSpan {
  readonly type: "string";
  /** Decoded; lone surrogates are U+FFFD, as the engine's tokenizer sees them. */
  readonly value: string;
}

export interface JsonNumber extends JsonSpan {
  readonly type: "number";
  /** As written: `1.50`, `1e5`, `12345678901234567890`. */
  readonly source: string;
}

export interface JsonBoolean extends JsonSpan {
  readonly type: "boolean";
  readonly value: boolean;
}

export interface JsonNull extends JsonSpan {
  readonly type: "null";
}

export interface JsonArray extends JsonSpan {
  readonly type: "array";
  readonly items: readonly JsonNode[];
}

export interface JsonMember {
  readonly key: string;
  /** Where the key's opening quote stands. */
  readonly keyStart: number;
  readonly value: JsonNode;
}

export interface JsonObject extends JsonSpan {
  readonly type: "object";
  /** In order of appearance, duplicates included; the last of equal keys is the effective one. */
  readonly members: readonly JsonMember[];
}

export type JsonNode = JsonString | JsonNumber | JsonBoolean | JsonNull | JsonArray | JsonObject;

export interface JsonParseOptions {
  /** Deepest nesting of arrays and objects; default 512. */
  readonly maxDepth?: number;
  /** Most values in the text: each takes some hundred bytes of memory, however short it is. Default two million. */
  readonly maxValues?: number;
  /** Also read `NaN`, `Infinity` and `-Infinity`, as Python's json does. Default false. */
  readonly nonFinite?: boolean;
}

const DEFAULT_MAX_DEPTH = 512;
const DEFAULT_MAX_VALUES = 2_000_000;
/** Python reads no longer integer, and the time that big ones take grows with their square. */
const MAX_INTEGER_DIGITS = 4_300;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for.
const CONTROL = /[\u0000-\u001f]/g;
const NON_FINITE = /-?Infinity|NaN/y;

const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON = 0x3a;
const BACKSLASH = 0x5c;
const CLOSE_BRACKET = 0x5d;
const CLOSE_BRACE = 0x7d;

/**
 * Parses one JSON text (RFC 8259; a leading byte-order mark is not accepted).
 * Errors: `KedgeError` `invalid_json` with line and column, also for nesting deeper than `maxDepth`, more values than `maxValues` and
 * integers of more than 4300 digits.
 */
export function parseJson(text: string, options: JsonParseOptions = {}): JsonNode {
  return new Reader(text, options).document();
}

/** The effective member of an object: the last one of that key. Undefined for anything but an object. */
export function member(node: JsonNode | undefined, key: string): JsonNode | undefined {
  if (node?.type !== "object") return undefined;
  for (let i = node.members.length - 1; i >= 0; i--) {
    const entry = node.members[i]!;
    if (entry.key === key) return entry.value;
  }
  return undefined;
}

/** The member's string, or undefined when it is absent or not a string. */
export function stringMember(node: JsonNode | undefined, key: string): string | undefined {
  const value = member(node, key);
  return value?.type === "string" ? value.value : undefined;
}

/** The member's truth value, or undefined when it is absent or not a boolean. */
export function booleanMember(node: JsonNode | undefined, key: string): boolean | undefined {
  const value = member(node, key);
  return value?.type === "boolean" ? value.value : undefined;
}

/** The member's number, or undefined when it is absent or not a number. */
export function numberMember(node: JsonNode | undefined, key: string): number | undefined {
  const value = member(node, key);
  return value?.type === "number" ? Number(value.source) : undefined;
}

/** What `JSON.parse` would have returned for this node. */
export function toPlain(node: JsonNode): unknown {
  switch (node.type) {
    case "null":
      return null;
    case "number":
      return Number(node.source);
    case "array":
      return node.items.map(toPlain);
    case "object":
      // fromEntries defines own properties, so a `__proto__` key stays data.
      return Object.fromEntries(node.members.map(({ key, value }) => [key, toPlain(value)]));
    default:
      return node.value;
  }
}

class Reader {
  private readonly text: string;
  private readonly maxDepth: number;
  private readonly maxValues: number;
  private readonly nonFinite: boolean;
  private position = 0;
  private depth = 0;
  private values = 0;
  /** First backslash and first control character at or after the last place asked for; looked up again only once passed. */
  private nextBackslash = -1;
  private nextControl = -1;

  constructor(text: string, { maxDepth, maxValues, nonFinite }: JsonParseOptions) {
    this.text = text;
    this.maxDepth = maxDepth ?? DEFAULT_MAX_DEPTH;
    this.maxValues = maxValues ?? DEFAULT_MAX_VALUES;
    this.nonFinite = nonFinite ?? false;
  }

  document(): JsonNode {
    this.skipSpace();
    const node = this.value();
    this.skipSpace();
    if (this.position < this.text.length) this.fail("unexpected text after the end of the value");
    return node;
  }

  private value(): JsonNode {
    const start = this.position;
    if (++this.values > this.maxValues) this.fail(`more than ${this.maxValues} values`);
    switch (this.text.charCodeAt(start)) {
      case QUOTE: {
        const value = this.string();
        return { type: "string", start, end: this.position, value };
      }
      case 0x7b:
        return this.object();
      case 0x5b:
        return this.array();
      case 0x74:
        this.word("true");
        return { type: "boolean", start, end: this.position, value: true };
      case 0x66:
        this.word("false");
        return { type: "boolean", start, end: this.position, value: false };
      case 0x6e:
        this.word("null");
        return { type: "null", start, end: this.position };
      default:
        return this.number();
    }
  }

  private object(): JsonObject {
    const start = this.enter();
    const members: JsonMember[] = [];
    if (this.peek() === CLOSE_BRACE) this.position++;
    else {
      for (;;) {
        if (this.peek() !== QUOTE) this.fail("expected a key in double quotes");
        const keyStart = this.position;
        const key = this.string();
        if (this.peek() !== COLON) this.fail("expected ':' after the key");
        this.position++;
        this.skipSpace();
        members.push({ key, keyStart, value: this.value() });
        const next = this.peek();
        this.position++;
        if (next === CLOSE_BRACE) break;
        if (next !== COMMA) this.fail("expected ',' or '}'", this.position - 1);
        this.skipSpace();
      }
    }
    this.depth--;
    return { type: "object", start, end: this.position, members };
  }

  private array(): JsonArray {
    const start = this.enter();
    const items: JsonNode[] = [];
    if (this.peek() === CLOSE_BRACKET) this.position++;
    else {
      for (;;) {
        items.push(this.value());
        const next = this.peek();
        this.position++;
        if (next === CLOSE_BRACKET) break;
        if (next !== COMMA) this.fail("expected ',' or ']'", this.position - 1);
        this.skipSpace();
      }
    }
    this.depth--;
    return { type: "array", start, end: this.position, items };
  }

  /** Steps over an opening bracket; recursion is bounded by the depth limit. */
  private enter(): number {
    if (++this.depth > this.maxDepth) this.fail(`nested deeper than ${this.maxDepth} levels`);
    const start = this.position++;
    this.skipSpace();
    return start;
  }

  /** Reads the string at the position, leaving the position after its closing quote. */
  private string(): string {
    const { text } = this;
    const start = this.position + 1;
    let end = text.indexOf('"', start);
    if (this.nextBackslash < start) this.nextBackslash = indexOrEnd(text, "\\", start);
    const escaped = this.nextBackslash < end;
    while (escaped && end >= 0 && isEscaped(text, end, start)) end = text.indexOf('"', end + 1);
    if (end < 0) this.fail("unterminated string");
    this.position = end + 1;
    return escaped ? this.decode(start - 1, end + 1) : this.literal(start, end);
  }

  private literal(start: number, end: number): string {
    if (this.nextControl < start) {
      CONTROL.lastIndex = start;
      this.nextControl = CONTROL.exec(this.text)?.index ?? this.text.length;
    }
    if (this.nextControl < end) this.fail("control character in a string", this.nextControl);
    return this.text.slice(start, end);
  }

  /** The platform decodes (and checks) escapes faster than any loop here. */
  private decode(start: number, end: number): string {
    const source = this.text.slice(start, end);
    let value: string;
    try {
      value = JSON.parse(source);
    } catch {
      return this.fail("bad escape or control character in a string", start);
    }
    return source.includes("\\u") ? value.toWellFormed() : value;
  }

  private number(): JsonNumber {
    const start = this.position;
    const end = this.matchEnd(NUMBER) ?? (this.nonFinite ? this.matchEnd(NON_FINITE) : undefined);
    if (end === undefined) {
      this.fail(start < this.text.length ? "expected a value" : "unexpected end of text");
    }
    this.position = end;
    const source = this.text.slice(start, end);
    if (source.length > MAX_INTEGER_DIGITS && /^-?\d{4301,}$/.test(source)) {
      this.fail(`an integer of more than ${MAX_INTEGER_DIGITS} digits`, start);
    }
    return { type: "number", start, end, source };
  }

  private matchEnd(pattern: RegExp): number | undefined {
    pattern.lastIndex = this.position;
    return pattern.test(this.text) ? pattern.lastIndex : undefined;
  }

  private word(word: string): void {
    if (!this.text.startsWith(word, this.position)) this.fail("expected a value");
    this.position += word.length;
  }

  private skipSpace(): void {
    for (;;) {
      const code = this.text.charCodeAt(this.position);
      if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return;
      this.position++;
    }
  }

  private peek(): number {
    this.skipSpace();
    return this.text.charCodeAt(this.position);
  }

  private fail(reason: string, at: number = this.position): never {
    const before = this.text.slice(0, at);
    const line = before.split("\n").length;
    const column = at - before.lastIndexOf("\n");
    throw new KedgeError("invalid_json", `Invalid JSON at line ${line}, column ${column}: ${reason}.`);
  }
}

function indexOrEnd(text: string, needle: string, from: number): number {
  const index = text.indexOf(needle, from);
  return index < 0 ? text.length : index;
}

/** Whether an odd run of backslashes stands before `index`. */
function isEscaped(text: string, index: number, start: number): boolean {
  let run = index;
  while (run > start && text.charCodeAt(run - 1) === BACKSLASH) run--;
  return (index - run) % 2 === 1;
}
