/** Every way to prove who one is: token, nkey, credentials file, the server's certificate; and renewed credentials without a restart. */

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { nkeys } from "nats.ws";
import { Agent, WebSocket as WebSocketByUndici } from "undici";
import { afterEach, expect, it } from "vitest";
import type { NatsCredentials } from "../../src/events/nats/index.ts";
import { describeWithNats, freePort, type NatsServer, startNats } from "../support/servers.ts";
import { closeAll, connected, rig, until } from "./rig.ts";

interface Pair {
  getPublicKey(): string;
  getSeed(): Uint8Array;
  sign(data: Uint8Array): Uint8Array;
}

const text = new TextDecoder();
const base64url = (data: Uint8Array | string) => Buffer.from(data).toString("base64url");

/** A JWT as NATS has them, signed by `signer` for `subject`. */
function jwt(signer: Pair, subject: Pair, type: string, claims: object = {}): string {
  const head = base64url(JSON.stringify({ typ: "JWT", alg: "ed25519-nkey" }));
  const body = base64url(
    JSON.stringify({
      jti: crypto.randomUUID(),
      iat: Math.floor(Date.now() / 1_000),
      iss: signer.getPublicKey(),
      sub: subject.getPublicKey(),
      name: type,
      nats: { type, version: 2, ...claims },
    }),
  );
  const signature = base64url(signer.sign(new TextEncoder().encode(`${head}.${body}`)));
  return `${head}.${body}.${signature}`;
}

describeWithNats("credentials", () => {
  let server: NatsServer;
  afterEach(async () => {
    await closeAll();
    await server.stop("SIGKILL");
  });

  const accepts = async (right: NatsCredentials, wrong: NatsCredentials) => {
    const { bus } = await connected(server.url, { role: "agent", credentials: right });
    expect(await bus.flush()).toBe(true);
    const { bus: refused, errors } = rig(server.url, { role: "agent", credentials: wrong });
    await until(() => errors.length > 0, "refusal");
    expect(errors[0]?.[0]).toMatchObject({ code: "config_invalid" });
    expect(refused.connected).toBe(false);
  };

  it("token", async () => {
    server = await startNats({ config: 'authorization { token: "right" }' });
    await accepts({ token: "right" }, { token: "wrong" });
  });

  it("nkey", async () => {
    const [user, other] = [nkeys.createUser(), nkeys.createUser()] as [Pair, Pair];
    server = await startNats({ config: `authorization { users: [ { nkey: ${user.getPublicKey()} } ] }` });
    const seed = (pair: Pair) => ({ nkey: text.decode(pair.getSeed()) });
    await accepts(seed(user), seed(other));
  });

  it("credentials file, of an operator's account", async () => {
    const [operator, system, account, user, stranger] = [
      nkeys.createOperator(),
      nkeys.createAccount(),
      nkeys.createAccount(),
      nkeys.createUser(),
      nkeys.createAccount(),
    ] as [Pair, Pair, Pair, Pair, Pair];
    const unlimited = { subs: -1, data: -1, payload: -1 };
    const limits = { ...unlimited, imports: -1, exports: -1, wildcards: true, conn: -1, leaf: -1 };
    const accounts = [system, account].map(
      (each) => `${each.getPublicKey()}: ${jwt(operator, each, "account", { limits })}`,
    );
    server = await startNats({
      config: `operator: ${jwt(operator, operator, "operator")}
system_account: ${system.getPublicKey()}
resolver: MEMORY
resolver_preload: { ${accounts.join("\n")} }`,
    });
    const creds = (by: Pair) => ({
      creds: `-----BEGIN NATS USER JWT-----
${jwt(by, user, "user", unlimited)}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
${text.decode(user.getSeed())}
------END USER NKEY SEED------
`,
    });
    await accepts(creds(account), creds(stranger));
  });

  it.skipIf(spawnSync("openssl", ["version"]).status !== 0)(
    "TLS, and only of a server that is known",
    async () => {
      const folder = mkdtempSync(join(tmpdir(), "kedge-tls-"));
      const [cert, key] = [join(folder, "server.crt"), join(folder, "server.key")];
      const request = `req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=nats -addext subjectAltName=IP:127.0.0.1`;
      expect(spawnSync("openssl", [...request.split(" "), "-keyout", key, "-out", cert]).status).toBe(0);
      const port = await freePort();
      server = await startNats({
        port,
        config: `websocket { listen: "127.0.0.1:${port}", tls { cert_file: "${cert}", key_file: "${key}" } }`,
      });
      const url = `wss://127.0.0.1:${port}`;
      const dispatcher = new Agent({ connect: { ca: readFileSync(cert, "utf8") } });
      const trusting = async (address: string) =>
        new WebSocketByUndici(address, { dispatcher }) as unknown as WebSocket;
      const { bus } = await connected(url, { role: "agent", openSocket: trusting });
      expect(await bus.flush()).toBe(true);
      // The process knows no such authority.
      const { bus: careful, errors } = rig(url, { role: "agent" });
      await until(() => errors.length > 0, "refusal");
      expect(errors[0]?.[0]).toMatchObject({ code: "view_unavailable" });
      expect(careful.connected).toBe(false);
      await closeAll();
      await dispatcher.destroy();
      rmSync(folder, { recursive: true, force: true });
    },
  );

  it("a bus whose credentials were refused gets in once they are renewed", async () => {
    server = await startNats({ config: 'authorization { token: "second" }' });
    let token = "first";
    const { bus, errors } = rig(server.url, { role: "agent", credentials: () => ({ token }) });
    await until(() => errors.length >= 2, "it tries again");
    expect(bus.connected).toBe(false);
    token = "second";
    await until(() => bus.connected, "it is in");
  });
});
