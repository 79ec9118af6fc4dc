/** The Node server: starts where asked, drains on close, breaks what overstays, tells clients' leaving at once. */

import { once } from "node:events";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { connect } from "node:net";
import { Hono } from "hono";
import { afterEach, describe, expect, it } from "vitest";
import type { ClientConnection, GatewayEnv } from "../gateway/index.ts";
import { type ServedGateway, serveGateway } from "./server.ts";

const served: ServedGateway[] = [];
afterEach(async () => {
  for (const server of served.splice(0)) await server.close();
});

/** A server whose one route hands its client to the test. */
async function start(drainTimeoutMs = 10_000) {
  const clients: ClientConnection[] = [];
  const arrivals: ((client: ClientConnection) => void)[] = [];
  const app = new Hono<GatewayEnv>().post("/", (c) => {
    const client = c.env.client!;
    clients.push(client);
    arrivals.shift()?.(client);
    return client.response;
  });
  const server = await serveGateway({ app, host: "127.0.0.1", port: 0, drainTimeoutMs });
  served.push(server);
  const arrival = () => new Promise<ClientConnection>((resolve) => arrivals.push(resolve));
  return { server, arrival };
}

function post(url: string, body = "{}") {
  const request = httpRequest(url, { method: "POST" });
  request.on("error", () => {});
  request.end(body);
  return request;
}

async function text(response: IncomingMessage): Promise<string> {
  let all = "";
  for await (const chunk of response) all += chunk;
  return all;
}

async function openStream(server: ServedGateway, arrival: () => Promise<ClientConnection>) {
  const arrived = arrival();
  const request = post(server.url);
  const client = await arrived;
  const writer = client.begin(200, { "content-type": "text/event-stream" }, () => {});
  writer.write(Buffer.from("first"));
  const [response] = (await once(request, "response")) as [IncomingMessage];
  return { request, response, client, writer };
}

