/** Server-sent events from bytes split anywhere, at little cost: lines are found in bytes and decoded whole. */

const NEWLINE = 10;
const RETURN = 13;
const DATA = Buffer.from("data:");

/** Longer than any chunk an engine sends; a stream without line ends must not fill the memory. */
const MAX_LINE_BYTES = 16 * 1024 * 1024;

export interface SseParser {
  /** Errors: RangeError when a line exceeds 16 MiB. */
  push(chunk: Uint8Array): void;
}

/** Calls `onData` with the data of each event (several data lines joined by a newline); comments and other fields are skipped. */
export function sseParser(onData: (data: string) => void): SseParser {
  let rest: Buffer | null = null;
  let data: string | null = null;

  const line = (bytes: Buffer, start: number, end: number): void => {
    const stop = end > start && bytes[end - 1] === RETURN ? end - 1 : end;
    if (stop === start) {
      if (data !== null) onData(data);
      data = null;
      return;
    }
    if (!startsWithData(bytes, start, stop)) return;
    const from = start + DATA.length;
    const text = bytes.toString("utf8", bytes[from] === 32 && from < stop ? from + 1 : from, stop);
    data = data === null ? text : `${data}\n${text}`;
  };

  return {
    push(chunk) {
      const fresh = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
      const bytes: Buffer = rest === null ? fresh : Buffer.concat([rest, fresh]);
      let start = 0;
      // What was kept holds no line end, so the search starts behind it.
      let end = bytes.indexOf(NEWLINE, rest === null ? 0 : rest.length);
      while (end !== -1) {
        line(bytes, start, end);
        start = end + 1;
        end = bytes.indexOf(NEWLINE, start);
      }
      rest = start === bytes.length ? null : Buffer.from(bytes.subarray(start));
      if (rest !== null && rest.length > MAX_LINE_BYTES)
        throw new RangeError("A line of the stream exceeds 16 MiB.");
    },
  };
}

function startsWithData(bytes: Buffer, start: number, stop: number): boolean {
  if (stop - start < DATA.length) return false;
  for (let i = 0; i < DATA.length; i++) if (bytes[start + i] !== DATA[i]) return false;
  return true;
}
