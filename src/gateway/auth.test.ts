/** An open gateway on loopback serves its own machine, and not the web pages that make a name of theirs point to it. */

import { expect, it } from "vitest";
import { createAuthenticator, webSha256 } from "./auth.ts";

const open = createAuthenticator({ host: "127.0.0.1", apiKeyDigests: [] }, webSha256);

it.each([
  "localhost:8787",
  "127.0.0.1:8787",
  "[::1]:8787",
  "LOCALHOST",
  "kedge:8787",
  "kedge.localhost",
  "host.docker.internal:8787",
  "box.local",
  "10.0.0.7:8787",
  undefined,
])("serves who asks for %s", (host) => {
  expect(open(undefined, host)).toBeUndefined();
});

it.each([
  "evil.example",
  "evil.example:8787",
  "localhost.evil.example",
  "127.0.0.1.evil.example",
  "localhost.",
  "1.2.3",
])("refuses who asks for %s", (host) => {
  expect(() => open(undefined, host)).toThrow(expect.objectContaining({ code: "unauthorized" }));
});

it("a gateway with keys may have any name", async () => {
  const digest = Buffer.from(await webSha256("key")).toString("hex");
  const closed = createAuthenticator({ host: "127.0.0.1", apiKeyDigests: [digest] }, webSha256);
  await expect(closed("Bearer key", "llm.example")).resolves.toBeUndefined();
  await expect(closed("Bearer other", "localhost")).rejects.toMatchObject({ code: "unauthorized" });
});
