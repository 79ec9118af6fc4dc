/** The test command runs what was asked for, all of it if nothing was, and never hides a failure. */

import { describe, expect, it } from "vitest";
import { addCounts, countsOf, planRuns, summary } from "./runs.ts";

const everything = (): boolean => true;
const configs = (args: readonly string[]): string[] => planRuns(args, everything).map(({ config }) => config);

describe("which suites run", () => {
  it("all of them without arguments", () => {
    expect(configs([])).toEqual(["vitest.config.ts", "vitest.workerd.config.ts"]);
  });

  it.each([
    [["src/routing"], ["vitest.config.ts"]],
    [["test/workerd"], ["vitest.workerd.config.ts"]],
    [["./test/workerd/plan.test.ts", "--bail=1"], ["vitest.workerd.config.ts"]],
    [
      ["src/plan", "test/workerd"],
      ["vitest.config.ts", "vitest.workerd.config.ts"],
    ],
    [["--long"], ["vitest.long.config.ts"]],
  ])("%j: %j", (args, expected) => {
    expect(configs(args)).toEqual(expected);
  });

  it("each run gets its own paths and all options", () => {
    const paths = (path: string): boolean => path.includes("/") || path.endsWith(".ts");
    expect(planRuns(["src/plan", "-t", "signs", "test/workerd"], paths)).toEqual([
      { config: "vitest.config.ts", args: ["src/plan", "-t", "signs"] },
      { config: "vitest.workerd.config.ts", args: ["-t", "signs", "test/workerd"] },
    ]);
  });

  it("a configuration that is not there is not run", () => {
    expect(planRuns([], (path) => path === "vitest.config.ts")).toHaveLength(1);
  });
});

describe("what is counted", () => {
  const results = { numPassedTests: 3, numFailedTests: 1, numPendingTests: 0, testResults: [] };

  it("runs add up to one line", () => {
    const one = countsOf(results);
    expect(summary(addCounts(one, one))).toBe("tests: 6 passed, 2 failed");
    expect(summary(countsOf({ ...results, numPendingTests: 4 }))).toBe(
      "tests: 3 passed, 1 failed, 4 skipped",
    );
  });

  it("a file that could not be loaded is a failure", () => {
    const broken = { status: "failed", assertionResults: [] };
    expect(countsOf({ ...results, testResults: [broken] }).failed).toBe(2);
  });
});
