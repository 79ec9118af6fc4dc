/** Static checks: types (Node and portable core), lint and format, import arrows. Exits 1 if any fails. */

import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { type Violation, violations } from "./arrows.ts";

const bin = (name: string): string => `node_modules/.bin/${name}`;

function run(title: string, command: string, args: readonly string[]): boolean {
  const started = performance.now();
  const done = spawnSync(command, args, { stdio: ["ignore", "inherit", "inherit"] });
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  console.log(`${done.status === 0 ? "ok  " : "FAIL"} ${title} (${seconds} s)`);
  return done.status === 0;
}

/** Tracked and new files; the disk as a fallback is not needed, for a release has no checks to run. */
function sources(): string[] {
  const listed = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.ts"], {
    encoding: "utf8",
  });
  return listed
    .split("\n")
    .filter((file) => file !== "" && !file.startsWith("test/fixtures/") && existsSync(file));
}

function arrows(): boolean {
  const found: Violation[] = sources().flatMap((file) => violations(file, readFileSync(file, "utf8")));
  for (const { file, reason } of found) console.error(`${file}: ${reason}`);
  console.log(`${found.length === 0 ? "ok  " : "FAIL"} import arrows`);
  return found.length === 0;
}

const results = [
  arrows(),
  run("types", bin("tsc"), ["-p", "tsconfig.json"]),
  run("types of the portable core", bin("tsc"), ["-p", "tsconfig.core.json"]),
  run("lint and format", bin("biome"), [
    "ci",
    "--error-on-warnings",
    "--colors=off",
    "--reporter=summary",
    ".",
  ]),
];
process.exit(results.every(Boolean) ? 0 : 1);
