/** Dynamo's recordings, line by line. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

export const fixturePath = (name: string): string =>
  fileURLToPath(new URL(`../fixtures/dynamo/${name}`, import.meta.url));

export const fixtureLines = (name: string): string[] =>
  readFileSync(fixturePath(name), "utf8").trimEnd().split("\n");
