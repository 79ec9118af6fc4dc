/** `kedge indexer` and `kedge fleet` as commands: what they say when something is missing, in use, or all right. */

import { execFile } from "node:child_process";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, it } from "vitest";
import { parseSeedFleet } from "../../src/gateway/index.ts";
import { startIndexer } from "../../src/node/indexer.ts";
import { describeWithServers } from "../support/servers.ts";
import { Site } from "./site.ts";

function kedge(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<{ code: number; out: string; err: string }> {
  return new Promise((resolve) => {
    const options = { env: { PATH: process.env.PATH, ...env } };
    const child = execFile(process.execPath, ["src/node/cli/main.ts", ...args], options, (_, out, err) =>
      resolve({ code: child.exitCode ?? -1, out, err }),
    );
  });
}

it("says everything that an indexer needs and has not", async () => {
  const { code, err } = await kedge(["indexer"]);
  expect(code).toBe(2);
  for (const name of ["KEDGE_REDIS_URL", "KEDGE_REDIS_TOKEN", "KEDGE_NATS_URL"]) expect(err).toContain(name);
});

it("says what is wrong with a NATS address or a port in use, and ends", async () => {
  const blocker = createServer();
  await new Promise<void>((resolve) => blocker.listen(0, "127.0.0.1", resolve));
  const { port } = blocker.address() as AddressInfo;
  const settings = ["--redis-url", "http://127.0.0.1:1", "--redis-token", "t"];
  const [wrong, taken] = await Promise.all([
    kedge(["indexer", ...settings, "--nats-url", "nats://127.0.0.1:4222"]),
    kedge(["indexer", ...settings, "--nats-url", "ws://127.0.0.1:1", "--port", `${port}`]),
  ]);
  blocker.close();
  expect([wrong.code, taken.code]).toEqual([2, 2]);
  expect(wrong.err).toContain("is no WebSocket address");
  expect(taken.err).toContain(`port ${port} is in use`);
});

describeWithServers("kedge fleet", () => {
  it("prints the view's fleet, as JSON in the form that a seed fleet takes; a reset empties it", async () => {
    const site = await Site.start();
    try {
      const log = (): void => undefined;
      const host = await startIndexer({ config: site.config, host: "127.0.0.1", port: 0, log });
      site.closeAtEnd(() => host.close());
      site.addAgent("a", 3, 1);
      await site.publish(5);
      await site.converged();
      const [text, json] = await Promise.all([
        kedge(["fleet"], site.environment),
        kedge(["fleet", "--json"], site.environment),
      ]);
      expect(text.out).toMatch(/^WORKER[^\n]*\na-0 [^\n]*\na-1 [^\n]*\na-2 [^\n]*\n$/);
      expect(parseSeedFleet(json.out).map(({ worker }) => worker)).toEqual(["a-0", "a-1", "a-2"]);
      const wrong = await kedge(["fleet"], { ...site.environment, KEDGE_REDIS_TOKEN: "wrong" });
      expect([wrong.code, wrong.err]).toEqual([1, expect.stringContaining("check KEDGE_REDIS_TOKEN")]);
      // The next leader begins a new epoch and fills it again from the agents.
      await host.close();
      const { epoch } = site.store;
      const next = await startIndexer({
        config: { ...site.config, router: { ...site.config.router, resetStates: true } },
        host: "127.0.0.1",
        port: 0,
        log,
      });
      site.closeAtEnd(() => next.close());
      await expect.poll(() => next.service.status().state, { timeout: 10_000 }).toBe("leading");
      await site.converged();
      expect(site.store.epoch).not.toBe(epoch);
    } finally {
      await site.close();
    }
  });
});
