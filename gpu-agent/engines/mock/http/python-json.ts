/** Says where and why JSON is broken in the words of Python's decoder, which vLLM puts into its 400s. */

export interface JsonFault {
  readonly position: number;
  readonly message: string;
}

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /true|false|null|NaN|-?Infinity/y;

class Scanner {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  document(): void {
    this.#skip(SPACE);
    this.#value();
    this.#skip(SPACE);
    if (this.#at < this.#text.length) this.#fail("Extra data");
  }

  #fail(message: string, position = this.#at): never {
    throw new Fault({ position, message });
  }

  #skip(pattern: RegExp): boolean {
    pattern.lastIndex = this.#at;
    if (!pattern.test(this.#text)) return false;
    const moved = pattern.lastIndex > this.#at;
    this.#at = pattern.lastIndex;
    return moved;
  }

  #take(char: string): boolean {
    if (this.#text[this.#at] !== char) return false;
    this.#at++;
    return true;
  }

  #value(): void {
    if (this.#take("{")) this.#object();
    else if (this.#take("[")) this.#array();
    else if (this.#take('"')) this.#string();
    else if (!this.#skip(NUMBER) && !this.#skip(WORD)) this.#fail("Expecting value");
  }

  #object(): void {
    this.#skip(SPACE);
    if (this.#take("}")) return;
    for (;;) {
      if (!this.#take('"')) this.#fail("Expecting property name enclosed in double quotes");
      this.#string();
      this.#skip(SPACE);
      if (!this.#take(":")) this.#fail("Expecting ':' delimiter");
      this.#skip(SPACE);
      this.#value();
      this.#skip(SPACE);
      if (this.#take("}")) return;
      if (!this.#take(",")) this.#fail("Expecting ',' delimiter");
      this.#skip(SPACE);
    }
  }

  #array(): void {
    this.#skip(SPACE);
    if (this.#take("]")) return;
    for (;;) {
      this.#value();
      this.#skip(SPACE);
      if (this.#take("]")) return;
      if (!this.#take(",")) this.#fail("Expecting ',' delimiter");
      this.#skip(SPACE);
    }
  }

  #string(): void {
    const start = this.#at - 1;
    for (;;) {
      const char = this.#text[this.#at];
      if (char === undefined) this.#fail("Unterminated string starting at", start);
      if (char < " ") this.#fail("Invalid control character at");
      this.#at++;
      if (char === '"') return;
      if (char === "\\") this.#escape();
    }
  }

  #escape(): void {
    const char = this.#text[this.#at];
    if (char === undefined || !'"\\/bfnrtu'.includes(char)) this.#fail("Invalid \\escape", this.#at - 1);
    this.#at++;
    if (char === "u" && !this.#skip(/[0-9a-fA-F]{4}/y)) this.#fail("Invalid \\uXXXX escape");
  }
}

class Fault extends Error {
  readonly fault: JsonFault;

  constructor(fault: JsonFault) {
    super(fault.message);
    this.fault = fault;
  }
}

/** The first fault of `text`, or null if Python would read it. */
export function pythonJsonFault(text: string): JsonFault | null {
  try {
    new Scanner(text).document();
    return null;
  } catch (error) {
    if (error instanceof Fault) return error.fault;
    if (error instanceof RangeError) return { position: 0, message: "Expecting value" };
    throw error;
  }
}
