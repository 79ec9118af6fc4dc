/** A Node gateway through an agent's door: clients see what they would see in one process, whatever the engine does (design D9, D12). */

import { afterEach, expect, it } from "vitest";
import { AGENT_ID, startTestDoor, type TestDoor } from "./gateway-door.ts";
import { eventually, type FleetOptions, MODEL } from "./gateway-fleet.ts";
import { answerWhole, body, good, open, post, setUp, status, stream } from "./gateway-scripts.ts";
import { chatChunk, DONE, openStream, type Script, usageChunk } from "./gateway-upstream.ts";

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** The fleet's gateway sends its plans to a door around the same ingress. */
function throughDoor(): Pick<FleetOptions, "transport"> {
  return {
    transport: (ingress) => {
      const door: Promise<TestDoor> = startTestDoor(ingress);
      closing.push(async () => (await door).close());
      return {
        send: async (plan, request, signal) => (await door).transport.send(plan, request, signal),
      };
    },
  };
}

const event =
  (text: string): Script =>
  (response) => {
    openStream(response);
    response.end(text);
  };
const cut =
  (before: string): Script =>
  (response) => {
    openStream(response);
    response.write(before, () => response.destroy());
  };

const FATES: [string, Script][] = [
  ["a good stream", good],
  ["a whole answer", answerWhole],
  ...[400, 401, 404, 413, 422, 429, 500, 502, 503, 504, 529].map((code): [string, Script] => [
    `status ${code}`,
    status(code, { "retry-after": "7" }),
  ]),
  ["a reset", (_response, { socket }) => void socket.resetAndDestroy()],
  ["a stream cut before its first data", cut(": hello\n\n")],
  ["a stream cut after its first data", cut(chatChunk("a") + chatChunk("b").slice(0, 20))],
  ["a stream without its end mark", event(chatChunk("a"))],
  ["an empty stream", event("")],
  ["an end mark alone", event(DONE)],
  ["a failure behind a 200", event(`data: {"error":{"message":"no","code":500}}\n\n${DONE}`)],
  ["a client's fault behind a 200", event(`data: {"error":{"message":"long","code":400}}\n\n${DONE}`)],
  [
    "a failure inside a stream",
    event(`${chatChunk("a")}data: {"error":{"message":"no","code":500}}\n\n${DONE}`),
  ],
  [
    "half a whole answer",
    (response) => {
      response.writeHead(200, { "content-type": "application/json", "content-length": 1_000 });
      response.write("{", () => response.destroy());
    },
  ],
  [
    "words that are no JSON",
    (response) => {
      response.writeHead(200, { "content-type": "application/json" });
      response.end("<html>");
    },
  ],
];

/** The requests' ids differ from run to run, and so do addresses in explanations. */
async function seen(script: Script, second: Script, isStream: boolean, options: Partial<FleetOptions>) {
  const { fleet, engines } = await setUp([script, second], options);
  const response = isStream ? await stream(fleet.url) : await post(fleet.url, body());
  const text = (await response.text()).replace(/Last: .*?"/, '"');
  await eventually(() => fleet.ingress.activeRequests === 0);
  return {
    status: response.status,
    headers: ["content-type", "retry-after", "x-kedge-worker"].map((name) => response.headers.get(name)),
    text: text.replace(/"message":"[^"]*"/g, ""),
    asked: engines.map(({ requests }) => requests.length),
  };
}

it.each(FATES)("%s looks the same, alone and with another worker to go to", async (_name, script) => {
  for (const isStream of [true, false]) {
    for (const second of [script, good]) {
      const direct = await seen(script, second, isStream, {});
      expect(await seen(script, second, isStream, throughDoor())).toEqual(direct);
    }
  }
});

it("usage is learnt from streams whose clients did not ask for it", async () => {
  const { fleet } = await setUp([good], throughDoor());
  expect(await (await stream(fleet.url)).text()).toBe(chatChunk("a") + chatChunk("b") + DONE);
  await eventually(
    () => fleet.metric(`kedge_reported_cached_tokens_total{model="${MODEL}",worker="a"}`) === 16,
  );
  // Chance is fixed here, so that ids of requests repeat unless they are given.
  const asking = body({ stream: true, stream_options: { include_usage: true } });
  const asked = await post(fleet.url, asking, { "x-request-id": "another" });
  expect(await asked.text()).toContain(usageChunk(32, 16));
});

it.each([true, false])("a client that leaves aborts the engine (stream: %s)", async (isStream) => {
  const { fleet, engines } = await setUp(
    [
      (response) => {
        if (!isStream) return;
        openStream(response);
        response.write(chatChunk("a"));
      },
    ],
    throughDoor(),
  );
  const request = open(fleet.url, body({ stream: isStream }));
  const { abandoned } = await engines[0]!.arrival(0);
  request.destroy();
  await abandoned;
  await eventually(() => fleet.ingress.activeRequests === 0);
});

it("a door that dies inside a stream is told of in-band, and nobody is named", async () => {
  const doors: TestDoor[] = [];
  const begins: Script = (response) => {
    openStream(response);
    response.write(chatChunk("a"));
  };
  const { fleet } = await setUp([begins], {
    config: { explain: false },
    transport: (ingress) => ({
      send: async (plan, request, signal) => {
        const test = await startTestDoor(ingress);
        doors.push(test);
        return test.transport.send(plan, request, signal);
      },
    }),
  });
  const response = await stream(fleet.url);
  closing.push(() => doors[0]!.close());
  // Its connections break before its streams can be ended.
  await doors[0]!.door.close();
  const text = await response.text();
  expect(text).toContain('"code":"stream_interrupted"');
  expect(text).not.toContain(AGENT_ID);
});
