/** A web client's answer waits for its reader, ends as it was ended, and its host is kept from leaving before that. */

import { describe, expect, it } from "vitest";
import { type AnswerWriter, WebClient } from "./client.ts";

const bytes = (length: number) => new Uint8Array(length);

/** A client with a host that says which work it was asked to see through. */
function open(init: RequestInit = {}) {
  const work: Promise<unknown>[] = [];
  const client = new WebClient(new Request("http://gateway/", init), {
    waitUntil: (given) => {
      work.push(given);
    },
  });
  let gone = 0;
  client.onGone(() => {
    gone++;
  });
  return { client, over: () => Promise.all(work), gone: () => gone };
}

/** Writes until the writer says that it has enough. */
function fill(writer: AnswerWriter): number {
  let written = 0;
  while (written < 10_000_000) {
    written += 16_384;
    if (!writer.write(bytes(16_384))) return written;
  }
  throw new Error("the writer is never full");
}

describe("a streamed answer", () => {
  it("holds its writer back until it is read, and loses nothing", async () => {
    const { client, over } = open();
    let drained: () => void = () => {};
    const drains = new Promise<void>((resolve) => {
      drained = resolve;
    });
    const writer = client.begin(200, { "content-type": "text/event-stream" }, () => drained());
    const written = fill(writer);
    expect(written).toBeLessThan(200_000);
    const response = await client.response;
    expect(response.headers.get("content-type")).toBe("text/event-stream");
    const reading = response.arrayBuffer();
    await drains;
    writer.write(bytes(7));
    writer.end();
    expect((await reading).byteLength).toBe(written + 7);
    await over();
  });

  it("whose reader leaves says so once, and takes what is still written", async () => {
    const { client, over, gone } = open();
    const writer = client.begin(200, {}, () => {});
    const response = await client.response;
    writer.write(bytes(1));
    await response.body!.cancel();
    await over();
    expect(gone()).toBe(1);
    writer.write(bytes(1));
    writer.end();
    expect(gone()).toBe(1);
  });

  it("takes an error and an end while it is piped into, and sends them after the rest", async () => {
    const { client, over } = open();
    const writer = client.begin(200, {}, () => {});
    let rest!: ReadableStreamDefaultController<Uint8Array>;
    const source = new ReadableStream<Uint8Array>({
      start: (controller) => {
        rest = controller;
      },
    });
    writer.write(new TextEncoder().encode("a"));
    const piped = writer.pipe!(source);
    const reading = client.response.then((response) => response.text());
    rest.enqueue(new TextEncoder().encode("b"));
    writer.write(new TextEncoder().encode("c"));
    writer.end();
    rest.error(new Error("cut"));
    expect(await piped).toBe("cut");
    expect(await reading).toMatch(/^ab?c$/);
    await over();
  });

  it("whose reader leaves while it is piped into lets go of the source", async () => {
    const { client, over, gone } = open();
    const writer = client.begin(200, {}, () => {});
    let cancelled: () => void = () => {};
    const letGo = new Promise<void>((resolve) => {
      cancelled = resolve;
    });
    const source = new ReadableStream<Uint8Array>({
      pull: (controller) => controller.enqueue(bytes(16)),
      cancel: () => cancelled(),
    });
    const piped = writer.pipe!(source);
    const reader = (await client.response).body!.getReader();
    await reader.read();
    await reader.cancel();
    expect(await piped).toBe("gone");
    expect(gone()).toBe(1);
    await Promise.all([letGo, over()]);
  });
});

describe("the host", () => {
  it("is asked to stay until a whole answer is sent", async () => {
    const { client, over } = open();
    client.send(200, {}, "answer");
    expect(await (await client.response).text()).toBe("answer");
    await over();
  });

  it("is asked to stay until a client's leaving has been told, and it is told once", async () => {
    const leaving = new AbortController();
    const { client, over, gone } = open({ signal: leaving.signal });
    leaving.abort();
    await over();
    expect((await client.response).status).toBe(499);
    expect(gone()).toBe(1);
    client.send(200, {}, "too late");
    expect(gone()).toBe(1);
  });

  it("hears at once of a client that has left before", async () => {
    const { over, gone } = open({ signal: AbortSignal.abort() });
    await over();
    expect(gone()).toBe(1);
  });
});
