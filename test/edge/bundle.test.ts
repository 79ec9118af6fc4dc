/** The Worker's bundle holds nothing that only Node can run, and wrangler makes the same of it for every environment. */

import { execFile } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";
import { beforeAll, describe, expect, it } from "vitest";
import { bundleWorker, type WorkerBundle } from "../support/worker-bundle.ts";

/** Packages that need Node, or make code at run time, which workerd forbids. */
const FORBIDDEN = [
  "@hono/node-server",
  "@huggingface/tokenizers",
  "commander",
  "ioredis",
  "msgpackr",
  "undici",
  "zeromq",
];

let bundle: WorkerBundle;
beforeAll(async () => {
  bundle = await bundleWorker("workers/gateway/index.ts");
});

const textOf = (contents: Uint8Array) => new TextDecoder().decode(contents);

describe("the bundle", () => {
  it("imports the platform's modules only, and none of Node's", () => {
    expect(bundle.platformImports).toEqual(["cloudflare:workers"]);
    expect(textOf(bundle.modules[0]!.contents)).not.toMatch(
      /require\(["'](node:)?(fs|net|tls|crypto|http|buffer)["']\)/,
    );
  });

  it("holds no package and no room of the house that runs in Node only", () => {
    const packages = bundle.inputs.flatMap(
      (input) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1] ?? [],
    );
    expect(packages).toEqual(expect.arrayContaining(["hono", "@huggingface/jinja", "xxhash-wasm"]));
    expect([...new Set(packages)].filter((name) => FORBIDDEN.includes(name))).toEqual([]);
    expect(bundle.inputs.filter((input) => /^(src\/node|gpu-agent|test|bench)\//.test(input))).toEqual([]);
  });

  it("is small, and its size is told", () => {
    const bytes = bundle.modules.reduce((sum, { contents }) => sum + contents.length, 0);
    const gzipped = bundle.modules.reduce((sum, { contents }) => sum + gzipSync(contents).length, 0);
    console.log(`gateway Worker: ${(bytes / 1024).toFixed(0)} KiB, gzip ${(gzipped / 1024).toFixed(0)} KiB`);
    expect(bytes).toBeLessThan(4 * 1024 * 1024);
  });
});

describe("wrangler deploy --dry-run", () => {
  it.each(["dev", "staging", "production"])("takes the environment %s", async (environment) => {
    const folder = mkdtempSync(join(tmpdir(), "kedge-deploy-"));
    try {
      const wrangler = ["node_modules/wrangler/bin/wrangler.js", "deploy", "--dry-run", "--env", environment];
      const { stdout } = await promisify(execFile)(process.execPath, [...wrangler, "--outdir", folder], {
        env: { ...process.env, WRANGLER_SEND_METRICS: "false", WRANGLER_HIDE_BANNER: "true", CI: "true" },
      });
      expect(stdout).toContain("--dry-run: exiting now.");
      const main = readdirSync(folder).find((name) => name.endsWith(".js"))!;
      expect(readFileSync(join(folder, main), "utf8")).not.toMatch(/from ["']node:/);
      // Secrets are given to a deployment, never written into its configuration.
      expect(stdout).not.toMatch(/KEDGE_(API_KEYS|REDIS_TOKEN|PLAN_KEY)/);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
