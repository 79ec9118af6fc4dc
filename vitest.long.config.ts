/** Settings of the long run (`npm run test:long`): the view's histories by the thousand and what takes minutes, one file at a time. */
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/contract/store-*.test.ts", "test/long/**/*.long.ts"],
    env: { KEDGE_HISTORIES: process.env.KEDGE_HISTORIES ?? "10000" },
    testTimeout: 3_600_000,
    hookTimeout: 300_000,
    fileParallelism: false,
  },
});
