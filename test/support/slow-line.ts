/** A TCP line to a server of this machine that can be made slow. */

import { type AddressInfo, connect, createServer, type Socket } from "node:net";

export interface SlowLine {
  readonly port: number;
  /** What the server says is passed on so much later. */
  delayMs: number;
  /** Breaks its connections. */
  close(): void;
}

export async function slowLine(target: number): Promise<SlowLine> {
  const sockets = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(target, "127.0.0.1");
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => sockets.delete(socket));
    }
    near.pipe(far);
    far.on("data", (chunk) => setTimeout(() => near.write(chunk), line.delayMs));
    near.on("close", () => far.destroy());
    far.on("close", () => near.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const line: SlowLine = {
    port: (server.address() as AddressInfo).port,
    delayMs: 0,
    close: () => {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
  return line;
}
