/** The published form runs on its own: what a command reads at its start is in it. */

import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";

const run = promisify(execFile);
const COMMANDS = ["gateway", "agent", "indexer", "redis-rest", "fleet", "plan-key", "up", "mock-engine"];
const root = mkdtempSync(join(tmpdir(), "kedge-build-"));

beforeAll(async () => {
  mkdirSync(join(root, "bin"));
  for (const file of ["package.json", "bin/kedge.js"]) cpSync(file, join(root, file));
  symlinkSync(resolve("node_modules"), join(root, "node_modules"));
  await run(process.execPath, ["scripts/build.ts", join(root, "dist")]);
}, 120_000);

afterAll(() => rmSync(root, { recursive: true, force: true }));

it.each(COMMANDS)("kedge %s finds all that it needs outside a checkout", async (command) => {
  const { stdout } = await run(process.execPath, [join(root, "bin", "kedge.js"), command, "--help"]);
  expect(stdout).toContain(`Usage: kedge ${command}`);
});
