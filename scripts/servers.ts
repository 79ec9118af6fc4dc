/**
 * redis-server and nats-server for the suites that need them: found, or installed where Debian's packages can be. Debian's nats-server
 * is 2.9; the newest comes by `go install github.com/nats-io/nats-server/v2@latest` into Go's bin folder, which is searched too.
 */

import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { findNatsServers, findRedisServer } from "../test/support/server-processes.ts";

const INSTALL_TIMEOUT_MS = 300_000;

/** Debian starts the services of the packages it installs, unless this file says no. */
const INSTALL = `
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  trap 'exit 1' INT TERM HUP
  printf '#!/bin/sh\\nexit 101\\n' > $policy && chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -q --no-install-recommends "$@"; }
install "$@" || { apt-get update -q && install "$@"; }
`;

/** What is missing, by the names of Debian's packages. */
export function missingServers(): string[] {
  const found = { "redis-server": findRedisServer() !== null, "nats-server": findNatsServers().length > 0 };
  return Object.entries(found).flatMap(([name, isHere]) => (isHere ? [] : name));
}

/** Makes the servers be there. False: they are not, and this is CI, where no suite may be left out. */
export function ensureServers(): boolean {
  if (missingServers().length > 0) install(missingServers());
  const missing = missingServers();
  if (missing.length === 0) return true;
  const how = `Debian: apt-get install ${missing.join(" ")}; elsewhere the package manager has redis or valkey, and nats-server`;
  const newest = "or set KEDGE_REDIS_SERVER_BIN and KEDGE_NATS_SERVER_BIN";
  if (process.env.CI) {
    console.error(
      `FAIL ${missing.join(" and ")} missing, and in CI their suites must run. ${how}, ${newest}.`,
    );
    return false;
  }
  console.error(`\n!!!  Without ${missing.join(" and ")} their suites are SKIPPED. ${how}, ${newest}.\n`);
  return true;
}

function install(packages: readonly string[]): void {
  const asRoot = rootCommand();
  if (!isDebian() || asRoot === null) return;
  console.error(`kedge: installing ${packages.join(" and ")} (apt-get) …`);
  const [command = "sh", ...args] = [...asRoot, "sh", "-c", INSTALL, "install", ...packages];
  const done = spawnSync(command, args, {
    stdio: ["ignore", "ignore", "pipe"],
    encoding: "utf8",
    timeout: INSTALL_TIMEOUT_MS,
  });
  if (done.status !== 0) console.error(`kedge: that failed: ${done.stderr?.trim() || done.error?.message}`);
}

function isDebian(): boolean {
  if (!existsSync("/etc/os-release") || !succeeds("apt-get", ["--version"])) return false;
  return /^ID(_LIKE)?=.*\b(debian|ubuntu)\b/m.test(readFileSync("/etc/os-release", "utf8"));
}

/** What to put before a command for it to run as root; null: not without asking somebody. */
function rootCommand(): string[] | null {
  if (process.getuid?.() === 0) return [];
  return succeeds("sudo", ["-n", "true"]) ? ["sudo", "-n"] : null;
}

function succeeds(command: string, args: readonly string[]): boolean {
  return spawnSync(command, args, { stdio: "ignore" }).status === 0;
}
