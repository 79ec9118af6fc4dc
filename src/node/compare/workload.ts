/** What is asked: shared system prompts × users × turns (parameters of llm-d's b2b-saas stress), endless and seeded. */

import { permutation, type Random, seeded } from "./random.ts";
import { DEFAULT_TOKENS_PER_WORD, filler } from "./text.ts";

export interface ChatMessage {
  readonly role: string;
  readonly content: unknown;
}

/** An OpenAI chat request; the client adds streaming, usage and model. */
export interface ChatRequest {
  readonly messages: readonly ChatMessage[];
  readonly [field: string]: unknown;
}

/** One conversation. `next` takes the model's answer to the turn before (null: none, or it failed) and returns null at the end. */
export interface Session {
  next(answer: string | null): ChatRequest | null;
}

export interface Workload {
  /** Sent once, unmeasured, before anything else: brings caches near their steady state. */
  warmUp(): readonly ChatRequest[];
  /** The i-th conversation, null when there are no more. */
  session(index: number): Session | null;
  /** Turns of a conversation, for open loops to mix new ones and running ones. */
  readonly turns: number;
  /** Arrival of session i in ms from the start, where the workload itself says so. */
  readonly arrivalsMs: readonly number[] | null;
}

/** Lengths in tokens. */
export interface SharedPromptsSpec {
  readonly groups: number;
  readonly usersPerGroup: number;
  readonly turns: number;
  readonly systemTokens: number;
  readonly questionTokens: number;
  readonly outputTokens: number;
  /** Questions and answers vary uniformly by ± this fraction. */
  readonly spread: number;
  readonly seed: number;
  /** Put before every system prompt, so that no other run's cache serves this one; empty: none. */
  readonly salt: string;
  readonly tokensPerWord?: number;
}

/**
 * Users of all groups in random order, each holding one conversation of `turns` questions that carries the model's own answers;
 * after all users were served once, new users of the same groups follow.
 */
export function sharedPrompts(spec: SharedPromptsSpec): Workload {
  const ratio = spec.tokensPerWord ?? DEFAULT_TOKENS_PER_WORD;
  const users = spec.groups * spec.usersPerGroup;
  const systems = new Map<number, string>();
  const orders = new Map<number, Uint32Array>();

  const system = (group: number): string => {
    const known = systems.get(group);
    if (known !== undefined) return known;
    const head = `${spec.salt === "" ? "" : `Run ${spec.salt}. `}Tenant ${spec.seed}-${group}. `;
    const text = head + filler(spec.systemTokens, ratio, seeded(spec.seed, "system", group));
    systems.set(group, text);
    return text;
  };
  const order = (epoch: number): Uint32Array => {
    const known = orders.get(epoch);
    if (known !== undefined) return known;
    const made = permutation(users, seeded(spec.seed, "order", epoch));
    orders.set(epoch, made);
    return made;
  };

  return {
    turns: spec.turns,
    arrivalsMs: null,
    warmUp: () =>
      Array.from(permutation(spec.groups, seeded(spec.seed, "warm-up")), (group) => ({
        messages: [
          { role: "system", content: system(group) },
          { role: "user", content: "Ready?" },
        ],
        max_tokens: 1,
      })),
    session: (index) => {
      const user = order(Math.floor(index / users))[index % users]!;
      return conversation(spec, ratio, system(user % spec.groups), seeded(spec.seed, "user", index));
    },
  };
}

function conversation(spec: SharedPromptsSpec, ratio: number, system: string, random: Random): Session {
  const messages: ChatMessage[] = [{ role: "system", content: system }];
  let turn = 0;
  return {
    next(answer) {
      if (turn === spec.turns || (turn > 0 && answer === null)) return null;
      if (answer !== null) messages.push({ role: "assistant", content: answer });
      turn++;
      const question = filler(varied(spec.questionTokens, spec.spread, random), ratio, random);
      messages.push({ role: "user", content: question });
      // The length of answers is forced, for throughput is only comparable when every run generates the same amount.
      const maxTokens = Math.max(1, Math.round(varied(spec.outputTokens, spec.spread, random)));
      return { messages: [...messages], max_tokens: maxTokens, ignore_eos: true };
    },
  };
}

function varied(mean: number, spread: number, random: Random): number {
  return mean * (1 + spread * (2 * random() - 1));
}
