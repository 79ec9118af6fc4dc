/** The outbox: order, bounds, and what happens to batches that the log refuses, answers late, or never answers. */

import { beforeEach, describe, expect, it } from "vitest";
import { Outbox, type Parcel } from "./outbox.ts";

const parcel = (id: number, bytes = 10): Parcel => ({
  subject: "s",
  data: new Uint8Array(bytes),
  messageId: `${id}`,
});

interface Sent {
  readonly id: number;
  store(): void;
  refuse(forGood?: boolean): void;
}

let sent: Sent[];
let timers: { callback: () => void; delayMs: number }[];
let stored: number;
let dropped: string[];
let outbox: Outbox;

const send = ({ messageId }: Parcel) =>
  new Promise<void>((resolve, reject) => {
    sent.push({ id: Number(messageId), store: resolve, refuse: (forGood = false) => reject({ forGood }) });
  });
const ids = () => sent.map(({ id }) => id);
const settled = () => new Promise((resolve) => setImmediate(resolve));

beforeEach(() => {
  sent = [];
  timers = [];
  stored = 0;
  dropped = [];
  outbox = new Outbox({
    timers: {
      setTimeout: (callback, delayMs) => timers[timers.push({ callback, delayMs }) - 1],
      clearTimeout: (handle) => {
        timers = timers.filter((timer) => timer !== handle);
      },
    },
    maxBytes: 5_000,
    maxInFlight: 3,
    onStored: () => {
      stored += 1;
    },
    onDropped: ({ messageId }) => dropped.push(messageId),
    onRetry: () => undefined,
  });
});

describe("outbox", () => {
  it("sends in order, so many at a time, and forgets what is stored", async () => {
    for (const id of [1, 2, 3, 4, 5]) outbox.push(parcel(id));
    expect(ids()).toEqual([]);
    outbox.start(send);
    expect(ids()).toEqual([1, 2, 3]);
    // Answers may come in any order.
    sent[1]!.store();
    await settled();
    expect([ids(), outbox.length]).toEqual([[1, 2, 3], 5]);
    sent[0]!.store();
    await settled();
    expect([ids(), outbox.length]).toEqual([[1, 2, 3, 4, 5], 3]);
    for (const each of sent) each.store();
    await settled();
    expect([outbox.length, outbox.bytes, stored]).toEqual([0, 0, 5]);
  });

  it("after a failure sends again from the first that is not stored, later and later, without those that are", async () => {
    outbox.start(send);
    for (const id of [1, 2, 3, 4]) outbox.push(parcel(id));
    sent[1]!.store();
    sent[0]!.refuse();
    sent[2]!.refuse();
    await settled();
    expect(timers.map(({ delayMs }) => delayMs)).toEqual([100]);
    timers.splice(0)[0]!.callback();
    expect(ids()).toEqual([1, 2, 3, 1, 3]);
    sent[3]!.refuse();
    await settled();
    expect(timers.map(({ delayMs }) => delayMs)).toEqual([200]);
    timers.splice(0)[0]!.callback();
    for (const each of sent.slice(5)) each.store();
    await settled();
    expect(ids().slice(5)).toEqual([1, 3, 4]);
  });

  it("drops what the log refuses for good, and goes on", async () => {
    outbox.start(send);
    for (const id of [1, 2]) outbox.push(parcel(id));
    sent[0]!.refuse(true);
    sent[1]!.store();
    await settled();
    expect([dropped, outbox.length, timers.length]).toEqual([["1"], 0, 0]);
  });

  it("keeps at most its bytes, drops what comes after, and takes more when there is room", async () => {
    for (let id = 0; id < 10; id += 1) outbox.push(parcel(id, 1_000));
    expect(outbox.length).toBe(3);
    expect(outbox.bytes).toBeLessThanOrEqual(5_000);
    expect(dropped).toHaveLength(7);
    outbox.start(send);
    for (const each of sent) each.store();
    await settled();
    outbox.push(parcel(99, 1_000));
    expect([ids().at(-1), dropped.length]).toEqual([99, 7]);
  });

  it("sends all again by the next connection; answers of the last one still count", async () => {
    outbox.start(send);
    for (const id of [1, 2, 3, 4]) outbox.push(parcel(id));
    outbox.stop();
    outbox.push(parcel(5));
    expect(ids()).toEqual([1, 2, 3]);
    sent[0]!.store();
    // A failure of the connection that is over begins no retry.
    sent[1]!.refuse();
    await settled();
    expect(timers).toEqual([]);
    outbox.start(send);
    expect(ids()).toEqual([1, 2, 3, 2, 3, 4]);
  });

  it("tells when it is empty", async () => {
    await outbox.emptied();
    outbox.push(parcel(1));
    let isEmpty = false;
    const emptied = outbox.emptied().then(() => {
      isEmpty = true;
    });
    await settled();
    expect(isEmpty).toBe(false);
    outbox.start(send);
    sent[0]!.store();
    await emptied;
  });
});
