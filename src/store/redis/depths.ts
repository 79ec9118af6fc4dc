/** What a lookup found, unpacked: depths and tokens of each slot side by side. */

import { boundaryAt } from "../../prefix/boundaries.ts";
import type { LookupResult } from "../types.ts";
import { unpackNumber } from "./packing.ts";

/** Characters of a cell: group and tier, tokens. */
const CELL_CHARS = 9;

/** `confirmed`, `predicted`: runs of `depth:cells`; `figures`: `probes truncated`. Only slots of groups that are `live` count. */
export function unpackLookup(
  confirmed: string,
  predicted: string,
  figures: string,
  live: (group: string) => boolean,
): LookupResult {
  const rowOf = new Map<string, number>();
  const rows: number[][] = [];
  const place = (text: string, column: number, depthOf: (count: number) => number) => {
    if (text === "") return;
    for (const run of text.split(";")) {
      const colon = run.indexOf(":");
      const depth = depthOf(Number(run.slice(0, colon)));
      for (let at = colon + 1; at < run.length; at += CELL_CHARS) {
        if (!live(run.slice(at, at + 4))) continue;
        const slot = run.slice(at, at + 5);
        let row = rowOf.get(slot);
        if (row === undefined) {
          row = rows.length;
          rowOf.set(slot, row);
          rows.push([3 * unpackNumber(slot, 0) + Number(slot[4]), 0, 0, 0, 0]);
        }
        rows[row][column] = depth;
        rows[row][column + 1] = unpackNumber(run, at + 5);
      }
    }
  };
  place(confirmed, 1, (count) => count);
  place(predicted, 3, (count) => boundaryAt(count - 1));
  const [probes, truncated] = figures.split(" ");
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
