/** `--engine`: every part is read, and nothing misspelt passes. */

import { expect, it } from "vitest";
import { parseEngineOption } from "./engine-option.ts";

it("a bare address is an aggregated worker", () => {
  expect(parseEngineOption("http://127.0.0.1:8000/")).toEqual({
    url: "http://127.0.0.1:8000",
    id: null,
    events: null,
    replay: null,
    role: "aggregated",
    apiKey: null,
    model: null,
  });
});

it("reads all its parts, with = in a value", () => {
  const option =
    "https://gpu-7:8443/base,id=a,events=tcp://127.0.0.1:5557,replay=tcp://gpu-7:5558,role=decode,api-key=k=1,model=/models/qwen";
  expect(parseEngineOption(option)).toEqual({
    url: "https://gpu-7:8443/base",
    id: "a",
    events: "tcp://127.0.0.1:5557",
    replay: "tcp://gpu-7:5558",
    role: "decode",
    apiKey: "k=1",
    model: "/models/qwen",
  });
});

it.each([
  ["127.0.0.1:8000", "http:// address"],
  ["ftp://host", "http:// address"],
  ["http://h:1?x=1", "no query"],
  ["http://h:1,event=tcp://h:2", "event=tcp://h:2"],
  ["http://h:1,events", "events"],
  ["http://h:1,events=", "events="],
  ["http://h:1,events=http://h:2", "ZMQ endpoint"],
  ["http://h:1,role=encoder", "aggregated, prefill, decode"],
])("%s is refused, naming the fault", (option, fault) => {
  expect(() => parseEngineOption(option)).toThrow(fault);
});
