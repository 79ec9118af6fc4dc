/** Who is at the door, as far as the connection tells: this machine, a private network, or anybody through a tunnel. */

import type { IncomingMessage } from "node:http";
import { BlockList } from "node:net";
import { isLoopback } from "../../src/config/index.ts";

/** Tunnels and proxies connect from this very machine; what they pass on says so. */
const FORWARDING_HEADERS = [
  "forwarded",
  "via",
  "x-forwarded-for",
  "x-forwarded-host",
  "x-real-ip",
  "cf-ray",
  "cf-connecting-ip",
];

const PRIVATE = new BlockList();
for (const [net, bits] of [
  ["10.0.0.0", 8],
  ["172.16.0.0", 12],
  ["192.168.0.0", 16],
  ["100.64.0.0", 10],
  ["169.254.0.0", 16],
  ["127.0.0.0", 8],
] as const) {
  PRIVATE.addSubnet(net, bits, "ipv4");
}
for (const [net, bits] of [
  ["fc00::", 7],
  ["fe80::", 10],
] as const) {
  PRIVATE.addSubnet(net, bits, "ipv6");
}
PRIVATE.addAddress("::1", "ipv6");

/** By its own address and by the name that it asks for: a web page that was given this machine's address asks for its own. */
export function isFromThisMachine(incoming: IncomingMessage): boolean {
  const host = (incoming.headers.host ?? "").replace(/:\d+$/, "");
  return isDirect(incoming) && isLoopback(addressOf(incoming)) && isLoopback(host);
}

export function isFromPrivateNetwork(incoming: IncomingMessage): boolean {
  const address = addressOf(incoming);
  return isDirect(incoming) && PRIVATE.check(address, address.includes(":") ? "ipv6" : "ipv4");
}

function isDirect({ headers }: IncomingMessage): boolean {
  return FORWARDING_HEADERS.every((name) => headers[name] === undefined);
}

/** IPv4 addresses as such, also on a socket of both families. */
function addressOf({ socket }: IncomingMessage): string {
  return (socket.remoteAddress ?? "").replace(/^::ffff:(?=\d+\.)/i, "");
}
