/** Templates print what Python's Jinja prints, in Hugging Face's environment. */
import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { parseJson } from "../../../json/index.ts";
import { toValue } from "../convert.ts";
import { compileTemplate } from "./compile.ts";
import { TemplateFailure, UnsupportedTemplate } from "./failures.ts";
import { dumpJson } from "./json-dumps.ts";
import { createStrftime } from "./strftime.ts";
import { floatRepr, repr, type Value } from "./values.ts";

const clock = { nowMs: () => Date.UTC(2026, 2, 5, 7, 8, 9), timeZone: "UTC" };

function render(template: string, variables: Record<string, Value> = {}): string {
  return compileTemplate(template, clock).render(new Map(Object.entries(variables)));
}

interface Outcomes {
  readonly variables: string;
  readonly outcomes: readonly { readonly template: string; readonly text: string | null }[];
}

const fixture = new URL("../../../../test/fixtures/jinja/outcomes.json", import.meta.url);
const { variables, outcomes }: Outcomes = JSON.parse(readFileSync(fixture, "utf8"));
const shared = toValue(parseJson(variables));

describe("recorded outcomes of Jinja2", () => {
  it.each(outcomes)("$template", ({ template, text }) => {
    const run = () =>
      compileTemplate(template, clock).render(shared instanceof Map ? textKeys(shared) : new Map());
    if (text === null) expect(run).toThrow(TemplateFailure);
    else expect(run()).toBe(text);
  });
});

function textKeys(dict: ReadonlyMap<Value, Value>): Map<string, Value> {
  return new Map(Array.from(dict, ([key, value]) => [String(key), value]));
}

describe("numbers", () => {
  it.each([
    ["1", "1"],
    ["-0", "0"],
    ["-0.0", "-0.0"],
    ["1.50", "1.5"],
    ["1e5", "100000.0"],
    ["1E16", "1e+16"],
    ["123456789012345678901234567890", "123456789012345678901234567890"],
    ["9007199254740993", "9007199254740993"],
    ["0.1e-7", "1e-08"],
    ["0.0001", "0.0001"],
    ["0.00001", "1e-05"],
    ["1234567890123456.7", "1234567890123456.8"],
    ["1e400", "Infinity"],
  ])("%s is printed as %s", (source, text) => {
    expect(dumpJson(toValue(parseJson(source)))).toBe(text);
  });

  it("prints any double so that it reads back as the same double, and never as an int", () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
        expect(Object.is(Number(floatRepr(value)), value)).toBe(true);
        expect(floatRepr(value)).toMatch(/[.e]/);
      }),
    );
  });
});

describe("failures", () => {
  it("keeps the template's own refusal apart from what this interpreter lacks", () => {
    expect(() => render("{{ raise_exception('roles must alternate') }}")).toThrow(
      expect.objectContaining({ message: "roles must alternate", raised: true }),
    );
    expect(() => render("{% import 'x' as y %}")).toThrow(UnsupportedTemplate);
    expect(() => render("{{ x | nosuchfilter }}")).toThrow(UnsupportedTemplate);
    expect(() => render("{{ 1 +")).toThrow(UnsupportedTemplate);
  });

  it("does not mind what it lacks where no request takes that branch", () => {
    expect(render("{% if false %}{{ x | nosuchfilter }}{% endif %}ok")).toBe("ok");
  });

  it("bounds range as the sandbox does", () => {
    expect(() => render("{% for i in range(1000000000) %}{% endfor %}")).toThrow(TemplateFailure);
  });
});

describe("text forms", () => {
  it("prints strings inside containers as Python's repr", () => {
    expect(repr(["it's", 'a "b"', "both ' \"", "\u00a0\u200b\u{e000}\n"])).toBe(
      String.raw`["it's", 'a "b"', 'both \' "', '\xa0\u200b\ue000\n']`,
    );
  });

  it("prints dates in the zone it is given", () => {
    const newYear = Date.UTC(2024, 11, 31, 23, 30);
    expect(createStrftime("UTC")("%d %b %Y %H:%M", newYear)).toBe("31 Dec 2024 23:30");
    expect(createStrftime("Asia/Tokyo")("%d %b %Y %H:%M", newYear)).toBe("01 Jan 2025 08:30");
    expect(createStrftime("America/New_York")("%-d %B, %A, day %j", newYear)).toBe(
      "31 December, Tuesday, day 366",
    );
  });
});
