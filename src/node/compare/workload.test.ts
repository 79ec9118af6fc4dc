/** Workloads: the same seed asks the same questions; prefixes are shared as wanted; bad files are refused by line. */

import { describe, expect, test } from "vitest";
import { KedgeError } from "../../errors/index.ts";
import { chatsFile } from "./chats-file.ts";
import { permutation, seeded } from "./random.ts";
import { filler } from "./text.ts";
import { type ChatRequest, type SharedPromptsSpec, sharedPrompts } from "./workload.ts";

const SPEC: SharedPromptsSpec = {
  groups: 6,
  usersPerGroup: 3,
  turns: 3,
  systemTokens: 60,
  questionTokens: 20,
  outputTokens: 10,
  spread: 0.3,
  seed: 7,
  salt: "",
};

/** All requests of the first conversations, answered by rote. */
function requests(spec: SharedPromptsSpec, sessions: number): ChatRequest[] {
  const workload = sharedPrompts(spec);
  return Array.from({ length: sessions }, (_, i) => i).flatMap((i) => {
    const session = workload.session(i);
    const found: ChatRequest[] = [];
    for (
      let next = session?.next(null) ?? null;
      next !== null;
      next = session?.next(`answer ${found.length}`) ?? null
    ) {
      found.push(next);
    }
    return found;
  });
}

const system = (request: ChatRequest | undefined): unknown => request?.messages[0]?.content;

describe("shared prompts", () => {
  test("are the same for the same seed and differ for another", () => {
    expect(requests(SPEC, 30)).toEqual(requests(SPEC, 30));
    expect(requests({ ...SPEC, seed: 8 }, 30)).not.toEqual(requests(SPEC, 30));
  });

  test("do not depend on the order in which conversations are taken up", () => {
    const workload = sharedPrompts(SPEC);
    const later = workload.session(11)?.next(null);
    const first = workload.session(0)?.next(null);
    const fresh = sharedPrompts(SPEC);
    expect(fresh.session(0)?.next(null)).toEqual(first);
    expect(fresh.session(11)?.next(null)).toEqual(later);
  });

  test("serve every user once before new users come, whose questions are their own", () => {
    const firsts = requests({ ...SPEC, turns: 1 }, 2 * SPEC.groups * SPEC.usersPerGroup);
    const perGroup = new Map<unknown, number>();
    for (const request of firsts.slice(0, 18))
      perGroup.set(system(request), (perGroup.get(system(request)) ?? 0) + 1);
    expect([...perGroup.values()]).toEqual(Array(SPEC.groups).fill(SPEC.usersPerGroup));
    expect(new Set(firsts.map((request) => request.messages[1]?.content)).size).toBe(firsts.length);
    expect(new Set(firsts.map(system)).size).toBe(SPEC.groups);
  });

  test("carry the model's answers back and extend the same conversation", () => {
    const [first, second, third] = requests(SPEC, 1);
    expect(second?.messages.slice(0, 2)).toEqual(first?.messages);
    expect(second?.messages[2]).toEqual({ role: "assistant", content: "answer 1" });
    expect(third?.messages.slice(0, 4)).toEqual(second?.messages);
    expect(third?.messages.map((message) => message.role)).toEqual([
      "system",
      "user",
      "assistant",
      "user",
      "assistant",
      "user",
    ]);
  });

  test("end a conversation whose answer failed", () => {
    const session = sharedPrompts(SPEC).session(0);
    expect(session?.next(null)).not.toBeNull();
    expect(session?.next(null)).toBeNull();
  });

  test("are told apart from the first words on by group and by salt", () => {
    const plain = requests(SPEC, 18).map(system);
    const salted = requests({ ...SPEC, salt: "kv-7" }, 18).map(system);
    expect(new Set(plain.map((text) => String(text).slice(0, 16))).size).toBe(SPEC.groups);
    expect(salted.every((text) => String(text).startsWith("Run kv-7. "))).toBe(true);
  });

  test("warm up with every group's system prompt once", () => {
    const warm = sharedPrompts(SPEC).warmUp();
    expect(new Set(warm.map(system)).size).toBe(SPEC.groups);
    expect(warm).toHaveLength(SPEC.groups);
    expect(new Set(requests(SPEC, 18).map(system))).toEqual(new Set(warm.map(system)));
  });

  test("vary lengths within the spread", () => {
    const tokens = requests({ ...SPEC, outputTokens: 1000 }, 60).map((request) => Number(request.max_tokens));
    expect(Math.min(...tokens)).toBeGreaterThanOrEqual(700);
    expect(Math.max(...tokens)).toBeLessThanOrEqual(1300);
    expect(new Set(tokens).size).toBeGreaterThan(20);
  });
});

