/** Who may use the service: API keys known by their SHA-256 digests, compared in constant time. */

import { isLoopback, type KedgeConfig } from "../config/index.ts";
import { KedgeError } from "../errors/index.ts";
import type { MaybePromise } from "../store/types.ts";

const BEARER = /^Bearer +(\S+) *$/i;

/** `host`: the header of that name. */
export type Authenticate = (authorization: string | undefined, host?: string) => MaybePromise<void>;

/**
 * Without keys a gateway on loopback is open to its machine and any other is closed: `service_unconfigured`. `requireKeys`: so is one on
 * loopback. Errors of the returned check: `unauthorized`, `service_unconfigured`.
 */
export function createAuthenticator(
  config: Pick<KedgeConfig, "host" | "apiKeyDigests">,
  sha256: (text: string) => MaybePromise<Uint8Array>,
  requireKeys = false,
): Authenticate {
  const digests = config.apiKeyDigests.map(fromHex);
  if (digests.length === 0) return isLoopback(config.host) && !requireKeys ? checkName : refuseUnconfigured;
  return (authorization) => {
    const key = BEARER.exec(authorization ?? "")?.[1];
    if (key === undefined) throw unauthorized('Missing API key: send "Authorization: Bearer <key>".');
    const digest = sha256(key);
    return digest instanceof Promise ? digest.then((bytes) => check(bytes, digests)) : check(digest, digests);
  };
}

/** A page in this machine's browser may have its own name point here: names that a stranger can own are not this machine's. */
function checkName(_authorization: string | undefined, host = ""): void {
  const name = host.replace(/:\d+$/, "").toLowerCase();
  const isAddress = /^(\d+(\.\d+){3}|\[.*\])$/.test(name);
  if (!name.includes(".") || isAddress || /\.(localhost|local|internal)$/.test(name)) return;
  throw unauthorized(
    "Without API keys this gateway serves its own machine only: call it by localhost or an address, or set KEDGE_API_KEYS.",
  );
}

export async function webSha256(text: string): Promise<Uint8Array> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

function refuseUnconfigured(): never {
  throw new KedgeError(
    "service_unconfigured",
    "This gateway is reachable from other machines but has no API keys. Set KEDGE_API_KEYS to SHA-256 digests of the keys; one that serves its own machine only can be bound to 127.0.0.1 instead.",
  );
}

/** Looks at every byte of every digest, so that time tells nothing. */
function check(digest: Uint8Array, accepted: readonly Uint8Array[]): void {
  let found = 0;
  for (const candidate of accepted) {
    let difference = 0;
    for (let i = 0; i < candidate.length; i++) difference |= candidate[i]! ^ digest[i]!;
    found |= Number(difference === 0);
  }
  if (found === 0) throw unauthorized("Unknown API key.");
}

function fromHex(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (byte) => Number.parseInt(byte, 16));
}

const unauthorized = (message: string) => new KedgeError("unauthorized", message);
