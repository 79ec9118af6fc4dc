/** Bodies go upstream as they came, but for the two edits that the gateway owes its users. */

import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { readRequest, upstreamBody } from "./request.ts";

const encode = (text: string) => new TextEncoder().encode(text);
const upstream = (text: string) => new TextDecoder().decode(upstreamBody(readRequest("chat", encode(text))));
const code = (text: string | Uint8Array) => {
  try {
    readRequest(null, typeof text === "string" ? encode(text) : text);
    return "accepted";
  } catch (error) {
    return (error as { code: string }).code;
  }
};

describe("upstreamBody", () => {
  it("returns the very bytes of a request that needs no edit", () => {
    fc.assert(
      fc.property(fc.dictionary(fc.string(), fc.jsonValue()), (extra) => {
        delete extra.kv_transfer_params;
        const bytes = encode(JSON.stringify({ ...extra, model: "m", messages: [], stream: false }, null, 1));
        expect(upstreamBody(readRequest("chat", bytes))).toBe(bytes);
      }),
    );
  });

  it("keeps number forms, key order, duplicates and unknown fields around an edit", () => {
    const body =
      '{ "z":1.50, "model":"m","seed":12345678901234567890,"x":{"b":1e5,"a":"\\u00e9"},"z":2,"stream":true }';
    expect(upstream(body)).toBe(body.replace("true }", 'true,"stream_options":{"include_usage":true} }'));
  });

  it("asks for usage inside the client's own stream options, and for none that it did not want in every chunk", () => {
    const options = (inner: string) => `{"model":"m","stream":true,"stream_options":${inner},"n":1}`;
    expect(upstream(options('{"include_usage":true}'))).toBe(options('{"include_usage":true}'));
    expect(upstream(options('{"include_usage":false}'))).toBe(options('{"include_usage":true}'));
    expect(upstream(options("null"))).toBe(options('{"include_usage":true}'));
    expect(upstream(options('{"continuous_usage_stats":true}'))).toBe(
      options('{"continuous_usage_stats":false,"include_usage":true}'),
    );
  });

  it("takes every copy of kv_transfer_params out, streaming or not", () => {
    const params = '"kv_transfer_params":{"do_remote_prefill":true}';
    expect(upstream(`{${params},"model":"m",${params}}`)).toBe('{"model":"m"}');
    expect(upstream(`{"kv\\u005ftransfer_params":1,"model":"m"}`)).toBe('{"model":"m"}');
  });
});

describe("readRequest", () => {
  it("tells the endpoint by the body where the route does not", () => {
    expect(readRequest(null, encode('{"model":"m","messages":[]}')).endpoint).toBe("chat");
    expect(readRequest(null, encode('{"model":"m","prompt":"x"}')).endpoint).toBe("completions");
    expect(readRequest(null, encode('{"model":"m","prompt_embeds":"AA=="}')).endpoint).toBe("completions");
    expect(readRequest(null, encode('{"model":"m","messages":null,"prompt":""}')).endpoint).toBe(
      "completions",
    );
  });

  it.each([
    ["[1]", "invalid_request"],
    ["{}", "invalid_request"],
    ['{"model":7,"prompt":""}', "invalid_request"],
    ['{"model":"m"}', "invalid_request"],
    ['{"model":"m","messages":null}', "invalid_request"],
    ['{"model":"m",}', "invalid_json"],
    ["", "invalid_json"],
    ['\ufeff{"model":"m","prompt":""}', "invalid_json"],
    [new Uint8Array([123, 34, 255, 34, 125]), "invalid_json"],
    ["[".repeat(100_000), "invalid_json"],
  ])("refuses %j with %s", (text, expected) => {
    expect(code(text)).toBe(expected);
  });
});
