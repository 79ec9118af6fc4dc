/** Kedge as it runs on one machine, before the benchmark's engine: gateway, view, ingress and load accounts in one process. */

import { readFileSync } from "node:fs";
import { Ingress } from "../../gpu-agent/ingress/index.ts";
import { defineConfig } from "../../src/config/index.ts";
import { createGateway } from "../../src/gateway/index.ts";
import { serveGateway } from "../../src/node/server.ts";
import { deriveModelCard } from "../../src/prefix/card.ts";
import { createHasher } from "../../src/prefix/hasher.ts";
import { MemoryStore } from "../../src/store/memory/index.ts";
import { Registry } from "../../src/telemetry/registry.ts";

const [, , engineUrl = "", model = "bench"] = process.argv;
const folder = new URL("../../gpu-agent/engines/mock/model/", import.meta.url);
const read = (name: string): unknown => JSON.parse(readFileSync(new URL(name, folder), "utf8"));

const config = defineConfig({ port: 0, explain: false });
const store = new MemoryStore({ now: () => performance.now(), random: Math.random });
const timers = { setTimeout, clearTimeout: (handle: unknown) => clearTimeout(handle as NodeJS.Timeout) };
const admitted: string[] = [];
const ingress = new Ingress({
  ledger: {
    admitted: ({ requestId }) => admitted.push(requestId),
    firstData() {},
    progressed() {},
    finished() {},
  },
  timers,
  heartbeatMs: config.limits.heartbeatMs,
});
ingress.addEngine({ worker: "w", url: engineUrl, dpSize: 1 });
const identity = { worker: "w", rank: 0, incarnation: "1" };
store.register({
  ...identity,
  model,
  servedNames: [model],
  adapters: [],
  card: deriveModelCard({
    model,
    tokenizerJson: read("tokenizer.json"),
    tokenizerConfig: read("tokenizer_config.json"),
  }),
  role: "aggregated",
  region: "",
  cluster: "",
  node: "",
  engine: "bench",
  dpSize: 1,
  blockSize: 16,
  totalBlocks: 100_000,
  maxNumBatchedTokens: 8_192,
  maxNumSeqs: 256,
  maxModelLen: 131_072,
  kvEvents: true,
  saltInEvents: true,
  taints: [],
});
let sequence = 0;
const report = () => {
  sequence++;
  const load = { activeBlocks: 0, prefillTokens: 0, running: 0, waiting: 0 };
  store.report([{ ...identity, ...load, sequence, admitted: admitted.splice(0), publishedSequence: 0 }]);
};
report();
setInterval(report, 100).unref();

const app = createGateway({
  config,
  store,
  transport: ingress,
  hasher: await createHasher(),
  clock: { ...timers, now: () => performance.now(), wall: Date.now },
  random: Math.random,
  log: { warn: (message, fields) => console.error(message, fields) },
  registry: new Registry(),
});
const served = await serveGateway({ app, host: config.host, port: 0 });
process.stdout.write(`${new URL(served.url).port}\n`);
process.on("disconnect", () => process.exit());
process.on("SIGINT", () => process.exit());
