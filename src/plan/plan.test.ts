/** Signed plans (design D12): only a gateway's fresh plan for this agent and this request is carried out, once; keys rotate without downtime. */

import { generateKeyPairSync } from "node:crypto";
import {
  exportJWK,
  exportPKCS8,
  generateKeyPair,
  importJWK,
  type JWTPayload,
  SignJWT,
  UnsecuredJWT,
} from "jose";
import { beforeAll, describe, expect, it } from "vitest";
import type { KedgeError } from "../errors/index.ts";
import { claimsOf, planOf } from "./claims.ts";
import { doorError } from "./door.ts";
import type { Plan } from "./index.ts";
import { splitKeySources } from "./key-sources.ts";
import { newPlanKeys, readPublicKeys, readSigningKeys } from "./keys.ts";
import { createPlanSigner } from "./sign.ts";
import { createPlanVerifier, type PlanVerifier } from "./verify.ts";

const AGENT = { id: "eu/c1/n1", url: "http://127.0.0.1:1" };
const plan = (overrides: Partial<Plan> = {}): Plan => ({
  agent: AGENT,
  requestId: "r-1",
  model: "m",
  worker: "n1/w",
  rank: 3,
  incarnation: "i-1",
  role: "aggregated",
  deadlineMs: 600_000,
  load: { promptTokens: 100, overlapTokens: 64, blocks: 7 },
  dropUsage: true,
  cacheSalt: "salt",
  ...overrides,
});

/** Time that the test sets; both sides read it. */
let nowMs = 1_700_000_000_000;
const now = () => nowMs;

type Keys = Awaited<ReturnType<typeof newPlanKeys>>;
let keys: Keys;
let other: Keys;
const text = (value: object) => JSON.stringify(value);
const signer = (from: Keys = keys) => createPlanSigner({ keys: text(from.privateJwks), now });

const errors: KedgeError[] = [];
async function verifier(jwks: string = text(keys.publicJwks), load?: (url: string) => Promise<string>) {
  return createPlanVerifier({
    jwks,
    audience: AGENT.id,
    now,
    onError: (error) => errors.push(error),
    ...(load && { load }),
  });
}

/** What the log is told; the caller is told nothing of it. */
async function reason(
  verify: PlanVerifier,
  token: string,
  requestId: string | undefined = "r-1",
): Promise<string> {
  const error = await verify.verify(token, requestId).then(
    () => Promise.reject(new Error("the plan was accepted")),
    (thrown: KedgeError) => thrown,
  );
  expect(error.code).toBe("plan_rejected");
  expect(error.kind.status).toBe(403);
  expect(error.message).toBe("This node does not accept the plan.");
  return (error.cause as Error).message;
}

beforeAll(async () => {
  keys = await newPlanKeys();
  other = await newPlanKeys();
});

async function forged(
  claims: Partial<JWTPayload> & { plan?: unknown },
  header: object = {},
  from: Keys = keys,
): Promise<string> {
  const key = await importJWK(from.privateJwks.keys[0]!, "EdDSA");
  return new SignJWT({ ...claimsOf(plan(), AGENT.id, nowMs), ...claims })
    .setProtectedHeader({ alg: "EdDSA", kid: from.publicJwks.keys[0]!.kid, typ: "kedge-plan+jwt", ...header })
    .sign(key);
}

const base64 = (value: object | string) =>
  Buffer.from(typeof value === "string" ? value : JSON.stringify(value)).toString("base64url");

describe("a good plan", () => {
  it("arrives as it was signed, for the agent's own process", async () => {
    const token = await (await signer()).sign(plan());
    expect(await (await verifier()).verify(token, "r-1")).toEqual(plan({ agent: null }));
    expect(token.length).toBeLessThan(700);
  });

  it.each([
    [
      "no deadline and no salt",
      plan({ deadlineMs: null, cacheSalt: null, dropUsage: false, role: "prefill" }),
    ],
    ["names of any letters", plan({ worker: "nœud/機械", model: "a b\u0000", requestId: "r-1" })],
  ])("with %s", async (_name, given) => {
    const token = await (await signer()).sign(given);
    expect(await (await verifier()).verify(token, "r-1")).toEqual({ ...given, agent: null });
  });

  it("rounds fractions of estimates and of milliseconds", async () => {
    const load = { promptTokens: 10.4, overlapTokens: 0, blocks: 1 };
    const token = await (await signer()).sign(plan({ deadlineMs: 0.2, load }));
    expect(await (await verifier()).verify(token, "r-1")).toMatchObject({
      deadlineMs: 1,
      load: { promptTokens: 10 },
    });
  });

  it("is good from 5 s before to 30 s after it was signed, clocks being what they are", async () => {
    const token = await (await signer()).sign(plan());
    const signedMs = nowMs;
    for (const [offsetMs, isGood] of [
      [-4_000, true],
      [-7_000, false],
      [34_000, true],
      [36_000, false],
    ] as const) {
      nowMs = signedMs + offsetMs;
      const verify = await verifier();
      if (isGood) await verify.verify(token, "r-1");
      else await reason(verify, token);
    }
    nowMs = signedMs;
  });

  it("is not signed without an agent", async () => {
    await expect((await signer()).sign(plan({ agent: null }))).rejects.toMatchObject({
      code: "plan_rejected",
    });
  });
});

