/** The bus's options as the settings say them. */

import type { KedgeConfig } from "../../config/index.ts";
import { KedgeError } from "../../errors/index.ts";
import type { NatsBusOptions } from "./bus.ts";

export interface NatsHost
  extends Pick<
    NatsBusOptions,
    "role" | "name" | "onError" | "timers" | "random" | "onStatus" | "openSocket"
  > {
  /** Name of this machine, for agents without `place.node`. */
  readonly hostName?: string;
  /** Reads a credentials file; without it `nats.creds` must be the contents. */
  readonly readFile?: (path: string) => string;
}

/** Errors: `config_invalid` without `nats.url`, or with one that is no WebSocket address. */
export function natsOptions({ nats, place }: KedgeConfig, host: NatsHost): NatsBusOptions {
  const { hostName, readFile, ...rest } = host;
  return {
    ...rest,
    servers: serversOf(nats.url),
    credentials: {
      creds: nats.creds === null ? null : contentsOf(nats.creds, readFile),
      nkey: nats.nkey,
      token: nats.token,
      user: nats.user,
      password: nats.password,
    },
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

function contentsOf(creds: string, readFile: NatsHost["readFile"]): string {
  if (creds.includes("-----BEGIN")) return creds;
  if (readFile !== undefined) return readFile(creds);
  throw new KedgeError(
    "config_invalid",
    "KEDGE_NATS_CREDS must hold the contents of a credentials file here.",
    {
      param: "nats.creds",
    },
  );
}
