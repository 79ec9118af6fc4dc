/** The check of import arrows finds what it is there to find. */

import { expect, it } from "vitest";
import { specifiers, violations } from "./arrows.ts";

const reasons = (file: string, source: string): string[] =>
  violations(file, `/** x */\n${source}`).map((found) => found.reason);

it.each([
  ["src/gateway/app.ts", 'import { a } from "../store/types.ts";'],
  ["src/store/memory/index.ts", 'import type { a } from "../../fleet/types.ts";'],
  ["gpu-agent/agent.ts", 'import type { a } from "../src/store/types.ts";'],
  ["src/node/cli/up.ts", 'import { a } from "../../../gpu-agent/agent.ts";'],
  ["src/routing/kv.test.ts", 'import { a } from "../node/x.ts";\nimport "node:fs";'],
  ["src/node/server.ts", 'import "node:http";'],
])("%s: %s is allowed", (file, source) => {
  expect(reasons(file, source)).toEqual([]);
});

it.each([
  ["src/prefix/keys.ts", 'import { a } from "../store/types.ts";'],
  ["src/gateway/app.ts", 'import { a } from "../indexer/index.ts";'],
  ["src/gateway/app.ts", 'import { a } from "../node/server.ts";'],
  ["src/store/x.ts", 'import { a } from "../../gpu-agent/agent.ts";'],
  ["gpu-agent/agent.ts", 'import { a } from "../src/routing/index.ts";'],
  ["gpu-agent/agent.ts", 'import { a } from "../src/store/memory/index.ts";'],
  ["src/errors/index.ts", 'import { a } from "../json/index.ts";'],
  ["src/routing/kv.ts", 'import { readFileSync } from "node:fs";'],
  ["src/gateway/app.ts", 'const { Pool } = await import("undici");'],
  ["src/routing/kv.ts", "const x = process.env.HOME;"],
])("%s: %s is refused", (file, source) => {
  expect(reasons(file, source)).toHaveLength(1);
});

it("a file without an opening comment is refused", () => {
  expect(violations("src/routing/kv.ts", "export const a = 1;")).toHaveLength(1);
});

it("imports in comments do not count", () => {
  expect(specifiers('/* from "a" */\n// import "b"\nexport { c } from "c";')).toEqual(["c"]);
});