describe("anything else is refused", () => {
  it("every single changed character", async () => {
    const token = await (await signer()).sign(plan());
    const verify = await verifier();
    for (let at = 0; at < token.length; at += 3) {
      const changed = token[at] === "A" ? "B" : "A";
      // The last character of base64url carries bits that mean nothing.
      if (at === token.length - 1) continue;
      await reason(verify, token.slice(0, at) + changed + token.slice(at + 1));
    }
  });

  it("words, and pieces of tokens", async () => {
    const token = await (await signer()).sign(plan());
    const verify = await verifier();
    const [header = "", payload = "", signature = ""] = token.split(".");
    for (const bad of [
      "",
      ".",
      "..",
      "a.b.c",
      `${header}.${payload}`,
      `${header}.${payload}.`,
      `${header}..${signature}`,
      `${token}.x`,
      "x".repeat(100_000),
      `${base64("{")}.${payload}.${signature}`,
      `${base64("[]")}.${payload}.${signature}`,
    ]) {
      await reason(verify, bad);
    }
  });

  it("algorithm none", async () => {
    const unsecured = new UnsecuredJWT({ ...claimsOf(plan(), AGENT.id, nowMs) }).encode();
    await reason(await verifier(), unsecured);
    const [, payload = ""] = unsecured.split(".");
    const header = base64({ alg: "none", kid: keys.publicJwks.keys[0]!.kid, typ: "kedge-plan+jwt" });
    await reason(await verifier(), `${header}.${payload}.`);
  });

  it("HS256 with the public key for a secret, and other algorithms with other keys", async () => {
    const [half] = keys.publicJwks.keys;
    for (const secret of [
      Buffer.from(half!.x, "base64url"),
      Buffer.from(text(half!)),
      Buffer.from(half!.x),
    ]) {
      const token = await new SignJWT({ ...claimsOf(plan(), AGENT.id, nowMs) })
        .setProtectedHeader({ alg: "HS256", kid: half!.kid, typ: "kedge-plan+jwt" })
        .sign(secret);
      await reason(await verifier(), token);
    }
    const { privateKey } = await generateKeyPair("ES256");
    const token = await new SignJWT({ ...claimsOf(plan(), AGENT.id, nowMs) })
      .setProtectedHeader({ alg: "ES256", kid: half!.kid, typ: "kedge-plan+jwt" })
      .sign(privateKey);
    await reason(await verifier(), token);
  });

  it("a key that nobody published, whatever it calls itself", async () => {
    expect(await reason(await verifier(), await (await signer(other)).sign(plan()))).toBe(
      "its key is not known",
    );
    const posing = await forged({}, { kid: keys.publicJwks.keys[0]!.kid }, other);
    expect(await reason(await verifier(), posing)).toContain("signature");
    await reason(await verifier(), await forged({}, { kid: undefined }));
    await reason(await verifier(), await forged({}, { jwk: other.publicJwks.keys[0], kid: "x" }, other));
  });

  it.each<[string, Partial<JWTPayload> & { plan?: unknown }]>([
    ["another agent's", { aud: "eu/c1/n2" }],
    ["several agents'", { aud: [AGENT.id, "eu/c1/n2"] }],
    ["nobody's", { aud: undefined as never }],
    ["another issuer's", { iss: "someone" }],
    ["expired", { iat: 1_699_999_900, exp: 1_699_999_930 }],
    ["of the future", { iat: 1_700_000_100, exp: 1_700_000_130 }],
    ["without a time of signing", { iat: undefined as never }],
    ["without an expiry", { exp: undefined as never }],
    ["of a life longer than plans have", { iat: 1_700_000_000, exp: 1_700_000_300 }],
    ["of another request", { jti: "r-2" }],
    ["without a request", { jti: undefined as never }],
    ["with a request that is not text", { jti: 1 as never }],
    ["without a plan", { plan: undefined }],
    ["with half a plan", { plan: { m: "m" } }],
    ["with a negative rank", { plan: { ...claimsOf(plan(), "a", 0).plan, r: -1 } }],
    ["with a deadline of no time", { plan: { ...claimsOf(plan(), "a", 0).plan, d: 0 } }],
    ["with a role of its own", { plan: { ...claimsOf(plan(), "a", 0).plan, o: "root" } }],
    ["with loads that are no numbers", { plan: { ...claimsOf(plan(), "a", 0).plan, l: [1, "2", 3] } }],
  ])("a token %s", async (_name, claims) => {
    await reason(await verifier(), await forged(claims));
  });

  it("a token of another type that the same key signed", async () => {
    await reason(await verifier(), await forged({}, { typ: "JWT" }));
    await reason(await verifier(), await forged({}, { typ: undefined }));
  });

  it("a request without its id", async () => {
    const token = await (await signer()).sign(plan());
    const verify = await verifier();
    await reason(verify, token, "r-2");
    await expect(verify.verify(token, undefined)).rejects.toMatchObject({ code: "plan_rejected" });
    await verify.verify(token, "r-1");
  });

  it("the second use, until it has expired and long after", async () => {
    const startMs = nowMs;
    const token = await (await signer()).sign(plan());
    const verify = await verifier();
    await verify.verify(token, "r-1");
    for (const laterMs of [0, 10_000, 34_000, 36_000, 3_600_000]) {
      nowMs = startMs + laterMs;
      await reason(verify, token);
    }
    nowMs = startMs;
    // Refused plans are not remembered: nobody can spend another's.
    const good = await (await signer()).sign(plan({ requestId: "r-9" }));
    await reason(verify, `${good.slice(0, -6)}AAAAAA`, "r-9");
    await verify.verify(good, "r-9");
  });

  it("is not: one request tried at several workers and ranks of a node", async () => {
    const verify = await verifier();
    for (const at of [{ worker: "a" }, { worker: "b" }, { worker: "b", rank: 0 }]) {
      const token = await (await signer()).sign(plan(at));
      expect(await verify.verify(token, "r-1")).toMatchObject(at);
      await reason(verify, token);
    }
  });

  it("decoding takes what newer gateways add", () => {
    const claim = { ...claimsOf(plan(), "a", 0).plan, z: { later: true } };
    expect(planOf("r-1", claim)).toEqual(plan({ agent: null }));
  });
});

