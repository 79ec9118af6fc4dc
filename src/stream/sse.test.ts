/** The event scanner gives the same bytes and findings however the stream is cut into chunks. */

import { readFileSync } from "node:fs";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { SseScanner } from "./sse.ts";

const encode = (text: string) => new TextEncoder().encode(text);
const chunkOf = (content: string) =>
  `{"choices":[{"index":0,"delta":{"content":${JSON.stringify(content)}}}]}`;
const USAGE =
  '{"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}';

interface Run {
  text: string;
  scanner: SseScanner;
  clean: boolean;
}

function run(chunks: readonly Uint8Array[], dropUsage = true, maxHeld?: number): Run {
  const scanner = new SseScanner(dropUsage, maxHeld);
  const out: Uint8Array[] = [];
  for (const chunk of chunks) scanner.push(chunk, out);
  const clean = scanner.end(out);
  const text = new TextDecoder().decode(Buffer.concat(out));
  return { text, scanner, clean };
}

function split(bytes: Uint8Array, cuts: readonly number[]): Uint8Array[] {
  const points = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  return [...points, bytes.length].map((end, i) => bytes.slice(i === 0 ? 0 : points[i - 1], end));
}

const findings = ({ text, scanner, clean }: Run) => ({
  text,
  clean,
  data: scanner.dataEvents,
  preamble: scanner.sawPreamble,
  done: scanner.sawDone,
  error: scanner.error,
  usage: scanner.usage,
});

const eventText = fc.oneof(
  fc.string({ unit: "binary" }).map((content) => `data: ${chunkOf(content)}`),
  fc.constant(`data: ${USAGE}`),
  fc.constant(`data:${USAGE}`),
  fc.constant(": ping"),
  fc.constant(
    'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
  ),
  fc.constant('data: {"error":{"message":"boom"}}'),
  fc.constant(`event: message\ndata: ${chunkOf("lines")}`),
  fc.constant('data: {"choices":[\ndata: ],"usage":{"prompt_tokens":4}}'),
  fc.constant("id: 7"),
  fc.constant("data: not json [] at all"),
);
const streamText = fc
  .tuple(fc.array(fc.tuple(eventText, fc.boolean()), { maxLength: 8 }), fc.boolean())
  .map(([events, done]) =>
    [...events, ...(done ? [["data: [DONE]", false] as const] : [])]
      .map(([text, crlf]) => (crlf ? `${text.replaceAll("\n", "\r\n")}\r\n\r\n` : `${text}\n\n`))
      .join(""),
  );

