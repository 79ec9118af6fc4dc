/** Replays an index history: every lookup and the final block counts, against the recorded or the strict answer. */

import { type BlockIndex, type Place, placeName } from "./block-index.ts";
import type { History, HistoryEvent } from "./file.ts";
import type { Tally } from "./tally.ts";

/** Kinds whose recorded answers are known to credit what is not held, or to lose what is; the strict answer is right. */
const STRICT_KINDS: ReadonlySet<string> = new Set(["middle", "private", "quirk"]);

type Counts = Readonly<Record<string, number>>;
interface Answers {
  readonly lookups: readonly Counts[];
  /** Null: not recorded. */
  readonly blocks: Counts | null;
}

/** Histories name blocks by one 64-bit hash of their tokens: each hash becomes one token, a block is one token long. */
export const HISTORY_BLOCK_SIZE = 1;

export function replayHistory(history: History, index: BlockIndex, strict: BlockIndex, tally: Tally): void {
  const got = answersOf(history, index);
  const recorded = history.both ?? history.v1_6 ?? history.v0_9;
  const isStrict = STRICT_KINDS.has(history.kind) || recorded === undefined;
  const wanted = isStrict ? answersOf(history, strict) : recorded;
  compare(wanted, got, (what, expected, actual) => tally.check(what, expected, actual));
  if (!isStrict) return;
  for (const [version, answers] of [
    ["0.9", history.v0_9 ?? history.both],
    ["1.6", history.v1_6 ?? history.both],
  ] as const) {
    if (answers === undefined) continue;
    compare(answers, got, (_what, expected, actual) => tally.note(`Dynamo ${version}`, expected === actual));
  }
}

/** The same events on any index. Ranks are those that the history names. */
export function answersOf(history: History, index: BlockIndex): Answers {
  const tokens = new TokenNames();
  const places = new Map<string, Place>();
  const lookups: Counts[] = [];
  for (const event of history.events) {
    if (event[0] === "q") {
      const depths = index.lookup(event[1].map((hash) => tokens.of(hash)));
      lookups.push(Object.fromEntries([...depths].map(([name, depth]) => [name, depth.device])));
    } else {
      applyEvent(event, index, tokens, places);
    }
  }
  const held = [...places].map(([name, place]) => [name, index.blockCount(place)] as const);
  return { lookups, blocks: Object.fromEntries(held.filter(([, count]) => count > 0)) };
}

function applyEvent(
  event: Exclude<HistoryEvent, ["q", bigint[]]>,
  index: BlockIndex,
  tokens: TokenNames,
  places: Map<string, Place>,
): void {
  const worker = String(event[1]);
  if (event[0] === "x" || event[0] === "k") {
    for (const place of places.values()) if (place.worker === worker) index.clear(place);
    return;
  }
  const place = { worker, rank: event[2] };
  places.set(placeName(place), place);
  if (event[0] === "s") {
    const blocks = event[4].map(([hash, name]) => ({ hash, tokenIds: [tokens.of(name)] }));
    index.store(place, "device", event[3], blocks);
  } else if (event[0] === "r") index.remove(place, "device", event[3]);
  else index.clear(place);
}

function compare(
  wanted: Answers,
  got: Answers,
  report: (what: string, expected: number, actual: number) => void,
): void {
  wanted.lookups.forEach((lookup, nth) => {
    const actual = got.lookups[nth]!;
    for (const name of new Set([...Object.keys(lookup), ...Object.keys(actual)])) {
      report(`lookup ${nth}, rank ${name}`, lookup[name] ?? 0, actual[name] ?? 0);
    }
  });
  if (wanted.blocks === null) return;
  for (const name of new Set([...Object.keys(wanted.blocks), ...Object.keys(got.blocks!)])) {
    report(`blocks of rank ${name}`, wanted.blocks[name] ?? 0, got.blocks![name] ?? 0);
  }
}

/** 64-bit token hashes as token ids. */
class TokenNames {
  readonly #ids = new Map<bigint, number>();

  of(hash: bigint): number {
    const id = this.#ids.get(hash) ?? this.#ids.size;
    this.#ids.set(hash, id);
    return id;
  }
}
