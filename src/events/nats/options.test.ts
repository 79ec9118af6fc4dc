/** Settings → options of the bus: servers, place, credentials from a file or as they are, and what is told when they are wrong. */

import { describe, expect, it } from "vitest";
import { loadConfig } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import { type NatsHost, natsOptions } from "./options.ts";

const HOST: NatsHost = {
  role: "agent",
  name: "a",
  onError: () => undefined,
  timers: { setTimeout: () => null, clearTimeout: () => undefined },
  random: () => 0,
};
const CREDS = "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------";

function optionsOf(env: Record<string, string>, host: Partial<NatsHost> = {}) {
  return natsOptions(loadConfig({ KEDGE_NATS_URL: "ws://n:1", ...env }), { ...HOST, ...host });
}

function credentialsOf(env: Record<string, string>, host: Partial<NatsHost> = {}) {
  const { credentials } = optionsOf(env, host);
  return typeof credentials === "function" ? credentials() : credentials;
}

describe("options of the bus", () => {
  it("take servers, names and place from the settings", () => {
    const env = {
      KEDGE_NATS_URL: "wss://a.example, ws://b:8080/nats",
      KEDGE_NATS_PREFIX: "p",
      KEDGE_NATS_STREAM: "S",
      KEDGE_REGION: "eu",
      KEDGE_CLUSTER: "c",
    };
    expect(optionsOf(env, { hostName: "machine" })).toMatchObject({
      servers: ["wss://a.example", "ws://b:8080/nats"],
      prefix: "p",
      stream: "S",
      place: { region: "eu", cluster: "c", node: "machine" },
    });
    expect(optionsOf({ ...env, KEDGE_NODE: "n" }, { hostName: "machine" }).place.node).toBe("n");
  });

  it("read a credentials file with every connection, or take its contents", () => {
    expect(credentialsOf({ KEDGE_NATS_CREDS: CREDS })).toMatchObject({ creds: CREDS });
    let reads = 0;
    const readFile = () => {
      reads += 1;
      return `${CREDS}${reads}`;
    };
    const { credentials } = optionsOf({ KEDGE_NATS_CREDS: "/a/file" }, { readFile });
    const ask = credentials as () => { creds: string };
    expect([ask().creds, ask().creds].map((creds) => creds.slice(CREDS.length))).toEqual(["2", "3"]);
    expect(credentialsOf({ KEDGE_NATS_USER: "u", KEDGE_NATS_PASSWORD: "p" })).toMatchObject({
      user: "u",
      password: "p",
    });
  });

  it.each([
    ["no server", { KEDGE_NATS_URL: "" }, "KEDGE_NATS_URL"],
    ["an address of the client protocol", { KEDGE_NATS_URL: "nats://n:4222" }, "ws://host:port"],
    ["a creds file where none can be read", { KEDGE_NATS_CREDS: "/a/file" }, "contents"],
  ])("say what is wrong with %s", (_, env, fix) => {
    const attempt = () => optionsOf(env as unknown as Record<string, string>);
    expect(attempt).toThrow(KedgeError);
    expect(attempt).toThrow(fix);
  });

  it("say which file cannot be read, or is none of credentials", () => {
    const missing = () => {
      throw new Error("ENOENT");
    };
    expect(() => optionsOf({ KEDGE_NATS_CREDS: "/a/file" }, { readFile: missing })).toThrow("/a/file");
    expect(() => optionsOf({ KEDGE_NATS_CREDS: "/a/file" }, { readFile: () => "{}" })).toThrow(
      "no credentials file",
    );
    for (const secret of [`SU${"A".repeat(56)}`, `eyJ0.${"e".repeat(400)}`])
      expect(() => optionsOf({ KEDGE_NATS_CREDS: secret }, { readFile: missing })).toThrow(
        expect.objectContaining({ message: expect.not.stringContaining(secret.slice(0, 20)) }),
      );
  });
});
