/** A seed fleet is what was registered, or an error that says where it is wrong. */

import { describe, expect, it } from "vitest";
import { registration } from "../../test/e2e/gateway-fleet.ts";
import { KedgeError } from "../errors/index.ts";
import { parseSeedFleet } from "./seed-fleet.ts";

const refusal = (text: string): string => {
  try {
    parseSeedFleet(text);
  } catch (error) {
    if (error instanceof KedgeError && error.code === "config_invalid") return error.message;
    throw error;
  }
  return "accepted";
};

describe("a seed fleet", () => {
  it("comes back as it was written, members of newer writers left out", () => {
    const fleet = [registration("a"), registration("b", { agent: { id: "n1", url: "https://n1.example" } })];
    const text = JSON.stringify(fleet.map((one) => ({ ...one, novelty: 1 })));
    expect(parseSeedFleet(text)).toMatchObject(fleet);
    expect(parseSeedFleet(text)[0]).not.toHaveProperty("novelty");
    expect(parseSeedFleet("[]")).toEqual([]);
  });

  it("is refused with the setting and the member at fault", () => {
    expect(refusal("not json")).toMatch(/KEDGE_SEED_FLEET.*not JSON/);
    expect(refusal('{"workers":[]}')).toMatch(/the list: /);
    const broken = { ...registration("a"), blockSize: 0 };
    expect(refusal(JSON.stringify([registration("b"), broken]))).toContain("[1].blockSize");
    expect(refusal(JSON.stringify([{ ...broken, agent: { id: "n", url: "ftp://n" } }]))).toContain(
      "[0].agent.url",
    );
    expect(refusal(JSON.stringify(Array(9).fill({})))).toMatch(/and \d+ more/);
  });
});