describe("random", () => {
  test("is uniform and never reaches 1", () => {
    const random = seeded(1, "x");
    const counts = new Array<number>(10).fill(0);
    for (let i = 0; i < 100_000; i++) {
      const value = random();
      expect(value).toBeLessThan(1);
      counts[Math.floor(value * 10)]!++;
    }
    // 10,000 per bin, standard deviation 95.
    for (const count of counts) expect(Math.abs(count - 10_000)).toBeLessThan(600);
  });

  test("permutes", () => {
    expect([...permutation(50, seeded(3))].sort((a, b) => a - b)).toEqual(
      Array.from({ length: 50 }, (_, i) => i),
    );
  });

  test("filler has the wanted number of words", () => {
    expect(filler(300, 1.5, seeded(1)).split(" ")).toHaveLength(200);
  });
});

describe("file of chats", () => {
  const line = (extra: object = {}): string =>
    JSON.stringify({ messages: [{ role: "user", content: "hi" }], ...extra });

  test("asks each line once, other fields kept", () => {
    const workload = chatsFile(`${line({ temperature: 0.5 })}\n\n${line({ max_tokens: 3 })}\n`, "");
    expect(workload.session(0)?.next(null)).toEqual({
      messages: [{ role: "user", content: "hi" }],
      temperature: 0.5,
    });
    expect(workload.session(1)?.next(null)).toMatchObject({ max_tokens: 3 });
    expect(workload.session(2)).toBeNull();
    expect(workload.arrivalsMs).toBeNull();
  });

  test("takes arrival times out of the requests", () => {
    const workload = chatsFile(`${line({ at_ms: 0 })}\n${line({ at_ms: 250 })}`, "");
    expect(workload.arrivalsMs).toEqual([0, 250]);
    expect(workload.session(1)?.next(null)).not.toHaveProperty("at_ms");
  });

  test("salts the first text", () => {
    const parts = JSON.stringify({ messages: [{ role: "user", content: [{ type: "text", text: "a" }] }] });
    const workload = chatsFile(`${line()}\n${parts}`, "s");
    expect(workload.session(0)?.next(null)?.messages).toEqual([{ role: "user", content: "Run s. hi" }]);
    expect(workload.session(1)?.next(null)?.messages[0]).toEqual({ role: "system", content: "Run s. " });
  });

  test.each([
    ["nothing", "", "holds no requests"],
    ["text", "hello", "line 1: is not JSON"],
    ["a list", "[]", "line 1: is not a JSON object"],
    ["no messages", `${line()}\n{"prompt":"x"}`, "line 2: has no `messages`"],
    ["a bad time", line({ at_ms: -1 }), "`at_ms` is not a time"],
    ["some times", `${line({ at_ms: 1 })}\n${line()}`, "1 of 2 lines have at_ms"],
    ["times that go back", `${line({ at_ms: 2 })}\n${line({ at_ms: 1 })}`, "must not decrease"],
  ])("is refused with %s", (_, text, message) => {
    expect(() => chatsFile(text, "")).toThrowError(KedgeError);
    expect(() => chatsFile(text, "")).toThrowError(message);
  });
});
