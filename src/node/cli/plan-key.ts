/** `kedge plan-key`: makes the key pair by which agents know their gateways, or the next one of a rotation. */

import { chmod, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Command } from "commander";
import { KedgeError } from "../../errors/index.ts";
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
    const files = { secret: join(write, "plan-key.json"), open: join(write, "plan-jwks.json") };
    await mkdir(write, { recursive: true, mode: 0o700 }).catch(cannotWrite);
    // A key in use is replaced by its successor only.
    const flag = rotate === undefined ? "wx" : "w";
    await writeFile(files.secret, `${secret}\n`, { mode: 0o600, flag }).catch(cannotWrite);
    await chmod(files.secret, 0o600).catch(cannotWrite);
    await writeFile(files.open, `${open}\n`).catch(cannotWrite);
    console.log(`kedge: wrote ${files.secret} and ${files.open}`);
  } else if (json) console.log(JSON.stringify({ private: privateJwks, public: publicJwks }));
  else {
    console.log(`Private, for gateways (KEDGE_PLAN_KEY); keep it secret:\n${secret}\n`);
    console.log(`Public, for agents (KEDGE_PLAN_JWKS):\n${open}`);
  }
}

function cannotWrite(cause: NodeJS.ErrnoException): never {
  const why =
    cause.code === "EEXIST" && cause.syscall === "open"
      ? `${cause.path} is there already: make its successor with --rotate ${cause.path}, or name another folder`
      : `the keys cannot be written: ${cause.message}`;
  throw new KedgeError("config_invalid", `--write: ${why}.`, { cause, param: "write" });
}
