/** Byte-level scanner of server-sent events: passes whole events on, finds first data, usage, errors and the end (design D9). */

import {
  type Failure,
  isPreamble,
  isRecord,
  isUsageChunk,
  readFailure,
  readUsage,
  tryParse,
  type Usage,
} from "./usage.ts";

const LF = 10;
const CR = 13;
const COLON = 58;
const SPACE = 32;
const BRACKET = 91;
const CLOSING_BRACKET = 93;
const DATA = [100, 97, 116, 97, 58] as const;

const bytesOf = (text: string): Uint8Array => new TextEncoder().encode(text);
const DONE = bytesOf("[DONE]");
const ERROR = bytesOf('{"error"');
const FLAT_ERROR = bytesOf('{"object":"error"');

/** Longest event that is held back until it is complete; a longer one passes in pieces. */
const MAX_HELD_BYTES = 256 * 1024;
/** Bytes of an event's end that decide where it ends: `\n\r\n`. */
const BOUNDARY_BYTES = 3;

/**
 * Events end with a blank line; lines end with LF or CRLF. Output holds only whole events (but for giants), so whatever happens
 * upstream, an event of the gateway's own can follow.
 */
export class SseScanner {
  /** Data events so far; `[DONE]`, usage chunks, errors and preambles are not counted. */
  dataEvents = 0;
  /** A chunk that only names the speaker has come before any data. */
  sawPreamble = false;
  sawDone = false;
  /** The first in-band error. */
  error: Failure | null = null;
  usage: Usage | null = null;
  /** Part of an event has been passed on and its end has not. */
  insideEvent = false;

  private readonly dropUsage: boolean;
  private readonly maxHeldBytes: number;
  private held = new Uint8Array(0);
  private heldLength = 0;
  /** Bytes of `held` that are known to hold no event end. */
  private scanned = 0;

  /** `dropUsage`: the client did not ask for the usage chunk, so it is read and left out. */
  constructor(dropUsage: boolean, maxHeldBytes: number = MAX_HELD_BYTES) {
    this.dropUsage = dropUsage;
    this.maxHeldBytes = maxHeldBytes;
  }

  /** True once anything but comments and preambles has come. */
  get started(): boolean {
    return this.dataEvents > 0 || this.sawDone || this.error !== null || this.usage !== null;
  }

  /** The beginning of an event is kept until its end comes. */
  get holding(): boolean {
    return this.heldLength > 0;
  }

  /** Appends to `out` what may go to the client: views of the chunk where possible, copies otherwise. Comments before the first data stay out. */
  push(chunk: Uint8Array, out: Uint8Array[]): void {
    if (this.heldLength === 0) {
      const rest = this.scan(chunk, 0, out, false);
      if (rest < chunk.length) this.hold(chunk.subarray(rest), this.scanned - rest);
    } else {
      this.hold(chunk, this.scanned);
      const all = this.held.subarray(0, this.heldLength);
      const rest = this.scan(all, this.scanned, out, true);
      this.held.copyWithin(0, rest, this.heldLength);
      this.heldLength -= rest;
      this.scanned -= rest;
    }
    if (this.heldLength > this.maxHeldBytes) this.letPass(out);
  }

  /** The upstream ended: a last event without its blank line counts if it is whole. True if the stream ended as streams do. */
  end(out: Uint8Array[]): boolean {
    if (this.heldLength > 0) {
      const event = this.held.slice(0, this.heldLength);
      this.heldLength = 0;
      if (this.insideEvent) out.push(event);
      else if (isWhole(event) && this.accept(event, 0, event.length)) {
        out.push(event);
        this.insideEvent = true;
      }
    }
    return this.sawDone || this.error !== null;
  }

  /** Lets go of the beginning of an event that is kept until its end comes: what follows will not pass through here. */
  release(out: Uint8Array[]): void {
    if (this.heldLength === 0) return;
    out.push(this.held.slice(0, this.heldLength));
    this.heldLength = 0;
    this.insideEvent = true;
  }

  /** Takes events from `bytes`; returns where the last incomplete one begins. Leaves in `scanned` how far was looked. */
  private scan(bytes: Uint8Array, from: number, out: Uint8Array[], copy: boolean): number {
    let start = 0;
    let passFrom = 0;
    let position = from;
    for (;;) {
      const end = this.findEnd(bytes, start, position);
      if (end < 0) break;
      if (!this.accept(bytes, start, end)) {
        pass(bytes, passFrom, start, out, copy);
        passFrom = end;
      }
      start = end;
      position = end;
    }
    pass(bytes, passFrom, start, out, copy);
    return start;
  }

  /** Index after the blank line that ends the event at `start`, or -1. */
  private findEnd(bytes: Uint8Array, start: number, from: number): number {
    if (!this.insideEvent && start < bytes.length) {
      if (bytes[start] === LF) return start + 1;
      if (bytes[start] === CR && bytes[start + 1] === LF) return start + 2;
    }
    let position = from;
    for (;;) {
      const lf = bytes.indexOf(LF, position);
      if (lf < 0) {
        this.scanned = bytes.length;
        return -1;
      }
      const next = bytes[lf + 1];
      if (next === LF) return lf + 2;
      if (next === CR && bytes[lf + 2] === LF) return lf + 3;
      if (next === undefined || (next === CR && lf + 2 >= bytes.length)) {
        this.scanned = lf;
        return -1;
      }
      position = lf + 1;
    }
  }

