/** `kedge replay-scenario`: recorded sessions through Kedge's own index, tracker and policies; every difference is printed. */

import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { Command } from "commander";
import { KedgeError } from "../../errors/index.ts";
import { createHasher, type Hasher } from "../../prefix/hasher.ts";
import { seeded } from "../compare/random.ts";
import { parseSession, type Session } from "../replay/file.ts";
import { HISTORY_BLOCK_SIZE, replayHistory } from "../replay/history.ts";
import { KedgeIndex } from "../replay/kedge-index.ts";
import { replayScenario } from "../replay/scenario.ts";
import { StrictIndex } from "../replay/strict-index.ts";
import { type Difference, Tally } from "../replay/tally.ts";

const HELP = `
FILE holds one JSON object per line, of either format, told apart by its fields:

  index histories    {id, kind, events, both | v0_9, v1_6}: every lookup and the final block counts are compared.
                     Kinds middle, private and quirk are compared with the strict answer (an unbroken run of the rank's
                     own blocks); how often Dynamo's recorded answers agree with it is counted apart.
  routing scenarios  {id, name, config, block_size, workers, prompts, steps}, recorded of Dynamo 0.9 (config names
                     overlap_score_weight; policy kv) or 1.6 (policy kv-1.x): every load, overlap, cost and choice is
                     compared; costs within 0.0006 (0.9, recorded with three decimals) or relative 1e-6 (1.6).
                     A route is booked on the recorded worker, since ties are random.

Exit code: 0 no differences, 1 differences or an unreadable line.
`;

export function replayScenarioCommand(): Command {
  return new Command("replay-scenario")
    .description(
      "Replay a recorded file through Kedge's index, load tracker and policies; report every difference.",
    )
    .argument("<file>", "JSON lines of scenarios or index histories")
    .option("--json", "print {sessions, compared, differences, notes} as one JSON object")
    .addHelpText("after", HELP)
    .action(async (file: string, options: { json?: boolean }) => {
      const tally = await replayFile(file, options.json ? null : printDifference);
      if (options.json) console.log(JSON.stringify(toJson(tally)));
      else printSummary(tally);
      if (tally.differences.length > 0) process.exitCode = 1;
    });
}

/** Errors: `invalid_request` for a file or line that cannot be read. */
export async function replayFile(
  file: string,
  onDifference: ((difference: Difference) => void) | null = null,
): Promise<Tally> {
  const tally = new Tally(onDifference);
  const hasher = await createHasher();
  let line = 0;
  for await (const text of linesOf(file)) {
    line += 1;
    if (text.trim() === "") continue;
    replaySession(parseSession(text, line), line, hasher, tally);
    showProgress(tally);
  }
  if (tally.sessions === 0) throw new KedgeError("invalid_request", `${file} holds no session.`);
  return tally;
}

function replaySession(session: Session, line: number, hasher: Hasher, tally: Tally): void {
  const random = seeded(line, "replay-scenario");
  if (session.format === "history") {
    const { history } = session;
    tally.begin(line, `history ${history.id} (${history.kind})`);
    const index = new KedgeIndex(hasher, HISTORY_BLOCK_SIZE, random);
    replayHistory(history, index, new StrictIndex(HISTORY_BLOCK_SIZE), tally);
  } else {
    const { scenario } = session;
    tally.begin(line, `scenario ${scenario.id} (${scenario.name})`);
    const index = new KedgeIndex(hasher, scenario.block_size, random);
    replayScenario(scenario, index, (tokenIds) => [...index.chain(tokenIds).keys], random, tally);
  }
}

async function* linesOf(file: string): AsyncGenerator<string> {
  try {
    yield* createInterface({ input: createReadStream(file), crlfDelay: Number.POSITIVE_INFINITY });
  } catch (error) {
    const code = error instanceof Error && "code" in error ? error.code : null;
    if (code === null) throw error;
    throw new KedgeError("invalid_request", `${file} cannot be read: ${String(code)}.`, { cause: error });
  }
}

function showProgress(tally: Tally): void {
  if (process.stderr.isTTY) process.stderr.write(`\r${tally.sessions} sessions, ${tally.compared} values `);
}

function printDifference({ line, session, what, expected, actual }: Difference): void {
  console.log(`line ${line}, ${session}: ${what}: recorded ${expected}, Kedge ${actual}`);
}

function printSummary(tally: Tally): void {
  if (process.stderr.isTTY) process.stderr.write("\r");
  const { sessions, compared, differences, notes } = tally;
  console.log(`${sessions} sessions, ${compared} values compared, ${differences.length} differences`);
  for (const [name, { same, different }] of notes) {
    console.log(
      `where the strict answer counts, ${name} agrees in ${same} values and differs in ${different}`,
    );
  }
}

const toJson = ({ sessions, compared, differences, notes }: Tally) => ({
  sessions,
  compared,
  differences,
  notes: Object.fromEntries(notes),
});
