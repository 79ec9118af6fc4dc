/** Settings: Dynamo's names mean what they mean there, and nothing wrong passes in silence. */

import { describe, expect, it } from "vitest";
import { KedgeError } from "../errors/index.ts";
import { defineConfig, isLoopback, loadConfig, SETTINGS } from "./index.ts";

function problem(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof KedgeError && error.code === "config_invalid") return error.message;
    throw error;
  }
  throw new Error("expected config_invalid");
}

describe("a Dynamo user's environment works", () => {
  it("reads every DYN_ name of the router", () => {
    const config = loadConfig({
      DYN_ROUTER_MODE: "round-robin",
      DYN_ROUTER_TEMPERATURE: "0.5",
      DYN_KV_OVERLAP_SCORE_WEIGHT: "1.5",
      DYN_KV_CACHE_BLOCK_SIZE: "64",
      DYN_KV_EVENTS: "false",
      DYN_ROUTER_TTL: "30",
      DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD: "0.8",
      DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD: "10000",
    });
    expect(config.router).toMatchObject({
      mode: "round-robin",
      temperature: 0.5,
      overlapScoreWeight: 1.5,
      kvCacheBlockSize: 64,
      kvEvents: false,
      ttlSeconds: 30,
      activeDecodeBlocksThreshold: 0.8,
      activePrefillTokensThreshold: 10_000,
    });
  });

  it("defaults to kv, where Dynamo's frontend defaults to round-robin", () => {
    expect(loadConfig({}).router).toMatchObject({
      mode: "kv",
      temperature: 0,
      overlapScoreWeight: 1,
      ttlSeconds: 120,
    });
  });

  it("leaves DYN_ names that are not Kedge's alone", () => {
    expect(loadConfig({ DYN_NAMESPACE: "x" }).router.mode).toBe("kv");
  });
});

it("variables that Kubernetes sets for a service called kedge are not settings", () => {
  const links = {
    KEDGE_PORT: "tcp://10.0.0.1:8787",
    KEDGE_SERVICE_HOST: "10.0.0.1",
    KEDGE_SERVICE_PORT: "8787",
    KEDGE_SERVICE_PORT_HTTP: "8787",
    KEDGE_PORT_8787_TCP: "tcp://10.0.0.1:8787",
    KEDGE_PORT_8787_TCP_ADDR: "10.0.0.1",
    KEDGE_GATEWAY_PORT: "tcp://10.0.0.2:80",
    KEDGE_GATEWAY_SERVICE_HOST: "10.0.0.2",
  };
  expect(loadConfig(links)).toEqual(loadConfig({}));
  expect(loadConfig({ ...links, DYN_HTTP_PORT: "9000" }).port).toBe(9_000);
  expect(problem(() => loadConfig({ KEDGE_SERVICE: "x" }))).toContain("KEDGE_SERVICE");
});

it("the settings of redis-rest, which has its own, may stand in the same environment", () => {
  expect(loadConfig({ KEDGE_REST_TOKEN: "t" })).toEqual(loadConfig({}));
  expect(problem(() => loadConfig({ KEDGE_RESTS: "x" }))).toContain("KEDGE_RESTS");
});

it("API keys are digests, in either case, also as sha256sum prints them; others are told how to make one", () => {
  const hex = "0123456789abcdef".repeat(4);
  expect(loadConfig({ KEDGE_API_KEYS: `${hex.toUpperCase()}, ${hex}  -,` }).apiKeyDigests).toEqual([
    hex,
    hex,
  ]);
  expect(problem(() => loadConfig({ KEDGE_API_KEYS: "secret" }))).toContain("sha256sum");
});

describe("precedence", () => {
  it("flags win over environment, environment over defaults", () => {
    const env = { DYN_ROUTER_MODE: "random", KEDGE_PORT: "9000" };
    expect(loadConfig(env, { "router-mode": "kv-1.x" })).toMatchObject({
      port: 9000,
      router: { mode: "kv-1.x" },
    });
  });

  it("a switch can be turned off by flag", () => {
    expect(loadConfig({ DYN_KV_EVENTS: "1" }, { "kv-events": false }).router.kvEvents).toBe(false);
  });

  it("none turns off what may be off, and nothing else", () => {
    expect(loadConfig({ KEDGE_REQUEST_TIMEOUT_MS: "none" }).limits.requestTimeoutMs).toBeNull();
    expect(problem(() => loadConfig({ KEDGE_STALL_TIMEOUT_MS: "none" }))).toContain("KEDGE_STALL_TIMEOUT_MS");
  });

  it("an empty variable counts as unset", () => {
    expect(loadConfig({ DYN_ROUTER_MODE: "" }).router.mode).toBe("kv");
  });
});

describe("what is wrong is named", () => {
  it.each([
    [{ DYN_ROUTER_MODE: "fastest" }, "DYN_ROUTER_MODE"],
    [{ DYN_ROUTER_TEMPERATURE: "warm" }, "DYN_ROUTER_TEMPERATURE"],
    [{ DYN_ROUTER_TEMPERATURE: "-1" }, "DYN_ROUTER_TEMPERATURE"],
    [{ DYN_KV_EVENTS: "maybe" }, "DYN_KV_EVENTS"],
    [{ DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD: "1.5" }, "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD"],
    [{ KEDGE_PORT: "70000" }, "KEDGE_PORT"],
    [{ KEDGE_API_KEYS: "plain-text-key" }, "KEDGE_API_KEYS"],
  ])("%j", (env, name) => {
    expect(problem(() => loadConfig(env))).toContain(name);
  });

  it("every problem is listed at once", () => {
    const text = problem(() => loadConfig({ KEDGE_PORT: "x", DYN_KV_EVENTS: "y" }));
    expect(text.split("\n")).toHaveLength(2);
  });

  it("an unknown KEDGE_ name is an error with a suggestion", () => {
    expect(problem(() => loadConfig({ KEDGE_STALL_TIMEOUT: "5" }))).toContain("KEDGE_STALL_TIMEOUT_MS");
  });

  it("a delay longer than timers hold is refused, not cut to nothing", () => {
    const name = "KEDGE_REQUEST_TIMEOUT_MS";
    expect(loadConfig({ [name]: "2147483647" }).limits.requestTimeoutMs).toBe(2_147_483_647);
    expect(problem(() => loadConfig({ [name]: "2147483648" }))).toContain(name);
  });

  it("an unknown key of the typed form is an error", () => {
    const input = { router: { mood: "kv" } };
    expect(problem(() => defineConfig(input as object))).toContain("mood");
  });
});

describe("explanations", () => {
  it("are on by default only where nobody else can reach the gateway", () => {
    expect(loadConfig({}).explain).toBe(true);
    expect(loadConfig({ KEDGE_HOST: "0.0.0.0" }).explain).toBe(false);
    expect(loadConfig({ KEDGE_HOST: "0.0.0.0", KEDGE_EXPLAIN: "true" }).explain).toBe(true);
    expect(loadConfig({ KEDGE_EXPLAIN: "false" }).explain).toBe(false);
  });

  it("loopback is judged by address", () => {
    expect(["127.0.0.1", "127.9.9.9", "localhost", "::1"].every(isLoopback)).toBe(true);
    expect(["0.0.0.0", "10.0.0.1", "127.example.com", "::"].some(isLoopback)).toBe(false);
  });
});

it("no flag or environment name stands for two settings", () => {
  const names = SETTINGS.flatMap((setting) => [`--${setting.flag}`, ...setting.env]);
  expect(new Set(names).size).toBe(names.length);
});
