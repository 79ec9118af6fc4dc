/** Runs a script of this repository under its own Node (>= 22.19), installing dependencies first when they are missing or stale. */
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");

/** npm writes what it installed beside the packages; if that differs from the lock file, the tree is stale. */
function installed() {
  const wanted = readJson(join(root, "package-lock.json"));
  const present = readJson(join(root, "node_modules", ".package-lock.json"));
  if (!wanted || !present) return false;
  return Object.entries(wanted.packages).every(
    ([path, { version, optional }]) => path === "" || optional || present.packages[path]?.version === version,
  );
}

function readJson(path) {
  return existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : null;
}

function install() {
  console.error("kedge: installing dependencies (npm ci) …");
  const npm = process.env.npm_execpath ? [process.execPath, [process.env.npm_execpath]] : ["npm", []];
  const done = spawnSync(
    npm[0],
    [...npm[1], "ci", "--no-audit", "--no-fund", "--engine-strict=false", "--loglevel=error"],
    {
      cwd: root,
      stdio: ["ignore", 2, 2],
    },
  );
  if (done.status !== 0) {
    console.error("kedge: npm ci failed; run it by hand to see why.");
    process.exit(done.status ?? 1);
  }
}

if (!installed()) install();

const node = join(root, "node_modules", "node", "bin", "node");
const child = spawn(
  existsSync(node) ? node : process.execPath,
  ["--disable-warning=ExperimentalWarning", ...process.argv.slice(2)],
  {
    stdio: "inherit",
    env: { ...process.env, PATH: `${join(root, "node_modules", ".bin")}:${process.env.PATH}` },
  },
);
// Ctrl-C reaches the child through the terminal's process group; signals sent to this process alone are passed on.
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => {
    if (signal !== "SIGINT" || !process.stdin.isTTY) child.kill(signal);
  });
}
child.on("exit", (code, signal) => {
  process.exitCode = code ?? (signal === "SIGINT" ? 130 : 143);
});
