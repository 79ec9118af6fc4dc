/** Streams: the same events and figures however the bytes are split; what a stream says about its end is believed. */

import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { chatStream } from "./chat-stream.ts";
import { sseParser } from "./sse.ts";

function events(chunks: readonly Uint8Array[]): string[] {
  const found: string[] = [];
  const parser = sseParser((data) => found.push(data));
  for (const chunk of chunks) parser.push(chunk);
  return found;
}

function split(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const at = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  return [0, ...at].map((from, i) => bytes.subarray(from, at[i] ?? bytes.length));
}

const STREAM =
  ': keep-alive\n\ndata: {"a":"é—🙂"}\r\n\r\nevent: x\ndata:two\ndata: lines\n\nid: 1\n\ndata:\n\ndata: [DONE]\n\n' +
  "data: without a blank line\n";
const EVENTS = ['{"a":"é—🙂"}', "two\nlines", "", "[DONE]"];

describe("sseParser", () => {
  test("finds the events, skips comments and other fields, waits for the blank line", () => {
    expect(events([Buffer.from(STREAM)])).toEqual(EVENTS);
  });

  test("finds the same events under any split", () => {
    const bytes = Buffer.from(STREAM);
    fc.assert(
      fc.property(fc.array(fc.nat(bytes.length), { maxLength: 12 }), (cuts) => {
        expect(events(split(bytes, cuts))).toEqual(EVENTS);
      }),
    );
    expect(
      events(
        split(
          bytes,
          Array.from({ length: bytes.length }, (_, i) => i),
        ),
      ),
    ).toEqual(EVENTS);
  });

  test("does not keep views of reused buffers", () => {
    const found: string[] = [];
    const parser = sseParser((data) => found.push(data));
    const shared = Buffer.from("data: ab");
    parser.push(shared);
    shared.fill(120);
    parser.push(Buffer.from("c\n\n"));
    expect(found).toEqual(["abc"]);
  });

  test("refuses an endless line", () => {
    const parser = sseParser(() => {});
    const megabyte = Buffer.alloc(1024 * 1024, 97);
    expect(() => {
      for (let i = 0; i < 20; i++) parser.push(megabyte);
    }).toThrow(RangeError);
  });
});

describe("chatStream", () => {
  const data = (value: unknown): string =>
    `data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`;
  const delta = (delta: object): string => data({ choices: [{ index: 0, delta }] });
  function read(text: string): { stream: ReturnType<typeof chatStream>; texts: number } {
    let texts = 0;
    const stream = chatStream(() => texts++);
    stream.push(Buffer.from(text));
    return { stream, texts };
  }

  test("joins the answer and counts only chunks with text", () => {
    const { stream, texts } = read(
      delta({ role: "assistant", content: "" }) +
        delta({ content: "Hel" }) +
        delta({ content: "lo" }) +
        delta({}) +
        data({
          choices: [],
          usage: { prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 4 } },
        }) +
        data("[DONE]"),
    );
    expect(texts).toBe(2);
    expect(stream.text).toBe("Hello");
    expect(stream.usage).toEqual({ promptTokens: 9, completionTokens: 2, cachedTokens: 4 });
    expect(stream.done).toBe(true);
    expect(stream.error).toBeNull();
  });

  test("tells unknown cached tokens from none", () => {
    expect(read(data({ usage: { prompt_tokens: 1 } })).stream.usage?.cachedTokens).toBeNull();
    const none = { usage: { prompt_tokens: 1, prompt_tokens_details: { cached_tokens: 0 } } };
    expect(read(data(none)).stream.usage?.cachedTokens).toBe(0);
  });

  test("keeps the first in-band error", () => {
    const { stream } = read(
      data({ error: { message: "m", code: "stream_stalled" } }) + data({ error: "later" }),
    );
    expect(stream.error).toBe("stream_stalled");
    expect(stream.done).toBe(false);
  });

  test("calls what is not JSON malformed", () => {
    expect(read(data("{oops")).stream.error).toBe("malformed_stream");
  });
});
