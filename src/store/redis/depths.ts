/** What a lookup found, unpacked: depths and tokens of each slot side by side. */

import { boundaryAt } from "../../prefix/boundaries.ts";
import type { LookupResult } from "../types.ts";
import { digitAt, firstSlotOf, unpackNumber, unpackRate } from "./packing.ts";

/** Characters of tokens, of tokens per key. */
const TOKEN_CHARS = 4;
const RATE_CHARS = 8;
const GROUP_CHARS = 4;

/**
 * `confirmed`, `predicted`: runs of `depth:cells`; `figures`: `probes truncated`. A cell is a group, a tier and tokens, a group its name or,
 * if there are `places`, one digit that is its place among them. Only slots of groups that are `live` count.
 */
export function unpackLookup(
  confirmed: string,
  predicted: string,
  figures: string,
  places: readonly string[] | null,
  live: (group: string) => boolean,
): LookupResult {
  const rowOf = new Map<number, number[]>();
  const groupChars = places === null ? GROUP_CHARS : 1;
  const each = (
    text: string,
    tokenChars: number,
    act: (row: number[], count: number, tokensAt: number) => void,
  ) => {
    if (text === "") return;
    const colons = /(\d+):([^;]*)/g;
    for (const run of text.matchAll(colons)) {
      const end = run.index + run[0].length;
      for (let at = end - run[2].length; at < end; at += groupChars + 1 + tokenChars) {
        const group = places === null ? text.slice(at, at + GROUP_CHARS) : places[digitAt(text, at)];
        if (group === undefined || !live(group)) continue;
        const slot = firstSlotOf(group) + Number(text[at + groupChars]);
        let row = rowOf.get(slot);
        if (row === undefined) {
          row = [slot, 0, 0, 0, 0];
          rowOf.set(slot, row);
        }
        act(row, Number(run[1]), at + groupChars + 1);
      }
    }
  };
  each(confirmed, TOKEN_CHARS, (row, depth, at) => {
    row[1] = depth;
    row[2] = unpackNumber(confirmed, at);
  });
  each(predicted, RATE_CHARS, (row, boundaries, at) => {
    row[3] = boundaryAt(boundaries - 1);
    row[4] = Math.round(row[3] * unpackRate(predicted, at));
  });
  const [probes, truncated] = figures.split(" ");
  const rows = [...rowOf.values()];
  const column = (index: number) => Uint32Array.from(rows, (row) => row[index]);
  return {
    count: rows.length,
    slots: column(0),
    confirmedDepth: column(1),
    confirmedTokens: column(2),
    predictedDepth: column(3),
    predictedTokens: column(4),
    probes: Number(probes),
    truncated: truncated === "1",
  };
}
