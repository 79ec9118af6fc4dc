/** Seeded prompts of many kinds that share prefixes: chats with turns, tools and odd scripts, completions as text and as token ids. */

import { MODEL } from "./engine.ts";
import type { Body } from "./kedge.ts";

const WORDS = (
  "the tide lifts a quiet boat beyond harbour lights while seven lanterns drift 12 3.14 0x1F café naïve Ünïcödé e\u0301te\u0301 " +
  "東京 の 潮 は 静か 江河湖海 море прилив שלום مرحبا हिन्दी 🌊 👩‍👩‍👧 return x += 1; {} [] <b> \t \n\n  don't it's WE'LL I'D <|im_start|>"
).split(" ");

/** Uniform in [0, 1), the same for the same seed (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export interface PromptOptions {
  /** Most words of one text. */
  readonly words: number;
  readonly salts?: readonly string[];
  readonly models?: readonly string[];
}

interface Message {
  readonly role: string;
  readonly content: unknown;
}

/** An endless mix. Answers are one token, so that what is cached comes from prompts alone. */
export class Prompts {
  readonly #random: () => number;
  readonly #options: PromptOptions;
  readonly #systems: readonly string[];
  readonly #chats: Message[][] = [];
  readonly #texts: string[] = [];
  readonly #ids: number[][] = [];

  constructor(seed: number, options: PromptOptions) {
    this.#random = seeded(seed);
    this.#options = options;
    this.#systems = Array.from({ length: 4 }, () => this.#text());
  }

  next(): Body {
    const kinds = [() => this.#chat(), () => this.#chat(), () => this.#completion(), () => this.#tokens()];
    const { salts = [], models = [MODEL] } = this.#options;
    const salt = this.#random() < 0.3 ? this.#pick([...salts, undefined]) : undefined;
    return {
      model: this.#pick(models),
      ...this.#pick(kinds)(),
      ...(salt !== undefined && { cache_salt: salt }),
      max_tokens: 1,
      stream: this.#random() < 0.5,
    };
  }

  /** A new chat, one more turn of an old one, or an old one again. */
  #chat(): Body {
    const draw = this.#random();
    const known = this.#chats.length === 0 || draw < 0.3 ? null : this.#pick(this.#chats);
    const before = known ?? [{ role: "system", content: this.#pick(this.#systems) }];
    const turns =
      known === null
        ? [this.#user()]
        : draw < 0.8
          ? [{ role: "assistant", content: this.#text() }, this.#user()]
          : [];
    const messages = [...before, ...turns];
    if (this.#length(messages) > this.#options.words * 60) return this.#completion();
    this.#chats.push(messages);
    return { messages, ...(this.#random() < 0.2 && { tools: [TOOL] }) };
  }

  #user(): Message {
    const text = this.#text();
    return { role: "user", content: this.#random() < 0.3 ? [{ type: "text", text }] : text };
  }

  #completion(): Body {
    const base = this.#texts.length === 0 || this.#random() < 0.4 ? "" : this.#pick(this.#texts);
    const cut = this.#random() < 0.3 ? base.slice(0, Math.floor(base.length * this.#random())) : base;
    const prompt = cut.length > this.#options.words * 12 ? cut : `${cut}${this.#text()}`;
    this.#texts.push(prompt);
    return { prompt: prompt !== "" && prompt.isWellFormed() ? prompt : `${this.#text()}.` };
  }

  /** Multiples of the block size are frequent: there the engine computes the last block anew. */
  #tokens(): Body {
    const base = this.#ids.length === 0 || this.#random() < 0.3 ? [] : this.#pick(this.#ids);
    const length = this.#random() < 0.5 ? 16 * this.#whole(1, 8) : this.#whole(1, 150);
    const room = Math.max(1, Math.min(length, this.#options.words * 5 - base.length));
    const added =
      this.#random() < 0.3 && base.length > 0
        ? []
        : Array.from({ length: room }, () => this.#whole(0, 150_000));
    const ids = [...base, ...added];
    this.#ids.push(ids);
    return { prompt: ids };
  }

  #length(messages: readonly Message[]): number {
    return JSON.stringify(messages).length;
  }

  #text(): string {
    return Array.from({ length: this.#whole(1, this.#options.words) }, () => this.#pick(WORDS)).join(" ");
  }

  #pick<T>(from: readonly T[]): T {
    return from[Math.floor(this.#random() * from.length)]!;
  }

  #whole(from: number, to: number): number {
    return from + Math.floor(this.#random() * (to - from + 1));
  }
}

const TOOL = {
  type: "function",
  function: {
    name: "tide",
    description: "Says when the tide turns.",
    parameters: { type: "object", properties: { harbour: { type: "string" } }, required: ["harbour"] },
  },
};
