/** Subjects: any name is one safe token, no two names share one, and permissions can be written in them. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { consumerName, messageId, placeOf, Subjects, token } from "./subjects.ts";

const anyText = fc.string({ maxLength: 200, unit: "binary" });
const PLACE = { region: "eu", cluster: "a.b", node: "gpu 7" };

describe("tokens", () => {
  it("are safe and of bounded length, whatever the text", () => {
    fc.assert(
      fc.property(anyText, (text) => {
        expect(token(text)).toMatch(/^[A-Za-z0-9_=-]{1,96}$/);
      }),
    );
  });

  it("are injective", () => {
    fc.assert(
      fc.property(anyText, anyText, (a, b) => {
        expect(token(a) === token(b)).toBe(a === b);
      }),
    );
    const long = "é".repeat(100);
    const tokens = [long, `${long}a`, `${long}b`, token(long), "", "=", "==", "a=", "*", ">", "."].map(token);
    expect(new Set(tokens).size).toBe(tokens.length);
  });

  it("keep plain names readable", () => {
    expect(token("node-1_A")).toBe("node-1_A");
    expect(token("gpu.7/w")).toBe("gpu=2E7=2Fw");
  });
});

describe("subjects", () => {
  const subjects = new Subjects("kedge");

  it("are as deploy/nats writes its permissions", () => {
    expect(subjects.worker("kv", PLACE, "w:0")).toBe("kedge.kv.eu.a=2Eb.gpu=207.w=3A0");
    expect(subjects.node("snap", PLACE)).toBe("kedge.snap.eu.a=2Eb.gpu=207.*");
    expect(subjects.load(PLACE)).toBe("kedge.load.eu.a=2Eb.gpu=207");
    expect(subjects.all("load")).toBe("kedge.load.>");
    expect(subjects.roll).toBe("kedge.roll");
    expect(subjects.beat("eu", "i.1")).toBe("kedge.beat.eu.i=2E1");
    expect(subjects.beats("eu")).toBe("kedge.beat.eu.*");
    expect(subjects.agentInbox(PLACE)).toBe("_INBOX.kedge.agent.eu.a=2Eb.gpu=207");
    expect(subjects.indexerInbox("eu", "i")).toBe("_INBOX.kedge.indexer.eu.i");
    expect(consumerName("eu")).toBe("indexer-eu");
    expect(placeOf(subjects.worker("reg", PLACE, "w"))).toBe("eu.a=2Eb.gpu=207.w");
  });

  it("a batch has one id, and no other batch has it", () => {
    const ids = [
      messageId({ worker: "w", rank: 0, incarnation: "a" }, 1),
      messageId({ worker: "w", rank: 0, incarnation: "a" }, 11),
      messageId({ worker: "w", rank: 0, incarnation: "a:1" }, 1),
      messageId({ worker: "w", rank: 1, incarnation: "a" }, 1),
      messageId({ worker: "w.0", rank: 0, incarnation: "a" }, 1),
      messageId({ worker: "w\r\nX: y", rank: 0, incarnation: "a" }, 1),
    ];
    expect(new Set(ids).size).toBe(ids.length);
    for (const id of ids) expect(id).toMatch(/^[!-~]+$/);
  });
});
