/** Settings of the suites that run inside workerd: the portable core where it will be deployed, with the Worker's own compatibility settings. */

import { readFileSync } from "node:fs";
import { cloudflareTest } from "@cloudflare/vitest-plugin";
import { defineConfig } from "vitest/config";

const toml = readFileSync(new URL("wrangler.toml", import.meta.url), "utf8");
const compatibilityDate = /^compatibility_date = "(.*)"/m.exec(toml)![1]!;

export default defineConfig({
  plugins: [
    cloudflareTest({
      miniflare: {
        compatibilityDate,
        compatibilityFlags: ["enable_request_signal"],
        modulesRules: [{ type: "CompiledWasm", include: ["**/*.wasm"] }],
        cf: false,
      },
    }),
  ],
  test: {
    include: ["test/workerd/**/*.test.ts"],
    testTimeout: 30_000,
    // One runtime for all files: starting one costs more than they do.
    isolate: false,
    maxWorkers: 1,
  },
});
