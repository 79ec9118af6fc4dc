/** Listening on an address, and why one cannot be listened on, in words that say what to do. */

import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { KedgeError } from "../errors/index.ts";

/** The URL at which it listens then; port 0 takes any free one. Errors: what listening gives, e.g. EADDRINUSE. */
export async function listenAt(server: Server, host: string, port: number): Promise<string> {
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, () => {
      server.off("error", reject);
      resolve();
    });
  });
  const address = server.address() as AddressInfo;
  const name = address.family === "IPv6" ? `[${address.address}]` : address.address;
  return `http://${name}:${address.port}`;
}

/** The two that users meet, with what to do; the rest as the system says it. */
export function cannotListen(thrown: NodeJS.ErrnoException, host: string, port: number): KedgeError {
  const reasons: Readonly<Record<string, string>> = {
    EADDRINUSE: `port ${port} is in use; choose another with --port`,
    EACCES: `port ${port} needs more rights; choose one above 1023 with --port`,
  };
  const reason = reasons[thrown.code ?? ""] ?? thrown.message;
  return new KedgeError("config_invalid", `Cannot listen on ${host}: ${reason}.`, {
    cause: thrown,
    param: "port",
  });
}
