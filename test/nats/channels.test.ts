/** Every channel of the bus, end to end over a real server; the newest and the oldest that are here. */

import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { describeWithNats, type NatsServer, startNats } from "../support/servers.ts";
import {
  batch,
  closeAll,
  connected,
  DISTINCT_SERVERS,
  KEY,
  load,
  registration,
  snapshot,
  until,
} from "./rig.ts";

describeWithNats("channels", () => {
  describe.each(DISTINCT_SERVERS)("with %s", (binary) => {
    let server: NatsServer;
    beforeAll(async () => {
      server = await startNats({ binary });
    });
    afterEach(closeAll);
    afterAll(() => server?.stop());

    it("carries each kind of message from agent to indexer and back, unchanged", async () => {
      const { bus: indexer, errors } = await connected(server.url, {
        role: "indexer",
        snapshotTimeoutMs: 500,
      });
      const heard: unknown[] = [];
      indexer.onRegistration((value) => heard.push(value));
      indexer.onRetirement((value) => heard.push(value));
      indexer.onLoad((value) => heard.push(value));
      indexer.onHeartbeat((value) => heard.push(value));
      const batches: unknown[] = [];
      indexer.onKv((value, done) => {
        batches.push(value);
        done();
      });
      await indexer.flush();
      const { bus: agent, errors: agentErrors } = await connected(server.url, { role: "agent" });
      let rolls = 0;
      agent.onRollCall(() => {
        rolls += 1;
      });
      agent.serveSnapshots((key) => (key.worker === KEY.worker ? snapshot(100) : null));
      await agent.flush();

      agent.publishRegistration(registration());
      agent.publishLoad(load(1, ["a"]));
      await agent.flush();
      await until(() => heard.length === 2, "registration and load");
      agent.publishRetirement(KEY);
      await until(() => heard.length === 3, "retirement");
      indexer.publishHeartbeat("indexer-1");
      await until(() => heard.length === 4, "heartbeat");
      expect(heard).toEqual([registration(), load(1, ["a"]), KEY, "indexer-1"]);

      for (let sequence = 1; sequence <= 50; sequence += 1) agent.publishKv(batch(sequence));
      expect(await agent.flush()).toBe(true);
      await until(
        () => batches.length === 50,
        "50 batches",
        () => [errors, agentErrors],
      );
      expect(batches).toEqual(Array.from({ length: 50 }, (_, i) => batch(i + 1)));
      await until(() => indexer.status().pendingAcks === 0, "all acknowledged");
      expect(indexer.status()).toMatchObject({ received: 50, redelivered: 0, consumerLag: 0 });
      expect(agent.status()).toMatchObject({ published: 50, dropped: 0, buffered: 0, bufferedBytes: 0 });

      indexer.callRoll();
      await until(() => rolls === 1, "roll call");
      expect(await indexer.requestSnapshot(KEY)).toEqual(snapshot(100));
      expect(await indexer.requestSnapshot({ ...KEY, worker: "nobody's" })).toBeNull();
      expect([errors, agentErrors]).toEqual([[], []]);
    });
  });
});
