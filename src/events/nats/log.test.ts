/** The log's reading end: what is acknowledged, once, when deliveries, connections and logs come again. */

import { expect, it } from "vitest";
import { encodeKvBatch } from "../codec.ts";
import type { Link, LogMessage } from "./connection.ts";
import { LogReader } from "./log.ts";

const BATCH = { worker: "w", rank: 0, incarnation: "one", model: "m", ops: [] };

/** A connection whose log delivers what the test says, and the acknowledgements that went out by it. */
function connection() {
  const acknowledged: number[] = [];
  let handler: ((message: LogMessage) => void) | null = null;
  const link: Pick<Link, "consume"> = {
    consume: async (_settings, hear) => {
      handler = hear;
      return { stop: () => undefined, lost: new Promise(() => undefined) };
    },
  };
  const deliver = (sequence: number, redelivered = false) =>
    handler!({
      subject: "kedge.kv.r.c.n.w",
      data: encodeKvBatch({ ...BATCH, sequence }),
      sequence,
      redelivered,
      pending: 0,
      ack: () => acknowledged.push(sequence),
      nak: () => undefined,
      term: () => undefined,
    });
  return { link: link as Link, deliver, acknowledged };
}

async function setUp() {
  const reader = new LogReader({
    consumer: { stream: "KV", durable: "d", ackWaitMs: 1_000, maxAckPending: 10 },
    ensureStream: async () => undefined,
    retryMs: 1,
    retryMaxMs: 1,
    pause: async () => undefined,
    onError: (thrown) => {
      throw thrown;
    },
  });
  const done: (() => void)[] = [];
  reader.add((_batch, finished) => done.push(finished));
  const attach = async () => {
    const made = connection();
    reader.attach(made.link);
    await new Promise(setImmediate);
    return made;
  };
  return { reader, done, attach };
}

it("acknowledges by the connection that there is what was delivered by one that has ended", async () => {
  const { reader, done, attach } = await setUp();
  const before = await attach();
  before.deliver(1);
  reader.detach();
  const after = await attach();
  after.deliver(1, true);
  done[0]();
  expect([before.acknowledged, after.acknowledged]).toEqual([[], [1]]);
  done[1]();
  expect(after.acknowledged).toEqual([1]);
  expect(reader.unfinished).toBe(0);
});

it("does not take a message of a log that was made again for the one that had its place before", async () => {
  const { reader, done, attach } = await setUp();
  (await attach()).deliver(1);
  reader.detach();
  const after = await attach();
  after.deliver(1);
  done[0]();
  expect(after.acknowledged).toEqual([]);
  done[1]();
  expect(after.acknowledged).toEqual([1]);
});

it("acknowledges once what is done with when it comes again by the same connection", async () => {
  const { done, attach } = await setUp();
  const { deliver, acknowledged } = await attach();
  deliver(1);
  deliver(1, true);
  for (const finished of done) finished();
  expect(acknowledged).toEqual([1]);
});
