/** Warnings do not grow with the requests that meet the same trouble, and each worker's trouble is told. */

import { expect, it } from "vitest";
import { QuietLog } from "./quiet-log.ts";

it("writes one line per second and thing, with how many it kept back; however many things there are, it forgets", () => {
  let nowMs = 0;
  const lines: string[] = [];
  const log = new QuietLog(
    { warn: (message, fields) => lines.push(`${message} ${JSON.stringify(fields)}`) },
    { now: () => nowMs },
  );
  for (let i = 0; i < 100; i++) for (const worker of ["a", "b"]) log.warn("Failed.", { worker }, worker);
  expect(lines).toEqual(['Failed. {"worker":"a"}', 'Failed. {"worker":"b"}']);
  nowMs = 1_000;
  log.warn("Failed.", { worker: "a" }, "a");
  expect(lines[2]).toBe('Failed. {"worker":"a","more":99}');
  for (let i = 0; i < 10_000; i++) log.warn("Failed.", {}, `${i}`);
  expect(lines).toHaveLength(10_003);
});
