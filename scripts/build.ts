/** Builds the published form: plain JavaScript and declarations under dist/, with the mock engine's model files beside it. */

import { spawnSync } from "node:child_process";
import { cpSync, rmSync } from "node:fs";

rmSync("dist", { recursive: true, force: true });
const done = spawnSync("node_modules/.bin/tsc", ["-p", "tsconfig.build.json"], { stdio: "inherit" });
if (done.status !== 0) process.exit(done.status ?? 1);
cpSync("gpu-agent/engines/mock/model", "dist/gpu-agent/engines/mock/model", { recursive: true });
console.log("built dist/");
