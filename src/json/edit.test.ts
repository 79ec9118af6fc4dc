/** Edits change what they name and leave every other byte alone. */
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { KedgeError } from "../errors/index.ts";
import { editJson, type JsonEdit, parseJson, toPlain } from "./index.ts";

function edit(text: string, ...edits: JsonEdit[]): string {
  return editJson(text, parseJson(text), edits);
}

const keys = ["a", "b", "c"] as const;
const sources = ["1.50", "1e5", '"x\\u0041"', "[1, 2]", '{ "a" : 1 }', "null", "true"];

/** Objects with duplicate keys in any spacing, as text. */
const objectText = fc
  .array(fc.tuple(fc.constantFrom(...keys), fc.constantFrom(...sources), fc.constantFrom("", " ", "\n  ")), {
    maxLength: 6,
  })
  .map(
    (members) =>
      `{${members.map(([key, json, space]) => `${space}"${key}"${space}:${space}${json}`).join(",")} }`,
  );

const someEdits = fc.uniqueArray(
  fc.record({ key: fc.constantFrom(...keys, "new"), json: fc.option(fc.constantFrom("9", '"s"')) }),
  { selector: ({ key }) => key, maxLength: 4 },
);

/** The members of a text as `key:source`, in order. */
function memberSources(text: string): [string, string][] {
  const node = parseJson(text);
  if (node.type !== "object") throw new Error("not an object");
  return node.members.map(({ key, value }) => [key, text.slice(value.start, value.end)]);
}

describe("editJson", () => {
  it("sets, replaces and removes members and keeps all others as they were written", () => {
    fc.assert(
      fc.property(objectText, someEdits, (text, changes) => {
        const edits = changes.map(
          ({ key, json }): JsonEdit =>
            json === null ? { op: "remove", path: [key] } : { op: "set", path: [key], json },
        );
        const result = edit(text, ...edits);
        const touched = new Set<string>(changes.map(({ key }) => key));
        const untouched = (members: [string, string][]) => members.filter(([key]) => !touched.has(key));
        expect(untouched(memberSources(result))).toEqual(untouched(memberSources(text)));
        for (const { key, json } of changes) {
          const found = memberSources(result).filter(([name]) => name === key);
          expect(found).toEqual(json === null ? [] : [[key, json]]);
        }
      }),
      { numRuns: 1000 },
    );
  });

  it("changes nothing outside the named value", () => {
    const text = '{ "model" : "m",\n "temperature": 0.70, "n": 1e0, "é": "\\u00e9" }';
    expect(edit(text, { op: "set", path: ["temperature"], json: "1" })).toBe(
      '{ "model" : "m",\n "temperature": 1, "n": 1e0, "é": "\\u00e9" }',
    );
    expect(edit(text, { op: "remove", path: ["temperature"] })).toBe(
      '{ "model" : "m", "n": 1e0, "é": "\\u00e9" }',
    );
    expect(edit(text, { op: "set", path: ["cache_salt"], json: '"s"' })).toBe(
      '{ "model" : "m",\n "temperature": 0.70, "n": 1e0, "é": "\\u00e9","cache_salt":"s" }',
    );
    expect(edit(text)).toBe(text);
  });

  it("leaves one effective member where keys are duplicated, however they are spelt", () => {
    const text = '{"cache_salt":"theirs","x":1,"cache\\u005fsalt":"also theirs"}';
    expect(edit(text, { op: "set", path: ["cache_salt"], json: '"ours"' })).toBe(
      '{"x":1,"cache\\u005fsalt":"ours"}',
    );
    expect(edit(text, { op: "remove", path: ["cache_salt"] })).toBe('{"x":1}');
  });

  it("edits members of a top-level object", () => {
    const path = ["stream_options", "include_usage"] as const;
    const set: JsonEdit = { op: "set", path, json: "true" };
    expect(edit('{"stream":true}', set)).toBe('{"stream":true,"stream_options":{"include_usage":true}}');
    expect(edit("{}", set)).toBe('{"stream_options":{"include_usage":true}}');
    expect(edit('{"stream_options":null}', set)).toBe('{"stream_options":{"include_usage":true}}');
    expect(edit('{"stream_options":{ "x": 1.0 }}', set)).toBe(
      '{"stream_options":{ "x": 1.0,"include_usage":true }}',
    );
    expect(edit('{"stream_options":{"include_usage":false,"x":2}}', set)).toBe(
      '{"stream_options":{"include_usage":true,"x":2}}',
    );
    expect(edit('{"stream_options":{"a":1},"stream_options":{"b":1}}', set)).toBe(
      '{"stream_options":{"b":1,"include_usage":true}}',
    );
    expect(edit('{"stream_options":{"include_usage":true}}', { op: "remove", path })).toBe(
      '{"stream_options":{}}',
    );
    expect(edit('{"a":1}', { op: "remove", path })).toBe('{"a":1}');
  });

  it("refuses a document or parent that is no object", () => {
    const set: JsonEdit = { op: "set", path: ["a", "b"], json: "1" };
    for (const text of ["[]", "3", '{"a":3}', '{"a":[1]}']) {
      expect(() => edit(text, set)).toThrow(KedgeError);
    }
  });

  it("survives its own output: edits of edited text stay valid JSON", () => {
    fc.assert(
      fc.property(objectText, fc.array(fc.constantFrom(...keys), { maxLength: 5 }), (text, removals) => {
        let current = text;
        for (const key of removals) {
          current = edit(current, { op: "remove", path: [key] }, { op: "set", path: ["z"], json: "[]" });
        }
        expect(toPlain(parseJson(current))).toBeTypeOf("object");
      }),
    );
  });
});
