/** Scripts sent to Redis in pipelines of EVALSHA, each sent whole where Redis does not know it yet. */

import { KedgeError } from "../../errors/index.ts";
import type { Deadline } from "./deadline.ts";

export interface CommandOutcome {
  readonly result?: unknown;
  readonly error?: string | null;
}

/** Sends commands in one round trip; outcomes come in their order. Rejects if the round trip failed. */
export type SendPipeline = (
  commands: readonly (readonly string[])[],
  signal: AbortSignal,
) => Promise<readonly CommandOutcome[]>;

/** What was sent, since the store was made. */
export interface RedisStoreFigures {
  /** Round trips. */
  requests: number;
  /** Commands as Upstash bills them: one per script call. */
  commands: number;
  /** Characters of all arguments and of all replies, with three for each argument's quotes and comma; without HTTP headers. */
  bytesUp: number;
  bytesDown: number;
}

/** A command, or the call of a script. */
export type Call =
  | { readonly command: readonly string[] }
  | { readonly script: string; readonly key: string; readonly args: readonly string[] };

export class Scripts {
  readonly figures: RedisStoreFigures = { requests: 0, commands: 0, bytesUp: 0, bytesDown: 0 };
  private readonly send: SendPipeline;
  private readonly digests = new Map<string, Promise<string>>();

  constructor(send: SendPipeline) {
    this.send = send;
  }

  /** Replies in the order of the calls. Errors: `view_unavailable`, whatever went wrong. */
  async run(calls: readonly Call[], deadline: Deadline): Promise<unknown[]> {
    const commands = await Promise.all(calls.map((call) => this.commandOf(call)));
    const outcomes = [...(await this.exchange(commands, deadline))];
    const unknown = calls.flatMap((call, i) =>
      "script" in call && outcomes[i].error?.startsWith("NOSCRIPT") ? [i] : [],
    );
    if (unknown.length > 0) {
      const whole = unknown.map((i) => wholeOf(calls[i], commands[i]));
      for (const [at, outcome] of (await this.exchange(whole, deadline)).entries())
        outcomes[unknown[at]] = outcome;
    }
    return outcomes.map(resultOf);
  }

  private async exchange(
    commands: readonly (readonly string[])[],
    deadline: Deadline,
  ): Promise<readonly CommandOutcome[]> {
    const { figures } = this;
    figures.requests += 1;
    figures.commands += commands.length;
    for (const command of commands) for (const argument of command) figures.bytesUp += argument.length + 3;
    const outcomes = await deadline.race(this.send(commands, deadline.signal).catch(refuse));
    if (outcomes.length !== commands.length) throw unavailable("its reply has the wrong number of results");
    for (const { result } of outcomes) figures.bytesDown += sizeOf(result);
    return outcomes;
  }

  private async commandOf(call: Call): Promise<readonly string[]> {
    if ("command" in call) return call.command;
    return ["EVALSHA", await this.digestOf(call.script), "1", call.key, ...call.args];
  }

  private digestOf(script: string): Promise<string> {
    let digest = this.digests.get(script);
    if (digest === undefined) {
      digest = sha1(script);
      this.digests.set(script, digest);
    }
    return digest;
  }
}

function wholeOf(call: Call, command: readonly string[]): readonly string[] {
  return "script" in call ? ["EVAL", call.script, ...command.slice(2)] : command;
}

/** The client's own errors quote whole commands, prompts' keys included, and so are never passed on. */
function refuse(thrown: unknown): never {
  if (thrown instanceof KedgeError) throw thrown;
  const { name = "", message = "" } = thrown as Partial<Error>;
  if (message.startsWith("WRONGPASS")) throw unavailable("it refuses the token; check KEDGE_REDIS_TOKEN");
  if (name === "UpstashError")
    throw unavailable("what answers refuses the request, or has no Redis behind it");
  if (name === "UpstashJSONParseError")
    throw unavailable("what answers there is no Redis over REST; check KEDGE_REDIS_URL");
  throw unavailable("it cannot be reached; check KEDGE_REDIS_URL");
}

/** Of Redis' error only the leading word, such as `OOM` or `READONLY`: the rest may quote arguments. */
function resultOf({ result, error }: CommandOutcome): unknown {
  if (!error) return result;
  const word = /^[A-Z]+/.exec(error)?.[0] ?? "ERR";
  throw new KedgeError("view_unavailable", `The view's Redis refused a command with ${word}.`, {
    cause: new Error(/user_script:\d+: [^']{0,100}/.exec(error)?.[0] ?? word),
  });
}

function unavailable(why: string): KedgeError {
  return new KedgeError("view_unavailable", `The view's Redis did not answer: ${why}.`);
}

function sizeOf(result: unknown): number {
  if (typeof result === "string") return result.length + 3;
  if (Array.isArray(result)) return result.reduce<number>((sum, each) => sum + sizeOf(each), 2);
  return String(result).length + 1;
}

async function sha1(text: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-1", new TextEncoder().encode(text));
  return Array.from(new Uint8Array(digest), (value) => value.toString(16).padStart(2, "0")).join("");
}
