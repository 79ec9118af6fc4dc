/** Adapter, salt and images are told apart in every form that engines send. */

import { describe, expect, test } from "vitest";
import { isPlain, readExtraKeys, saltOfFirstBlock } from "./extra-keys.ts";

/** Salt of a chain whose first block carries these keys; undefined: it has no prefix keys. */
const saltOf = (raw: readonly unknown[] | null, adapter: string | null = null) =>
  saltOfFirstBlock(readExtraKeys(raw, adapter));

describe("the salt of a first block", () => {
  test.each<[string, readonly unknown[] | null, string | null, string | null | undefined]>([
    ["nothing", null, null, null],
    ["an adapter alone", ["tide"], "tide", null],
    ["a salt alone", ["acme"], null, "acme"],
    ["adapter and salt", ["tide", "acme"], "tide", "acme"],
    ["a salt that is named as the adapter", ["tide", "tide"], "tide", "tide"],
    [
      "tagged tuples",
      [
        ["lora", "tide", "/tide"],
        ["cache_salt", "acme"],
      ],
      "tide",
      "acme",
    ],
    [
      "tagged tuples of one name",
      [
        ["lora", "tide", "/tide"],
        ["cache_salt", "tide"],
      ],
      "tide",
      "tide",
    ],
    ["a tagged salt named as the adapter", ["tide", ["cache_salt", "tide"]], "tide", "tide"],
    ["maps", [{ lora_name: "tide" }, { cache_salt: "acme" }], "tide", "acme"],
    ["an image", [["9f3c", 2]], null, undefined],
    ["an image's text beside a salt", ["9f3c", "acme"], null, undefined],
    ["an empty salt", [["cache_salt", ""]], null, null],
  ])("%s", (_, raw, adapter, salt) => {
    expect(saltOf(raw, adapter)).toBe(salt);
  });
});

test("a later block is plain if it says no more than its chain's salt and adapter", () => {
  const plain = (raw: readonly unknown[] | null, salt: string | null) =>
    isPlain(readExtraKeys(raw, "tide"), salt);
  expect([plain(["tide"], null), plain(["tide"], "acme"), plain(["tide", "acme"], "acme")]).toEqual([
    true,
    true,
    true,
  ]);
  expect([
    plain(["tide", "tide"], "tide"),
    plain(["tide", "tide"], null),
    plain(["tide", "x"], "acme"),
  ]).toEqual([true, false, false]);
});