describe("serveGateway", () => {
  it("answers whole and by stream", async () => {
    const { server, arrival } = await start();
    const whole = arrival();
    const request = post(server.url, "héllo");
    const client = await whole;
    expect(Buffer.from(await client.readBody(100)).toString()).toBe("héllo");
    client.send(201, { "x-a": "b" }, "grüß");
    const [response] = (await once(request, "response")) as [IncomingMessage];
    expect([response.statusCode, response.headers["x-a"], await text(response)]).toEqual([201, "b", "grüß"]);
    const stream = await openStream(server, arrival);
    stream.writer.write(Buffer.from(" last"));
    stream.writer.end();
    expect(await text(stream.response)).toBe("first last");
  });

  it("says at once that a client has left, also to whoever asks later", async () => {
    const { server, arrival } = await start();
    const { request, client } = await openStream(server, arrival);
    const gone = new Promise<void>((resolve) => client.onGone(resolve));
    request.destroy();
    await gone;
    let late = false;
    client.onGone(() => {
      late = true;
    });
    expect(late).toBe(true);
  });

  it("says so to every request that the client had sent ahead on the same connection", async () => {
    const { server, arrival } = await start();
    const arrivals = Array.from({ length: 20 }, arrival);
    const socket = connect(Number(new URL(server.url).port), "127.0.0.1");
    const warnings: Error[] = [];
    const warned = (warning: Error) => void warnings.push(warning);
    process.on("warning", warned);
    socket.write("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".repeat(arrivals.length));
    const clients = await Promise.all(arrivals);
    clients[1]!.begin(200, {}, () => {}).write(Buffer.from("not its turn yet"));
    const gone = clients.map((client) => new Promise<void>((resolve) => client.onGone(resolve)));
    socket.destroy();
    await Promise.all(gone);
    await Promise.all(clients.map(({ response }) => response));
    process.off("warning", warned);
    expect(warnings).toEqual([]);
  });

  it.each([
    ["announced", "content-length: 8000000"],
    ["chunked", "transfer-encoding: chunked"],
  ])(
    "answers a refusal to a client that sends its whole body before it reads (%s)",
    async (_name, framing) => {
      const { server, arrival } = await start();
      const arrived = arrival();
      const socket = connect(Number(new URL(server.url).port), "127.0.0.1").pause();
      socket.write(`POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n${framing}\r\n\r\n`);
      const client = await arrived;
      await Promise.all([
        client.readBody(1_000).catch(() => client.send(413, {}, "too large")),
        new Promise((sent) => {
          const body = "x".repeat(8_000_000);
          socket.write(framing.startsWith("content") ? body : `7a1200\r\n${body}\r\n0\r\n\r\n`, sent);
        }),
      ]);
      let answer = "";
      for await (const chunk of socket) answer += chunk;
      expect(answer).toMatch(/^HTTP\/1.1 413 .*too large$/s);
    },
  );

  it("rejects the body of a client that leaves while it sends", async () => {
    const { server, arrival } = await start();
    const arrived = arrival();
    const request = httpRequest(server.url, { method: "POST", headers: { "content-length": 100 } });
    request.on("error", () => {});
    request.write("half");
    const client = await arrived;
    const body = client.readBody(1_000);
    request.destroy();
    await expect(body).rejects.toMatchObject({ code: "client_closed" });
  });

  it("closes when running requests are done, kept-alive connections or not", async () => {
    const { server, arrival } = await start();
    const { response, writer } = await openStream(server, arrival);
    const closed = server.close();
    expect(server.close()).toBe(closed);
    writer.end();
    expect(await text(response)).toBe("first");
    await closed;
    await expect(fetch(server.url, { method: "POST" })).rejects.toThrow();
  });

  it.each([
    ["that never carried a request", ""],
    ["with half a request", "POST / HTTP/1.1\r\nhos"],
  ])("does not wait for a connection %s", async (_name, sent) => {
    const { server, arrival } = await start(600_000);
    const silent = connect(Number(new URL(server.url).port), "127.0.0.1").resume();
    await once(silent, "connect");
    silent.on("error", () => {});
    silent.write(sent);
    // The server has the older connection when it answers on a younger one.
    const { response, writer } = await openStream(server, arrival);
    const closed = server.close();
    writer.end();
    expect(await text(response)).toBe("first");
    await closed;
  });

  it("breaks connections that overstay", async () => {
    const { server, arrival } = await start(1);
    const { response, client } = await openStream(server, arrival);
    const gone = new Promise<void>((resolve) => client.onGone(resolve));
    await server.close();
    await gone;
    await expect(text(response)).rejects.toThrow();
  });

  it("reports an address in use", async () => {
    const { server } = await start();
    const port = Number(new URL(server.url).port);
    await expect(
      serveGateway({ app: new Hono<GatewayEnv>(), host: "127.0.0.1", port }),
    ).rejects.toMatchObject({
      code: "EADDRINUSE",
    });
  });

  it("holds a writer whose reader is slow, and says when it may go on", async () => {
    const { server, arrival } = await start();
    const arrived = arrival();
    const request = post(server.url);
    const client = await arrived;
    let drains = 0;
    const writer = client.begin(200, {}, () => {
      drains++;
    });
    writer.write(Buffer.from("first"));
    const [response] = (await once(request, "response")) as [IncomingMessage];
    response.pause();
    const block = Buffer.alloc(64 * 1024);
    // The kernel's buffers take some first; what counts is that the writer is held in the end.
    let seen = -1;
    for (let turn = 0; turn < 10_000 && seen !== drains; turn++) {
      seen = drains;
      while (writer.write(block));
      for (let i = 0; i < 20; i++) await new Promise(setImmediate);
    }
    expect(seen).toBe(drains);
    response.resume();
    while (drains === seen) await new Promise(setImmediate);
    writer.end();
    await once(response, "end");
  });
});
