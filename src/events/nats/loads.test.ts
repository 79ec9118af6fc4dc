/** Load reports: those of one moment go together, and no admitted request is forgotten while there is no connection. */

import { beforeEach, describe, expect, it } from "vitest";
import { KEY, load } from "../../../test/nats/samples.ts";
import type { LoadReport } from "../../fleet/types.ts";
import { LoadBuffer } from "./loads.ts";

let isConnected: boolean;
let sent: (readonly LoadReport[])[];
let buffer: LoadBuffer;

beforeEach(() => {
  isConnected = true;
  sent = [];
  buffer = new LoadBuffer((reports) => {
    if (isConnected) sent.push(reports);
    return isConnected;
  });
});

const other = { ...KEY, rank: 1 };

describe("load reports", () => {
  it("of one moment share a message, each once", async () => {
    buffer.add(load(1, ["a"]));
    buffer.add(load(1, [], other));
    await Promise.resolve();
    expect(sent).toEqual([[load(1, ["a"]), load(1, [], other)]]);
    buffer.flush();
    expect(sent).toHaveLength(1);
  });

  it("join while there is no connection: the latest figures, all admitted requests", async () => {
    isConnected = false;
    for (const sequence of [1, 2, 3]) {
      buffer.add(load(sequence, [`r${sequence}`]));
      await Promise.resolve();
    }
    isConnected = true;
    buffer.flush();
    expect(sent).toEqual([[load(3, ["r1", "r2", "r3"])]]);
  });

  it("are bounded: the oldest requests and the ranks longest unheard are forgotten", async () => {
    isConnected = false;
    for (let i = 0; i < 5_000; i += 1) buffer.add(load(i, [`r${i}`]));
    for (let rank = 1; rank <= 1_024; rank += 1) buffer.add(load(1, [], { ...KEY, rank }));
    buffer.add(load(5_000, ["last"]));
    isConnected = true;
    buffer.flush();
    expect(sent[0]).toHaveLength(1_024);
    expect(sent[0]!.at(-1)!.admitted).toEqual(["last"]);
    isConnected = false;
    for (let i = 0; i < 5_000; i += 1) buffer.add(load(i, [`r${i}`]));
    isConnected = true;
    buffer.flush();
    expect(sent[1]![0]!.admitted).toHaveLength(4_096);
    expect(sent[1]![0]!.admitted.at(-1)).toBe("r4999");
  });
});
