/** Builds the published form: plain JavaScript and declarations under dist/ or a folder that is named, with the mock engine's model files beside it. */

import { spawnSync } from "node:child_process";
import { cpSync, rmSync } from "node:fs";
import { join } from "node:path";

const out = process.argv[2] ?? "dist";
rmSync(out, { recursive: true, force: true });
const compiler = ["-p", "tsconfig.build.json", "--outDir", out];
const done = spawnSync("node_modules/.bin/tsc", compiler, { stdio: "inherit" });
if (done.status !== 0) process.exit(done.status ?? 1);
const model = join("gpu-agent", "engines", "mock", "model");
cpSync(model, join(out, model), { recursive: true });
console.log(`built ${out}/`);