describe("keys", () => {
  it("may be JWK, JWKS or PEM, and are known by their thumbprint whatever they are called", async () => {
    const [jwk] = keys.privateJwks.keys;
    const pem = generateKeyPairSync("ed25519").privateKey.export({ type: "pkcs8", format: "pem" }).toString();
    for (const given of [text(jwk!), text(keys.privateJwks), text({ ...jwk, kid: "mine" }), `\n${pem}`]) {
      const made = await createPlanSigner({ keys: given, now });
      const verify = await verifier(
        text({ keys: made.jwks.keys.map((key) => ({ ...key, kid: "renamed" })) }),
      );
      await verify.verify(await made.sign(plan()), "r-1");
      expect(text(made.jwks)).not.toContain('"d"');
    }
  });

  it("of other kinds sign nothing", async () => {
    const rsa = await generateKeyPair("RS256", { extractable: true });
    for (const given of [
      text({ keys: [] }),
      text(keys.publicJwks),
      text({ kty: "oct", k: "AAAA" }),
      text(await exportJWK(rsa.privateKey)),
      await exportPKCS8(rsa.privateKey),
      text({ ...keys.privateJwks.keys[0], d: "AAAA" }),
      "hello",
      "",
      "null",
      '{"keys":1}',
      "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
    ]) {
      await expect(createPlanSigner({ keys: given })).rejects.toMatchObject({ code: "config_invalid" });
    }
  });

  it("that are private do not belong at agents, and their text is in no message", async () => {
    const secret = keys.privateJwks.keys[0]!.d!;
    const error = await readPublicKeys(text(keys.privateJwks)).catch((thrown: Error) => thrown);
    expect(String(error)).toContain("private key");
    expect(String(error)).not.toContain(secret);
    const damaged = await readSigningKeys(text(keys.privateJwks).slice(0, -1)).catch(
      (thrown: Error) => thrown,
    );
    expect(String(damaged)).not.toContain(secret);
  });

  it("rotate: agents with both halves take plans of both", async () => {
    const rotated = await newPlanKeys(text(keys.privateJwks));
    expect(rotated.publicJwks.keys.map(({ kid }) => kid)).toContain(keys.publicJwks.keys[0]!.kid);
    expect(text(rotated.privateJwks)).not.toContain(keys.privateJwks.keys[0]!.d);
    const verify = await verifier(text(rotated.publicJwks));
    await verify.verify(await (await signer()).sign(plan({ requestId: "old" })), "old");
    await verify.verify(await (await signer(rotated)).sign(plan({ requestId: "new" })), "new");
  });

  it("of several gateways stand side by side in one setting, in lines of JSON and words", () => {
    const pretty = JSON.stringify({ keys: [{ a: '"}{\\' }] }, null, 2);
    expect(splitKeySources(` https://a/jwks ${pretty}\n{"b":1}file:///c `)).toEqual([
      "https://a/jwks",
      pretty,
      '{"b":1}',
      "file:///c",
    ]);
    expect(splitKeySources(" \n")).toEqual([]);
    expect(splitKeySources('{"open": "')).toEqual(['{"open": "']);
  });

  it.each(["", "  ", "/no/scheme", "{}", '{"keys":[]}', '{"keys":[{"kty":"RSA"}]}', "not json"])(
    "a setting %j is refused at the start",
    async (jwks) => {
      await expect(verifier(jwks, async () => "")).rejects.toMatchObject({ code: "config_invalid" });
    },
  );
});

