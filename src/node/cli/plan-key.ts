/** `kedge plan-key`: makes the key pair by which agents know their gateways, or the next one of a rotation. */

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Command } from "commander";
import { newPlanKeys } from "../../plan/keys.ts";
import { signingKeyText } from "../plan-keys.ts";

interface Flags {
  readonly rotate?: string;
  readonly write?: string;
  readonly json?: boolean;
}

export function planKeyCommand(): Command {
  return new Command("plan-key")
    .description(
      "Make an Ed25519 key pair: gateways sign plans with the private half, agents know the public one.",
    )
    .option(
      "--rotate <old>",
      "the private key in use, or its file: its public half stays published beside the new one",
    )
    .option(
      "--write <folder>",
      "write plan-key.json (for gateways, readable by you alone) and plan-jwks.json (for agents)",
    )
    .option("--json", 'print {"private": JWKS, "public": JWKS} on one line')
    .addHelpText("after", HELP)
    .action(run);
}

const HELP = `
Rotation without downtime: make the new pair with --rotate; where agents read a file or text, give them the new public JWKS first (it has
both halves; those that read a gateway's URL find it by themselves); then give gateways the new private one. A minute later the old half
may go.`;

async function run({ rotate, write, json }: Flags): Promise<void> {
  const old = rotate === undefined ? null : await signingKeyText(rotate);
  const { privateJwks, publicJwks } = await newPlanKeys(old);
  const [secret, open] = [JSON.stringify(privateJwks), JSON.stringify(publicJwks)];
  if (write !== undefined) {
    await writeFile(join(write, "plan-key.json"), `${secret}\n`, { mode: 0o600 });
    await writeFile(join(write, "plan-jwks.json"), `${open}\n`);
    console.log(`kedge: wrote ${join(write, "plan-key.json")} and ${join(write, "plan-jwks.json")}`);
  } else if (json) console.log(JSON.stringify({ private: privateJwks, public: publicJwks }));
  else {
    console.log(`Private, for gateways (KEDGE_PLAN_KEY); keep it secret:\n${secret}\n`);
    console.log(`Public, for agents (KEDGE_PLAN_JWKS):\n${open}`);
  }
}
