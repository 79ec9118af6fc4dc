/** Test runner settings: tests sit beside their code, suites that cross rooms are under test/. */
import { configDefaults, defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["src/**/*.test.ts", "gpu-agent/**/*.test.ts", "test/**/*.test.ts", "scripts/**/*.test.ts"],
    // Those run inside workerd: vitest.workerd.config.ts.
    exclude: [...configDefaults.exclude, "test/workerd/**"],
    testTimeout: 30_000,
    hookTimeout: 60_000,
    maxWorkers: 2,
  },
});