describe("keys at a URL", () => {
  function source() {
    const state = { text: text(keys.publicJwks), isDown: false, reads: 0 };
    const load = async () => {
      state.reads++;
      if (state.isDown) throw new Error("connection refused");
      return state.text;
    };
    return { state, load };
  }

  it("are read once and again for a key that is new, so rotation needs nothing at agents", async () => {
    const { state, load } = source();
    const verify = await verifier("https://gateway/jwks", load);
    for (const id of ["a", "b", "c"])
      await verify.verify(await (await signer()).sign(plan({ requestId: id })), id);
    expect(state.reads).toBe(1);
    const rotated = await newPlanKeys(text(keys.privateJwks));
    state.text = text(rotated.publicJwks);
    nowMs += 6_000;
    await verify.verify(await (await signer(rotated)).sign(plan({ requestId: "d" })), "d");
    await verify.verify(await (await signer()).sign(plan({ requestId: "e" })), "e");
    expect(state.reads).toBe(2);
  });

  it("that do not exist make it be read at most every 5 s", async () => {
    const { state, load } = source();
    const verify = await verifier("https://gateway/jwks", load);
    for (let i = 0; i < 50; i++) await reason(verify, await forged({}, { kid: `k${i}` }));
    expect(state.reads).toBe(1);
    nowMs += 5_001;
    for (let i = 0; i < 50; i++) await reason(verify, await forged({}, { kid: `l${i}` }));
    expect(state.reads).toBe(2);
  });

  it("stay good while it is down, and while it says nonsense", async () => {
    const { state, load } = source();
    const verify = await verifier("https://gateway/jwks", load);
    await verify.verify(await (await signer()).sign(plan({ requestId: "f" })), "f");
    errors.length = 0;
    for (const fault of ["down", "nonsense"]) {
      state.isDown = fault === "down";
      if (fault === "nonsense") state.text = "<html>";
      nowMs += 700_000;
      await verify.verify(await (await signer()).sign(plan({ requestId: fault })), fault);
      await reason(verify, await (await signer(other)).sign(plan()));
    }
    expect(errors.length).toBeGreaterThan(1);
    expect(errors[0]?.message).toContain("https://gateway/jwks");
  });

  it("may come after the agent", async () => {
    const { state, load } = source();
    state.isDown = true;
    const verify = await verifier("https://gateway/jwks", load);
    await reason(verify, await (await signer()).sign(plan({ requestId: "g" })), "g");
    state.isDown = false;
    nowMs += 5_001;
    await verify.verify(await (await signer()).sign(plan({ requestId: "g" })), "g");
  });
});

describe("an error of a door", () => {
  const header = (headers: Record<string, string>) => (name: string) => headers[name];

  it("is the same at the gateway", () => {
    const error = doorError(
      "a",
      header({ "x-kedge-door": "1", "x-kedge-error": "upstream_busy", "retry-after": "7" }),
      '{"error":{"message":"full"}}',
    );
    expect(error).toMatchObject({ code: "upstream_busy", message: "full", retryAfterSeconds: 7 });
    expect(doorError("a", header({ "x-kedge-door": "1" }), "")).toBeNull();
  });

  it.each([
    ["a refused plan", { "x-kedge-door": "1", "x-kedge-error": "plan_rejected" }],
    ["a code that doors do not have", { "x-kedge-door": "1", "x-kedge-error": "unauthorized" }],
    ["a code that nobody has", { "x-kedge-door": "1", "x-kedge-error": "constructor" }],
    ["an answer of something else", {}],
  ])("%s is the node's own trouble: another may be tried", (_name, headers) => {
    const error = doorError("a", header(headers as Record<string, string>), "{");
    expect(error).toMatchObject({ code: "upstream_error", kind: { retryable: true } });
  });
});