  /** Takes note of one event; false: it stays out. */
  private accept(bytes: Uint8Array, start: number, end: number): boolean {
    if (this.insideEvent) {
      this.insideEvent = false;
      return true;
    }
    const payload = dataStart(bytes, start);
    if (payload < 0) return this.acceptLines(bytes, start, end);
    const lineEnd = bytes.indexOf(LF, payload);
    if (lineEnd >= 0 && lineEnd < end - 2) return this.acceptLines(bytes, start, end);
    if (matches(bytes, payload, DONE)) {
      this.sawDone = true;
      return true;
    }
    const suspicious =
      !this.started ||
      matches(bytes, payload, ERROR) ||
      matches(bytes, payload, FLAT_ERROR) ||
      hasEmptyList(bytes, payload, end);
    if (suspicious) return this.acceptPayload(decode(bytes, payload, end));
    this.dataEvents++;
    return true;
  }

  /** An event of several lines, or none of data. */
  private acceptLines(bytes: Uint8Array, start: number, end: number): boolean {
    const payload = decode(bytes, start, end)
      .split(/\r?\n/)
      .filter((line) => line.startsWith("data:"))
      .map((line) => line.slice(line[5] === " " ? 6 : 5))
      .join("\n");
    if (payload === "") return this.started;
    if (payload.trim() !== "[DONE]") return this.acceptPayload(payload);
    this.sawDone = true;
    return true;
  }

  private acceptPayload(payload: string): boolean {
    const answer = tryParse(payload);
    if (isRecord(answer)) {
      if (isUsageChunk(answer)) {
        this.usage = readUsage(answer);
        return !this.dropUsage;
      }
      const failure = readFailure(answer);
      if (failure !== null) {
        this.error ??= failure;
        return true;
      }
      if (!this.started && isPreamble(answer)) {
        this.sawPreamble = true;
        return true;
      }
    }
    this.dataEvents++;
    return true;
  }

  private hold(bytes: Uint8Array, scanned: number): void {
    const length = this.heldLength + bytes.length;
    if (length > this.held.length) {
      const grown = new Uint8Array(Math.max(1024, length * 2));
      grown.set(this.held.subarray(0, this.heldLength));
      this.held = grown;
    }
    this.held.set(bytes, this.heldLength);
    this.heldLength = length;
    this.scanned = Math.max(0, scanned);
  }

  /** Memory is bounded: the event that is too long to hold passes, judged by its first bytes. */
  private letPass(out: Uint8Array[]): void {
    const cut = this.heldLength - BOUNDARY_BYTES;
    if (!this.insideEvent) {
      this.insideEvent = true;
      const payload = dataStart(this.held, 0);
      if (payload >= 0 && matches(this.held, payload, ERROR))
        this.error ??= { message: "oversized error event", status: null };
      else this.dataEvents++;
    }
    out.push(this.held.slice(0, cut));
    this.held.copyWithin(0, cut, this.heldLength);
    this.heldLength = BOUNDARY_BYTES;
    this.scanned = Math.max(0, this.scanned - cut);
  }
}

function pass(bytes: Uint8Array, from: number, to: number, out: Uint8Array[], copy: boolean): void {
  if (to > from) out.push(copy ? bytes.slice(from, to) : bytes.subarray(from, to));
}

/** Index of the payload if the event opens with a data line, else -1. */
function dataStart(bytes: Uint8Array, start: number): number {
  for (let i = 0; i < DATA.length; i++) if (bytes[start + i] !== DATA[i]) return -1;
  const payload = start + DATA.length;
  return bytes[payload] === SPACE ? payload + 1 : payload;
}

function matches(bytes: Uint8Array, at: number, text: Uint8Array): boolean {
  for (let i = 0; i < text.length; i++) if (bytes[at + i] !== text[i]) return false;
  return true;
}

/** A usage chunk has an empty list of choices; few others hold an empty list, so few are parsed. */
function hasEmptyList(bytes: Uint8Array, from: number, end: number): boolean {
  let open = bytes.indexOf(BRACKET, from);
  while (open >= 0 && open < end) {
    let next = open + 1;
    while (bytes[next] === SPACE) next++;
    if (bytes[next] === CLOSING_BRACKET) return true;
    open = bytes.indexOf(BRACKET, next);
  }
  return false;
}

const decoder = new TextDecoder();

function decode(bytes: Uint8Array, start: number, end: number): string {
  return decoder.decode(bytes.subarray(start, end));
}

/** Without its blank line only an event of comment, `[DONE]` or complete JSON is known to be whole. */
function isWhole(event: Uint8Array): boolean {
  if (event[0] === COLON) return true;
  const payload = dataStart(event, 0);
  if (payload < 0) return false;
  const text = decode(event, payload, event.length).trim();
  return text === "[DONE]" || tryParse(text) !== null;
}
