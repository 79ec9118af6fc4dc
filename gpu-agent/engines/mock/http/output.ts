/** One choice's output as text: incremental decoding that never splits a character, and stop strings. */

import type { FinishReason } from "../sequence.ts";
import type { Tokenizer } from "../tokenizer.ts";

const strict = new TextDecoder("utf-8", { fatal: true });
/** No character is longer; more bytes without a character are no UTF-8. */
const LONGEST_CHARACTER = 4;

/** Token id → its text, or null where its bytes are not whole characters. Filled as tokens occur. */
const tables = new WeakMap<Tokenizer, (string | null | undefined)[]>();

function wholeText(bytes: Uint8Array): string | null {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

function tokenText(tokenizer: Tokenizer, id: number): string | null {
  let table = tables.get(tokenizer);
  if (table === undefined) {
    table = [];
    tables.set(tokenizer, table);
  }
  let text = table[id];
  if (text === undefined) {
    text = tokenizer.isAdded(id) ? "" : wholeText(tokenizer.bytes(id));
    table[id] = text;
  }
  return text;
}

export interface StopRule {
  readonly strings: readonly string[];
  readonly include: boolean;
  /** Stop strings count only behind so many tokens. */
  readonly minTokens: number;
}

export class ChoiceOutput {
  readonly tokenIds: number[] = [];
  finish: FinishReason | null = null;
  /** The stop string that ended it. */
  stopReason: string | null = null;
  #text = "";
  #sent = 0;
  #pending: Uint8Array | null = null;
  #sentTokens = 0;
  readonly #tokenizer: Tokenizer;
  readonly #stop: StopRule;
  /** Characters held back because a stop string could begin in them. */
  readonly #hold: number;

  constructor(tokenizer: Tokenizer, stop: StopRule) {
    this.#tokenizer = tokenizer;
    this.#stop = stop;
    this.#hold = stop.strings.reduce((longest, text) => Math.max(longest, text.length - 1), 0);
  }

  get text(): string {
    return this.#text;
  }

  get tokensSinceDelta(): number {
    return this.tokenIds.length - this.#sentTokens;
  }

  /** Adds a token; true if a stop string ends the choice here. */
  push(token: number, finish: FinishReason | null): boolean {
    this.tokenIds.push(token);
    const before = this.#text.length;
    this.#append(token, finish !== null);
    this.finish = finish;
    if (this.#stop.strings.length === 0 || this.tokenIds.length < this.#stop.minTokens) return false;
    return this.#findStop(Math.max(0, before - this.#hold));
  }

  /** Text and token ids that may be sent now. */
  takeDelta(): { text: string; tokenIds: readonly number[] } {
    const end =
      this.finish === null ? Math.max(this.#sent, this.#text.length - this.#hold) : this.#text.length;
    const text = this.#text.slice(this.#sent, end);
    const tokenIds = this.tokenIds.slice(this.#sentTokens);
    this.#sent = end;
    this.#sentTokens = this.tokenIds.length;
    return { text, tokenIds };
  }

  #append(token: number, last: boolean): void {
    const text = this.#pending === null ? tokenText(this.#tokenizer, token) : null;
    if (text !== null) {
      this.#text += text;
      return;
    }
    const bytes = this.#tokenizer.isAdded(token) ? new Uint8Array(0) : this.#tokenizer.bytes(token);
    const joined = Buffer.concat([this.#pending ?? new Uint8Array(0), bytes]);
    const whole = wholeText(joined);
    if (whole === null && !last && joined.length < LONGEST_CHARACTER + bytes.length) {
      this.#pending = joined;
      return;
    }
    this.#text += whole ?? joined.toString("utf8");
    this.#pending = null;
  }

  #findStop(from: number): boolean {
    let best: { at: number; text: string } | null = null;
    for (const text of this.#stop.strings) {
      const at = this.#text.indexOf(text, from);
      if (at >= 0 && (best === null || at < best.at)) best = { at, text };
    }
    if (best === null) return false;
    this.#text = this.#text.slice(0, best.at + (this.#stop.include ? best.text.length : 0));
    this.finish = "stop";
    this.stopReason = best.text;
    return true;
  }
}