describe("SseScanner", () => {
  it("finds and passes the same whatever the split points", () => {
    fc.assert(
      fc.property(streamText, fc.array(fc.nat(), { maxLength: 12 }), fc.boolean(), (text, cuts, drop) => {
        const bytes = encode(text);
        expect(findings(run(split(bytes, cuts), drop))).toEqual(findings(run([bytes], drop)));
      }),
      { numRuns: 400 },
    );
  });

  it("passes every byte of a recorded stream at every single split point, minus only the usage chunk", () => {
    const recorded = readFileSync("test/fixtures/vllm/http/default-flags.jsonl", "utf8")
      .trim()
      .split("\n")
      .map(
        (line) =>
          JSON.parse(line) as { case?: string; name?: string; step?: string; response: { body: string } },
      )
      .find((entry) => JSON.stringify(entry).includes("chat-stream-usage-1"));
    const body = recorded!.response.body;
    const bytes = encode(body);
    const usageEvent = body.split("\n\n").find((event) => event.includes('"choices":[]'))!;
    const without = body.replace(`${usageEvent}\n\n`, "");
    expect(without.length).toBeLessThan(body.length);
    for (let cut = 0; cut <= bytes.length; cut++) {
      const chunks = [bytes.slice(0, cut), bytes.slice(cut)];
      const dropped = run(chunks);
      expect(dropped.text).toBe(without);
      expect(dropped.scanner.usage?.promptTokens).toBeGreaterThan(0);
      expect(dropped.clean).toBe(true);
      expect(run(chunks, false).text).toBe(body);
    }
  });

  it("passes whole events only, so that an error of the gateway's own can follow a cut", () => {
    fc.assert(
      fc.property(fc.nat({ max: 400 }), (cut) => {
        const bytes = encode(`data: ${chunkOf("a")}\n\ndata: ${chunkOf("b")}\n\n`).slice(0, cut);
        const { text, clean, scanner } = run([bytes]);
        expect(text === "" || text.endsWith("\n\n") || scanner.insideEvent).toBe(true);
        expect(clean).toBe(false);
      }),
    );
  });

  it("keeps comments out before the first data, and lets them pass after it", () => {
    const first = `data: ${chunkOf("a")}\n\n`;
    const { text, scanner } = run([encode(": one\n\n"), encode(`: two\n\n${first}: three\n\n`)]);
    expect(text).toBe(`${first}: three\n\n`);
    expect(scanner.dataEvents).toBe(1);
  });

  it.each([
    ['data: {"error":{"message":"KV load failed","code":500}}\n\ndata: [DONE]\n\n', "KV load failed"],
    ['data: {"error": {"message": "spaced"}}\n\n', "spaced"],
    ['data: {"object":"error","message":"flat"}\n\n', "flat"],
    ['data: {"choices":[{"index":0,"finish_reason":"error"}]}\n\n', "generation failed"],
  ])("sees that a first event is a failure: %s", (text, message) => {
    const { scanner } = run([encode(text)]);
    expect(scanner.error?.message).toBe(message);
    expect(scanner.dataEvents).toBe(0);
  });

  it("does not take a chunk that only names the speaker for data: a recorded engine fails after it", () => {
    const recorded = readFileSync("test/fixtures/vllm/pd-nixl/pull.jsonl", "utf8")
      .trim()
      .split("\n")
      .map((line) => String(JSON.parse(line).decode?.response?.body))
      .find((text) => text.includes('"role":"assistant"') && text.includes('{"error"'))!;
    const { scanner } = run([encode(recorded)]);
    expect(scanner).toMatchObject({ sawPreamble: true, dataEvents: 0, sawDone: true });
    expect(scanner.error).toMatchObject({ status: 500 });
  });

  it.each([
    ['{"role":"assistant","content":""}', "null", 0],
    ['{"role":"assistant","content":null,"tool_calls":[]}', "null", 0],
    ["{}", "null", 0],
    ['{"role":"assistant","content":""}', '"stop"', 1],
    ['{"role":"assistant","content":" "}', "null", 1],
    ['{"reasoning":"hm"}', "null", 1],
    ['{"tool_calls":[{"index":0}]}', "null", 1],
  ])("delta %s with finish_reason %s holds %i data events", (delta, finish, expected) => {
    const event = `data: {"choices":[{"index":0,"delta":${delta},"finish_reason":${finish}}]}\n\n`;
    const { scanner, text } = run([encode(event)]);
    expect(scanner.dataEvents).toBe(expected);
    expect(text).toBe(event);
  });

  it("does not take generated text for an error, a usage chunk or an end", () => {
    const contents = [
      '{"error":1}',
      "data: [DONE]",
      '"choices":[],"usage":{"prompt_tokens":1}',
      "\n\ndata: x",
    ];
    const body = contents.map((content) => `data: ${chunkOf(content)}\n\n`).join("");
    const { text, scanner } = run([encode(body)]);
    expect(text).toBe(body);
    expect(scanner).toMatchObject({ dataEvents: 4, sawDone: false, error: null, usage: null });
  });

  it("holds a bounded amount: an event longer than the bound passes in pieces, whole in the end", () => {
    const long = `data: ${chunkOf("x".repeat(5_000))}\n\n`;
    const body = `${long}data: ${chunkOf("y")}\n\ndata: ${USAGE}\n\ndata: [DONE]\n\n`;
    fc.assert(
      fc.property(fc.array(fc.nat(), { minLength: 20, maxLength: 60 }), (cuts) => {
        const { text, scanner } = run(split(encode(body), cuts), true, 256);
        expect(text).toBe(body.replace(`data: ${USAGE}\n\n`, ""));
        expect(scanner).toMatchObject({ dataEvents: 2, sawDone: true, insideEvent: false });
      }),
    );
    const { scanner } = run([encode(long.slice(0, 2_000))], true, 256);
    expect(scanner.insideEvent).toBe(true);
  });

  it("accepts a last event without its blank line if it is whole, and drops half of one", () => {
    const first = `data: ${chunkOf("a")}\n\n`;
    expect(run([encode(`${first}data: [DONE]`)])).toMatchObject({
      clean: true,
      text: `${first}data: [DONE]`,
    });
    expect(run([encode(`${first}data: {"cho`)])).toMatchObject({ clean: false, text: first });
  });
});
