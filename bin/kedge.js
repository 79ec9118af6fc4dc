#!/usr/bin/env node
/** The `kedge` command: the built form where there is one, the sources in a checkout. */
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const source = join(root, "src", "node", "cli", "main.ts");
const built = join(root, "dist", "src", "node", "cli", "main.js");
const [major, minor] = process.versions.node.split(".").map(Number);
const isNewEnough = major > 22 || (major === 22 && minor >= 19);

if (existsSync(source)) {
  // A checkout brings its own Node; the runner also installs what is missing.
  const runner = join(root, "scripts", "run.mjs");
  const child = spawn(process.execPath, [runner, source, ...process.argv.slice(2)], { stdio: "inherit" });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("exit", (code) => {
    process.exitCode = code ?? 1;
  });
} else if (!isNewEnough) {
  console.error(`kedge needs Node 22.19 or newer; this is ${process.version}.`);
  process.exitCode = 1;
} else {
  await import(built);
}
