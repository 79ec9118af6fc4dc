/** A Worker that holds both ends of the bus for one request; bundled and run in workerd by `workerd.test.ts`. */

import { connectNatsBus } from "../../src/events/nats/index.ts";
import { batch, KEY, snapshot } from "./samples.ts";

export default {
  async fetch(request: Request): Promise<Response> {
    const url = new URL(request.url).searchParams.get("nats") ?? "";
    const errors: string[] = [];
    const common = {
      servers: [url],
      prefix: "kedge",
      stream: "KEDGE_KV",
      place: { region: "edge", cluster: "c", node: "worker" },
      timers: {
        setTimeout: (callback: () => void, delayMs: number) => setTimeout(callback, delayMs),
        clearTimeout: (handle: unknown) => clearTimeout(handle as number),
      },
      random: Math.random,
      onError: (error: Error, doing: string) => errors.push(`${doing}: ${error}`),
      openSocket: upgraded,
    };
    const indexer = connectNatsBus({ ...common, role: "indexer", name: "worker-indexer" });
    // The other one by the runtime's own WebSocket.
    const agent = connectNatsBus({ ...common, openSocket: plain, role: "agent", name: "worker-agent" });
    const heard: string[] = [];
    const both = new Promise<void>((resolve) => {
      indexer.onKv(({ worker, sequence }, done) => {
        heard.push(`${worker} ${sequence}`);
        done();
        if (new Set(heard).size === 2) resolve();
      });
    });
    agent.serveSnapshots(({ worker }) => (worker === KEY.worker ? snapshot(60_000) : null));
    agent.publishKv(batch(1));
    await Promise.race([both, new Promise((resolve) => setTimeout(resolve, 10_000))]);
    const whole = await indexer.requestSnapshot(KEY);
    const keys = whole?.ops.reduce((sum, op) => sum + op.keys.length, 0) ?? null;
    const status = indexer.status();
    await Promise.all([agent.close(), indexer.close()]);
    return Response.json({ heard, keys, errors, server: status.server });
  },
};

const plain = async (url: string) => new WebSocket(url);

/** As through a binding: an upgraded fetch. */
async function upgraded(url: string): Promise<WebSocket> {
  const response = await fetch(url.replace(/^ws/, "http"), { headers: { Upgrade: "websocket" } });
  const { webSocket } = response as Response & { webSocket: (WebSocket & { accept(): void }) | null };
  if (webSocket === null) throw new Error(`no WebSocket: ${response.status}`);
  webSocket.accept();
  return webSocket;
}
