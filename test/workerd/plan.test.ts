/** Inside workerd plans are signed so that an agent takes them, and what it should refuse is refused. */

import { expect, it } from "vitest";
import { KedgeError } from "../../src/errors/index.ts";
import type { Plan } from "../../src/plan/index.ts";
import { newPlanKeys } from "../../src/plan/keys.ts";
import { createPlanSigner } from "../../src/plan/sign.ts";
import { createPlanVerifier } from "../../src/plan/verify.ts";

const plan: Plan = {
  agent: { id: "eu/c1/n1", url: "https://n1.example" },
  requestId: "r-1",
  model: "m",
  worker: "n1/w",
  rank: 3,
  incarnation: "i-1",
  role: "aggregated",
  deadlineMs: 600_000,
  load: { promptTokens: 100, overlapTokens: 64, blocks: 7 },
  dropUsage: true,
  cacheSalt: null,
};

const keys = await newPlanKeys();

async function verifier(audience: string) {
  const jwks = JSON.stringify(keys.publicJwks);
  return createPlanVerifier({ jwks, audience, now: Date.now, onError: () => {} });
}

it("a signed plan is verified, once, by the agent that it is for", async () => {
  const signer = await createPlanSigner({ keys: JSON.stringify(keys.privateJwks) });
  expect(signer.jwks).toEqual(keys.publicJwks);
  const token = await signer.sign(plan);
  const mine = await verifier("eu/c1/n1");
  expect(await mine.verify(token, "r-1")).toMatchObject({ requestId: "r-1", worker: "n1/w", rank: 3 });
  await expect(mine.verify(token, "r-1")).rejects.toMatchObject({ code: "plan_rejected" });
  const others = await verifier("eu/c1/n2");
  await expect(others.verify(token, "r-1")).rejects.toBeInstanceOf(KedgeError);
});
