/** What the suites share: skipping without engines, ending what was started, and holding promises against the engine's own counts. */

import { afterAll, describe, expect } from "vitest";
import { killEngines, VLLM_DIR } from "./engine.ts";
import { type Answer, ask, type Body, killKedges } from "./kedge.ts";
import type { Prompts } from "./prompts.ts";

/** `describe` with real engines; ends all engines and gateways of the file after it. */
export function describeVllm(name: string, suite: () => void): void {
  describe.skipIf(VLLM_DIR === undefined)(name, () => {
    afterAll(async () => {
      killKedges();
      await killEngines();
    });
    suite();
  });
}

const CHUNK_BYTES = 128;
const BLOCK_TOKENS = 16;
/** Of text, a chunk holds some 32 tokens and is missed by half. */
const MEAN_SHORTFALL = 32;
/** Answers of which a mean says something. */
const MANY = 20;

/**
 * An engine publishes its events in a thread of its own: on a busy machine they leave some milliseconds after the answer that
 * they belong to (1 of 200 requests met that), and nothing of the engine tells when.
 */
const PUBLISHED_WITHIN_MS = 60;

/** Sends prompts one after the other and answers what was promised beside what was cached. */
export async function series(url: string, prompts: Prompts, count: number): Promise<Answer[]> {
  const answers: Answer[] = [];
  for (let i = 0; i < count; i++) answers.push(await settled(url, prompts.next()));
  return answers;
}

/** Asks when all that was answered before has been published. */
export async function settled(
  url: string,
  body: Body,
  headers?: Readonly<Record<string, string>>,
): Promise<Answer> {
  await new Promise((resolve) => setTimeout(resolve, PUBLISHED_WITHIN_MS));
  return answered(url, body, headers);
}

export async function answered(
  url: string,
  body: Body,
  headers?: Readonly<Record<string, string>>,
): Promise<Answer> {
  const answer = await ask(url, body, headers);
  expect(answer, answer.raw).toMatchObject({ status: 200 });
  return answer;
}

/** Scheme `tokens`: every promise is kept to the token. */
export function expectExact(answers: readonly Answer[]): void {
  expect(answers.map(({ promised }) => promised)).toEqual(answers.map(({ cached }) => cached));
  expectSomeCached(answers);
}

/** Scheme `bytes`: no promise is too high, each is short by at most a chunk (its bytes may be a token each) and a block. */
export function expectNeverAbove(answers: readonly Answer[]): void {
  for (const { promised, cached } of answers) {
    expect(promised).toBeLessThanOrEqual(cached);
    expect(promised).toBeGreaterThanOrEqual(cached - CHUNK_BYTES - BLOCK_TOKENS);
  }
  if (answers.length >= MANY) {
    const missed = answers.reduce((sum, { promised, cached }) => sum + cached - promised, 0);
    expect(missed / answers.length).toBeLessThan(MEAN_SHORTFALL);
  }
  expectSomeCached(answers);
}

function expectSomeCached(answers: readonly Answer[]): void {
  expect(answers.filter(({ cached }) => cached > 0).length).toBeGreaterThan(answers.length / 5);
  expect(new Set(answers.map(({ rung }) => rung))).toEqual(new Set(["exact"]));
}
