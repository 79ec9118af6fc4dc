/** A streaming engine without any delay: what a gateway adds is all that can be measured before it. Run as a child process. */

import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

const events = Number(process.argv[2] ?? 16);
const model = process.argv[3] ?? "bench";
const burst = process.argv[4] === "burst";

const chunk = (content: string) =>
  `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"${model}","choices":[{"index":0,"delta":{"content":"${content}"},"logprobs":null,"finish_reason":null}]}\n\n`;
const contents = Array.from({ length: events }, (_, i) => Buffer.from(chunk(` word${i}`)));
const usage = Buffer.from(
  `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"${model}","choices":[],"usage":{"prompt_tokens":1000,"total_tokens":${1000 + events},"completion_tokens":${events}}}\n\n`,
);
const done = Buffer.from("data: [DONE]\n\n");
const models = JSON.stringify({
  object: "list",
  data: [{ id: model, object: "model", created: 0, owned_by: "bench" }],
});

/** What gateways and agents ask of an engine before they use it. */
const PAGES: Readonly<Record<string, { readonly type: string; readonly body: string }>> = {
  "/v1/models": { type: "application/json", body: models },
  "/version": { type: "application/json", body: '{"version":"0.32.0"}' },
  "/metrics": {
    type: "text/plain; version=0.0.4",
    body: [
      `vllm:cache_config_info{block_size="16",num_gpu_blocks="100000",engine="0"} 1`,
      `vllm:num_requests_running{engine="0",model_name="${model}"} 0`,
      `vllm:num_requests_waiting{engine="0",model_name="${model}"} 0`,
      "",
    ].join("\n"),
  },
};

const server = createServer(
  { noDelay: true, keepAlive: true, keepAliveTimeout: 120_000 },
  (request, response) => {
    if (request.method !== "POST") {
      const page = PAGES[request.url ?? ""] ?? { type: "application/json", body: "{}" };
      response.writeHead(200, { "content-type": page.type });
      response.end(page.body);
      return;
    }
    let tail = "";
    let head = "";
    request.on("data", (data: Buffer) => {
      const text = data.toString("latin1");
      if (head === "") head = text.slice(0, 256);
      tail = (tail + text).slice(-256);
    });
    request.on("end", () => {
      response.writeHead(200, { "content-type": "text/event-stream; charset=utf-8" });
      const wantsUsage = `${head}${tail}`.includes('"include_usage":true');
      const all = [...contents, ...(wantsUsage ? [usage] : []), done];
      if (burst) response.end(Buffer.concat(all));
      else writeInTurns(response, all, 0);
    });
  },
);
/** One event per turn of the loop, each its own chunk and segment, as engines send them. */
function writeInTurns(response: ServerResponse, all: readonly Buffer[], next: number): void {
  response.write(all[next]!);
  if (next + 1 < all.length) setImmediate(() => writeInTurns(response, all, next + 1));
  else response.end();
}

server.listen(0, "127.0.0.1", () => {
  process.stdout.write(`${(server.address() as AddressInfo).port}\n`);
});
process.on("disconnect", () => process.exit());
