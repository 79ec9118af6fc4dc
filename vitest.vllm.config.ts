/** Settings of the suite against real vLLM engines (`npm run e2e:vllm`): one file at a time, for an engine takes 2 GB and half a minute to start. */
import { defineConfig } from "vitest/config";

if (process.env.E2E_VLLM_DIR === undefined) {
  console.log("e2e:vllm is skipped: E2E_VLLM_DIR names no folder with a built vLLM.");
}

export default defineConfig({
  test: {
    include: ["test/e2e-vllm/**/*.vllm.ts"],
    testTimeout: 120_000,
    hookTimeout: 240_000,
    fileParallelism: false,
  },
});
