/** Why an address cannot be listened on, in words that say what to do. */

import { KedgeError } from "../errors/index.ts";

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
