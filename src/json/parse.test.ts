/** The reader agrees with JSON.parse on every text, and keeps what JSON.parse loses. */
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { KedgeError } from "../errors/index.ts";
import { type JsonNode, member, numberMember, parseJson, stringMember, toPlain } from "./index.ts";

function errorOf(run: () => unknown): KedgeError {
  try {
    run();
  } catch (error) {
    if (error instanceof KedgeError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

function everyNode(node: JsonNode, visit: (node: JsonNode) => void): void {
  visit(node);
  if (node.type === "array") for (const item of node.items) everyNode(item, visit);
  if (node.type === "object") for (const entry of node.members) everyNode(entry.value, visit);
}

/** Random JSON text in odd but legal spacing. */
const spacedJson = fc
  .tuple(fc.json({ maxDepth: 5 }), fc.constantFrom(0, 1, 2, "\t", " \r\n"))
  .map(([text, indent]) => ` \n${JSON.stringify(JSON.parse(text), null, indent)}\r\t`);

describe("parseJson", () => {
  it("reads what JSON.parse reads", () => {
    fc.assert(
      fc.property(spacedJson, (text) => {
        const expected = JSON.parse(text.toWellFormed());
        expect(toPlain(parseJson(text.toWellFormed()))).toEqual(expected);
      }),
      { numRuns: 400 },
    );
  });

  it("accepts exactly the texts that JSON.parse accepts", () => {
    const fragment = fc.constantFrom(
      ...[
        '"',
        "\\",
        "\\u",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "1",
        "-",
        "0",
        ".",
        "e",
        "+",
        "true",
        "null",
        "fals",
      ],
      ...['"a"', " ", "\n", "\u0001", "12", "d83d", "NaN", "\u00a0"],
    );
    fc.assert(
      fc.property(fc.array(fragment, { maxLength: 9 }), (fragments) => {
        const text = fragments.join("");
        let accepted = true;
        try {
          JSON.parse(text);
        } catch {
          accepted = false;
        }
        if (accepted) parseJson(text);
        else expect(errorOf(() => parseJson(text)).code).toBe("invalid_json");
      }),
      { numRuns: 3000 },
    );
  });

  it("gives every value the span it was read from", () => {
    fc.assert(
      fc.property(spacedJson, (text) => {
        everyNode(parseJson(text), (node) => {
          const again = parseJson(text.slice(node.start, node.end));
          expect(toPlain(again)).toEqual(toPlain(node));
          expect(again.start).toBe(0);
        });
      }),
      { numRuns: 200 },
    );
  });

  it("keeps number source, key order, integer-like keys, __proto__ and duplicates", () => {
    const text = '{"b":1.50,"2":1e5,"1":12345678901234567890,"__proto__":-0.0,"b":2}';
    const node = parseJson(text);
    if (node.type !== "object") throw new Error("not an object");
    expect(
      node.members.map(({ key, value }) => [key, value.type === "number" ? value.source : "", value.start]),
    ).toEqual([
      ["b", "1.50", 5],
      ["2", "1e5", 14],
      ["1", "12345678901234567890", 22],
      ["__proto__", "-0.0", 55],
      ["b", "2", 64],
    ]);
    expect(numberMember(node, "b")).toBe(2);
    expect(numberMember(node, "__proto__")).toBe(-0);
    expect(member(node, "toString")).toBeUndefined();
  });

  it("decodes escapes in values and keys; a lone surrogate becomes U+FFFD", () => {
    const node = parseJson('{"cache\\u005fsalt":"a \\ud83d b \\ud83d\\ude00 \\\\\\" é"}');
    expect(stringMember(node, "cache_salt")).toBe('a \ufffd b 😀 \\" é');
  });

  it("says where the text is wrong", () => {
    expect(errorOf(() => parseJson('{\n  "a": 1,\n  "b" 2\n}')).message).toBe(
      "Invalid JSON at line 3, column 7: expected ':' after the key.",
    );
    expect(errorOf(() => parseJson('["a\nb"]')).message).toContain("line 1, column 4: control character");
    expect(errorOf(() => parseJson('["\\q"]')).message).toContain("line 1, column 2: bad escape");
    expect(errorOf(() => parseJson("")).message).toContain("unexpected end");
    expect(errorOf(() => parseJson('{"a":1} x')).message).toContain("after the end");
  });

  it("refuses deep nesting instead of overflowing the stack", () => {
    const nested = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
    expect(parseJson(nested(512)).type).toBe("array");
    expect(errorOf(() => parseJson(nested(513))).code).toBe("invalid_json");
    expect(errorOf(() => parseJson("[".repeat(1_000_000))).code).toBe("invalid_json");
    expect(parseJson(nested(3), { maxDepth: 3 }).type).toBe("array");
  });

  it("refuses a text of more values than it may hold, however they are nested", () => {
    const list = (count: number) =>
      `[${Array(count - 1)
        .fill("0")
        .join()}]`;
    expect(parseJson(list(10), { maxValues: 10 }).type).toBe("array");
    for (const text of [list(11), `{"a":${list(10)}}`, `[${"[],".repeat(9)}[]]`]) {
      expect(errorOf(() => parseJson(text, { maxValues: 10 })).message).toContain("more than 10 values");
    }
    expect(parseJson(list(1_000_001)).type).toBe("array");
    expect(errorOf(() => parseJson(list(2_000_001))).code).toBe("invalid_json");
  });

  it("refuses integers that no engine reads, and takes floats of any length", () => {
    const digits = "9".repeat(4_300);
    expect(parseJson(`-${digits}`).type).toBe("number");
    expect(errorOf(() => parseJson(`[1,${digits}9]`)).message).toContain("column 4: an integer of more than");
    expect(errorOf(() => parseJson(`-${digits}9`)).code).toBe("invalid_json");
    expect(parseJson(`0.${digits}9`).type).toBe("number");
    expect(parseJson(`1${digits}e1`).type).toBe("number");
  });

  it("reads NaN and Infinity only where asked to", () => {
    expect(errorOf(() => parseJson("[NaN]")).code).toBe("invalid_json");
    expect(toPlain(parseJson("[NaN,-Infinity,1]", { nonFinite: true }))).toEqual([NaN, -Infinity, 1]);
  });

  it("stays linear on a megabyte of backslashes and quotes", () => {
    const text = `["${'\\\\\\"'.repeat(250_000)}"]`;
    const started = performance.now();
    parseJson(text);
    expect(performance.now() - started).toBeLessThan(2000);
  });
});
