/** Keys and permissions by the command table alone, as servers old and new tell it. */

import { describe, expect, it } from "vitest";
import { CommandTable } from "./commands.ts";
import type { Reply, RestCommand } from "./protocol.ts";

const bytes = (value: unknown): Reply =>
  Array.isArray(value) ? value.map(bytes) : typeof value === "string" ? Buffer.from(value) : (value as Reply);

const command = (...[name, ...args]: string[]): RestCommand => ({ name: name!, args });

/** As Redis 6.2: six fields and categories, no key specifications, no subcommands. */
const OLD = new CommandTable(
  bytes([
    ["get", 2, ["readonly", "fast"], 1, 1, 1, []],
    ["set", -3, ["write", "denyoom"], 1, 1, 1, []],
    ["eval", -3, ["noscript", "movablekeys"], 0, 0, 0, []],
    ["xread", -4, ["readonly", "movablekeys"], 1, 1, 1, []],
    ["object", -2, ["readonly", "random"], 2, 2, 1, []],
    ["ping", -1, ["stale", "fast"], 0, 0, 0, []],
    ["module.wait", -1, ["blocking"], 0, 0, 0, []],
    ["module.admin", -1, ["admin"], 0, 0, 0, []],
  ]),
);

const indexSpec = (index: number, find: unknown): unknown => [
  ["flags", ["RO"], "begin_search", ["type", "index", "spec", ["index", index]], "find_keys", find],
];
const RANGE = ["type", "range", "spec", ["lastkey", 0, "keystep", 1, "limit", 0]];
const KEYNUM = ["type", "keynum", "spec", ["keynumidx", 0, "firstkey", 1, "keystep", 1]];

/** As Redis 7 and Valkey. */
const NEW = new CommandTable(
  bytes([
    ["get", 2, ["readonly"], 1, 1, 1, [], [], indexSpec(1, RANGE), []],
    ["fcall", -3, ["movablekeys"], 0, 0, 0, [], [], indexSpec(2, KEYNUM), []],
    ["future", -3, ["write"], 0, 0, 0, [], [], indexSpec(3, RANGE), []],
    [
      "xread",
      -4,
      ["readonly", "blocking"],
      0,
      0,
      0,
      [],
      [],
      [
        [
          "begin_search",
          ["type", "keyword", "spec", ["keyword", "STREAMS", "startfrom", 1]],
          "find_keys",
          RANGE,
        ],
      ],
      [],
    ],
    [
      "object",
      -2,
      [],
      0,
      0,
      0,
      [],
      [],
      [],
      [["object|encoding", 3, ["readonly"], 2, 2, 1, [], [], indexSpec(2, RANGE), []]],
    ],
  ]),
);

describe.each([
  ["an old server", OLD],
  ["a new server", NEW],
])("with the table of %s", (_, table) => {
  it("the first key is found where the server says", () => {
    expect(table.firstKey(command("GET", "k"))).toBe("k");
    expect(table.firstKey(command("XREAD", "COUNT", "1", "streams", "s", "0"))).toBe("s");
    expect(table.firstKey(command("XREAD", "COUNT", "1"))).toBeNull();
    expect(table.firstKey(command("OBJECT", "encoding", "k"))).toBe("k");
    expect(table.firstKey(command("GET"))).toBeNull();
    expect(table.firstKey(command("UNKNOWN", "k"))).toBeNull();
  });

  it("read-only tokens may run what is flagged so, subcommands included", () => {
    expect(table.refusal(command("GET", "k"), true)).toBeNull();
    expect(table.refusal(command("OBJECT", "ENCODING", "k"), true)).toBeNull();
    expect(table.refusal(command("PING"), true)).toBeNull();
    expect(table.refusal(command("UNKNOWN"), true)).toMatch(/^NOPERM .*'unknown'/);
    expect(table.refusal(command("UNKNOWN"), false)).toBeNull();
  });
});

it("read-only tokens run neither programs nor what goes through the whole keyspace", () => {
  const flags = ["KEYS", "SCAN", "EVAL_RO", "EVALSHA_RO"].map((name) => [name, 2, ["readonly"], 0, 0, 0]);
  const table = new CommandTable(flags);
  for (const name of ["KEYS", "SCAN", "EVAL_RO"]) {
    expect(table.refusal(command(name, "x", "0"), true)).toContain("NOPERM");
    expect(table.refusal(command(name, "x", "0"), false)).toBeNull();
  }
  expect(table.refusal(command("EVALSHA_RO", "x", "0"), true)).toBeNull();
});

it("BLOCK is found among the options, whatever groups, consumers and streams are called", () => {
  const blocks = (text: string) => NEW.refusal(command(...(text.split(" ") as [string])), false) !== null;
  expect(blocks("XREADGROUP GROUP streams c BLOCK 0 STREAMS s >")).toBe(true);
  expect(blocks("XREADGROUP GROUP g Streams block 0 STREAMS s >")).toBe(true);
  expect(blocks("XREADGROUP BLOCK 0 GROUP g c STREAMS s >")).toBe(true);
  expect(blocks("XREADGROUP GROUP block block STREAMS block >")).toBe(false);
  expect(blocks("XREADGROUP GROUP group group STREAMS s >")).toBe(false);
  expect(blocks("XREAD COUNT 1 STREAMS block 0")).toBe(false);
});

it("scripts and functions name their number of keys before them", () => {
  for (const [table, name] of [
    [OLD, "EVAL"],
    [NEW, "FCALL"],
  ] as const) {
    expect(table.firstKey(command(name, "x", "2", "a", "b"))).toBe("a");
    for (const count of ["0", "-1", "x", "", "99999999999"])
      expect(table.firstKey(command(name, "x", count))).toBeNull();
  }
  expect(NEW.firstKey(command("FUTURE", "a", "b", "key"))).toBe("key");
});

it("what a server flags as blocking or administrative is refused though nobody here knows it", () => {
  expect(OLD.refusal(command("MODULE.WAIT"), false)).toContain("blocks");
  expect(OLD.refusal(command("MODULE.ADMIN"), false)).toContain("administers");
});

it("without a table read-only tokens may run next to nothing, and the known dangers are refused still", () => {
  const empty = new CommandTable(null);
  expect(empty.size).toBe(0);
  expect(empty.refusal(command("GET", "k"), true)).toContain("NOPERM");
  expect(empty.refusal(command("GET", "k"), false)).toBeNull();
  for (const name of ["SHUTDOWN", "CONFIG", "SUBSCRIBE", "BLPOP", "MULTI", "CLIENT"])
    expect(empty.refusal(command(name), false)).toContain("not available");
});
