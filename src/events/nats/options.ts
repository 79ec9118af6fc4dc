/** The bus's options as the settings say them. */

import type { KedgeConfig } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import type { NatsBusOptions } from "./bus.ts";
import type { NatsCredentials } from "./connection.ts";

export interface NatsHost
  extends Pick<
    NatsBusOptions,
    "role" | "name" | "onError" | "timers" | "random" | "onStatus" | "openSocket"
  > {
  /** Name of this machine, for agents without `place.node`. */
  readonly hostName?: string;
  /** Reads a credentials file, with every connection anew; without it `nats.creds` must be the contents. */
  readonly readFile?: (path: string) => string;
}

/** Errors: `config_invalid` without `nats.url`, with one that is no WebSocket address, or with credentials that cannot be read. */
export function natsOptions({ nats, place }: KedgeConfig, host: NatsHost): NatsBusOptions {
  const { hostName, readFile, ...rest } = host;
  return {
    ...rest,
    servers: serversOf(nats.url),
    credentials: credentialsOf(nats, readFile),
    prefix: nats.prefix,
    stream: nats.stream,
    place: { region: place.region, cluster: place.cluster, node: place.node ?? hostName ?? "local" },
  };
}

function serversOf(url: string | null): string[] {
  const servers = (url ?? "").split(",").map((server) => server.trim());
  for (const server of servers) {
    if (/^wss?:\/\/[^/\s]+/.test(server)) continue;
    const wrong =
      server === ""
        ? "No NATS server is named"
        : `"${server}" is no WebSocket address (the client port 4222 does not serve them)`;
    throw new KedgeError(
      "config_invalid",
      `${wrong}: set KEDGE_NATS_URL to ws://host:port or wss://host:port.`,
      {
        param: "nats.url",
      },
    );
  }
  return servers;
}

function credentialsOf(nats: KedgeConfig["nats"], readFile: NatsHost["readFile"]): () => NatsCredentials {
  const { creds, nkey, token, user, password } = nats;
  const current = () => ({
    creds: creds === null ? null : contentsOf(creds, readFile),
    nkey,
    token,
    user,
    password,
  });
  // A file that cannot be read is told of at once, and not with the first connection.
  current();
  return current;
}

function contentsOf(creds: string, readFile: NatsHost["readFile"]): string {
  if (creds.includes("-----BEGIN")) return creds;
  const invalid = (message: string, cause?: unknown) =>
    new KedgeError("config_invalid", message, { cause, param: "nats.creds" });
  if (readFile === undefined) {
    throw invalid("KEDGE_NATS_CREDS must hold the contents of a credentials file here.");
  }
  let contents: string;
  try {
    contents = readFile(creds);
  } catch (thrown) {
    throw invalid(`KEDGE_NATS_CREDS names a file that cannot be read: ${pathIn(creds)}.`, thrown);
  }
  if (contents.includes("-----BEGIN")) return contents;
  throw invalid(
    `KEDGE_NATS_CREDS: ${pathIn(creds)} is no credentials file, which has a block "NATS USER JWT".`,
  );
}

/** Who pastes a seed or a token where a path belongs must not read it again in a log. */
function pathIn(creds: string): string {
  return creds.length < 256 && /[/.]/.test(creds) ? creds : "what it holds";
}
