/** Redis behind the REST protocol: what server and cluster have in common, and the single server. */

import { Command, Redis, type RedisOptions } from "ioredis";
import { CommandTable } from "./commands.ts";
import type { Outcome, Reply, RestCommand } from "./protocol.ts";

/** Where Redis is: one server, or some nodes of a cluster. */
export type RedisTarget =
  | string
  | { readonly host: string; readonly port: number; readonly username?: string; readonly password?: string }
  | { readonly cluster: readonly string[] };

export interface Backend {
  /** Connected, and its command table known. */
  readonly ready: boolean;
  readonly table: CommandTable;
  /** Outcomes in the order of the commands, which run in that order wherever they go to the same server. Never rejects. */
  run(commands: readonly RestCommand[]): Promise<Outcome[]>;
  /** As one transaction; a single outcome if it was discarded. Never rejects. */
  transaction(commands: readonly RestCommand[]): Promise<Outcome[] | Outcome>;
  /** A connection of its own for subscriptions; the caller disconnects it. */
  subscriber(): Redis;
  close(): void;
}

export type Log = (level: "info" | "warn", message: string) => void;

/** How soon the same trouble may be told again. */
const REPEAT_MS = 60_000;

/** Tells the operator, not the clients, why Redis is away, each reason once a minute, and when it is back. */
export class LinkLog {
  private readonly log: Log;
  private readonly toldMs = new Map<string, number>();
  private isUp = false;
  private hasEnded = false;

  constructor(log: Log) {
    this.log = log;
  }

  /** The connection is closed on purpose from here on. */
  end(): void {
    this.hasEnded = true;
  }

  up(): void {
    if (!this.isUp && this.toldMs.size > 0) this.log("info", "Redis is connected again");
    this.toldMs.clear();
    this.isUp = true;
  }

  down(reason: string): void {
    this.isUp = false;
    if (this.hasEnded) return;
    const nowMs = performance.now();
    if (nowMs - (this.toldMs.get(reason) ?? -REPEAT_MS) < REPEAT_MS) return;
    this.toldMs.set(reason, nowMs);
    this.log("warn", `no connection to Redis, trying on: ${reason}`);
  }

  closed(): void {
    if (this.isUp) this.down("the connection closed");
  }
}

/** Longest wait for a word from Redis before its connection counts as dead. */
export const DEFAULT_REDIS_TIMEOUT_MS = 5_000;
const MAX_RETRY_DELAY_MS = 1_000;

export const retryDelayMs = (attempts: number): number => Math.min(attempts * 50, MAX_RETRY_DELAY_MS);

/** No command is ever sent twice, none waits for a server that is gone, and replies come as Redis sent them. */
export function connectionOptions(timeoutMs: number): RedisOptions {
  return {
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    connectTimeout: timeoutMs,
    socketTimeout: timeoutMs,
    disableClientInfo: true,
    noDelay: true,
    keepAlive: 30_000,
    retryStrategy: retryDelayMs,
  };
}

const UNREACHABLE = "ERR Redis is not reachable; nothing was run";
export const LOST: Outcome = { kind: "lost", message: UNREACHABLE };

/** Capital names bypass ioredis' transformers, which go by small ones: replies stay as Redis sent them. */
export function toIoredis({ name, args }: RestCommand): Command {
  return new Command(name, args as (string | Buffer)[], { replyEncoding: null });
}

export function toOutcome(promise: Promise<unknown>): Promise<Outcome> {
  return promise.then(
    (reply): Outcome => ({ kind: "reply", reply: reply as Reply }),
    (error: Error): Outcome =>
      error.name === "ReplyError"
        ? { kind: "error", message: error.message }
        : {
            kind: "lost",
            message: "ERR the connection to Redis was lost; whether the command ran is unknown",
          },
  );
}

const corked = new WeakSet<object>();

/** Whatever is sent within this turn of the event loop leaves in one write. */
export function gatherWrites({ stream }: Redis): void {
  if (!stream || corked.has(stream)) return;
  corked.add(stream);
  stream.cork();
  setImmediate(() => {
    corked.delete(stream);
    stream.uncork();
  });
}

/** MULTI, the commands, EXEC in one go on one connection. */
export async function runTransaction(
  redis: Redis,
  commands: readonly RestCommand[],
): Promise<{ outcome: Outcome[] | Outcome; queued: readonly Outcome[] }> {
  gatherWrites(redis);
  const all = [{ name: "MULTI", args: [] }, ...commands, { name: "EXEC", args: [] }];
  const outcomes = await Promise.all(all.map((command) => send(redis, command)));
  const exec = outcomes.pop()!;
  if (exec.kind !== "reply" || !Array.isArray(exec.reply)) {
    const cause = outcomes.find((outcome) => outcome.kind === "error");
    const outcome: Outcome =
      exec.kind === "error" && cause !== undefined
        ? { kind: "error", message: `${exec.message} First error: ${(cause as { message: string }).message}` }
        : exec;
    return { outcome, queued: outcomes };
  }
  const outcome = (exec.reply as readonly Reply[]).map(
    (reply): Outcome =>
      reply instanceof Error ? { kind: "error", message: reply.message } : { kind: "reply", reply },
  );
  return { outcome, queued: outcomes };
}

export function send(redis: Redis, command: RestCommand): Promise<Outcome> {
  return toOutcome(redis.sendCommand(toIoredis(command)) as Promise<unknown>);
}

/** COMMAND's answer; an empty table if the server refuses to tell. */
export async function fetchTable(redis: Redis): Promise<CommandTable | null> {
  const outcome = await send(redis, { name: "COMMAND", args: [] });
  if (outcome.kind === "lost") return null;
  return new CommandTable(outcome.kind === "reply" ? outcome.reply : null);
}

export class ServerBackend implements Backend {
  table = new CommandTable(null);
  private readonly redis: Redis;
  private readonly link: LinkLog;
  private tableKnown = false;

  constructor(target: Exclude<RedisTarget, { cluster: readonly string[] }>, timeoutMs: number, log: Log) {
    const link = new LinkLog(log);
    this.link = link;
    // Digits as text: integers beyond 2^53 stay exact.
    const options = { ...connectionOptions(timeoutMs), stringNumbers: true };
    this.redis =
      typeof target === "string" ? new Redis(target, options) : new Redis({ ...target, ...options });
    this.redis.on("error", ({ message }: Error) => link.down(message));
    this.redis.on("close", () => link.closed());
    this.redis.on("ready", () => {
      link.up();
      void this.learn();
    });
  }

  get ready(): boolean {
    return this.tableKnown && this.redis.status === "ready";
  }

  run(commands: readonly RestCommand[]): Promise<Outcome[]> {
    if (!this.ready) return Promise.resolve(commands.map(() => LOST));
    gatherWrites(this.redis);
    return Promise.all(commands.map((command) => send(this.redis, command)));
  }

  async transaction(commands: readonly RestCommand[]): Promise<Outcome[] | Outcome> {
    return this.ready ? (await runTransaction(this.redis, commands)).outcome : LOST;
  }

  subscriber(): Redis {
    return this.redis.duplicate({ retryStrategy: () => null, lazyConnect: true });
  }

  close(): void {
    this.link.end();
    this.redis.disconnect();
  }

  private async learn(): Promise<void> {
    const table = await fetchTable(this.redis);
    if (table === null) return;
    this.table = table;
    this.tableKnown = true;
  }
}
