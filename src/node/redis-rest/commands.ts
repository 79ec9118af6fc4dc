/** Which commands may pass, and where their first key stands: Redis' own COMMAND table plus what a shared connection forbids. */

import type { Reply, RestCommand } from "./protocol.ts";

/** Why a command cannot run here, by name. All of them change, block or leave the connection that all requests share. */
const REFUSED: ReadonlyMap<string, string> = new Map([
  ...all(
    "it belongs to a connection, and requests share theirs",
    "AUTH HELLO RESET QUIT SELECT CLIENT ASKING READONLY READWRITE REPLCONF",
  ),
  ...all("send the commands to /multi-exec instead", "MULTI EXEC DISCARD WATCH UNWATCH"),
  ...all(
    "use the routes /subscribe/<channel> and /psubscribe/<pattern>",
    "SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE",
  ),
  ...all(
    "it blocks the connection, and requests share theirs",
    "BLPOP BRPOP BLMOVE BRPOPLPUSH BLMPOP BZPOPMIN BZPOPMAX BZMPOP WAIT WAITAOF",
  ),
  ...all(
    "it administers the server; use redis-cli there",
    `ACL BGREWRITEAOF BGSAVE CLUSTER CONFIG DEBUG FAILOVER LATENCY MIGRATE MODULE MONITOR PFDEBUG PFSELFTEST PSYNC
     REPLICAOF RESTORE-ASKING SAVE SENTINEL SHUTDOWN SLAVEOF SLOWLOG SWAPDB SYNC`,
  ),
]);

function all(reason: string, names: string): [string, string][] {
  return names.split(/\s+/).map((name) => [name, reason]);
}

/** Commands without a read-only flag that a read-only token may use nevertheless. */
const HARMLESS = new Set(["PING", "ECHO", "TIME"]);
/** Read-only, and still not for such a token, which Upstash's users give to browsers: unbounded work, and any program at all. */
const TOO_POWERFUL = new Set(["KEYS", "SCAN", "EVAL_RO"]);

interface KeySpec {
  /** Where the search begins: an argument's index, or the word before it. */
  readonly index: number | null;
  readonly keyword: string | null;
  /** `keynum` keys: offset of the count; null: the key stands where the search begins. */
  readonly countOffset: number | null;
  readonly firstOffset: number;
}

interface Entry {
  readonly flags: ReadonlySet<string>;
  readonly firstKey: number;
  readonly keySpec: KeySpec | null;
  readonly subcommands: ReadonlyMap<string, Entry>;
}

/** What COMMAND said. Empty if the server would not tell: then read-only tokens may run next to nothing. */
export class CommandTable {
  private readonly entries: ReadonlyMap<string, Entry>;

  constructor(reply: Reply) {
    this.entries = readEntries(reply);
  }

  get size(): number {
    return this.entries.size;
  }

  /** The name as a metric label: one of the server's commands, or `other`. */
  label({ name }: RestCommand): string {
    return this.entries.has(name) ? name.toLowerCase() : "other";
  }

  /** An error text in Upstash's words, or null if the command may run. */
  refusal(command: RestCommand, readOnlyToken: boolean): string | null {
    const { name } = command;
    const reason = REFUSED.get(name) ?? this.blockingOrAdmin(command);
    if (reason !== null) return `ERR Command is not available: '${printable(name)}': ${reason}`;
    if (!readOnlyToken || this.isForReaders(command)) return null;
    return `NOPERM this user has no permissions to run the '${printable(name.toLowerCase())}' command or its subcommand`;
  }

  private isForReaders(command: RestCommand): boolean {
    const { name } = command;
    if (TOO_POWERFUL.has(name)) return false;
    return HARMLESS.has(name) || (this.entryOf(command)?.flags.has("readonly") ?? false);
  }

  private blockingOrAdmin(command: RestCommand): string | null {
    const { name } = command;
    if (name === "XREAD" || name === "XREADGROUP") {
      return hasBlockOption(command) ? "BLOCK would hold the connection that requests share" : null;
    }
    if (name === "SCRIPT" && wordAt(command, 0) === "DEBUG") return "it changes the connection";
    const flags = this.entryOf(command)?.flags;
    if (flags?.has("blocking")) return "it blocks the connection, and requests share theirs";
    return flags?.has("admin") ? "it administers the server; use redis-cli there" : null;
  }

  private entryOf(command: RestCommand): Entry | undefined {
    const entry = this.entries.get(command.name);
    if (entry === undefined || entry.subcommands.size === 0) return entry;
    return entry.subcommands.get(wordAt(command, 0)) ?? entry;
  }

  /** The key by which a cluster routes the command; null: it has none. */
  firstKey(command: RestCommand): string | Buffer | null {
    const entry = this.entryOf(command);
    const spec = entry?.keySpec ?? FALLBACK_SPECS.get(command.name);
    const at = spec ? findKey(spec, command) : (entry?.firstKey ?? 0);
    return at > 0 ? (command.args[at - 1] ?? null) : null;
  }
}

/** For servers before 7.0, whose COMMAND has no key specifications. */
const FALLBACK_SPECS: ReadonlyMap<string, KeySpec> = new Map([
  ...["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"].map((name): [string, KeySpec] => [
    name,
    { index: 2, keyword: null, countOffset: 0, firstOffset: 1 },
  ]),
  ...["ZUNION", "ZINTER", "ZDIFF"].map((name): [string, KeySpec] => [
    name,
    { index: 1, keyword: null, countOffset: 0, firstOffset: 1 },
  ]),
  ...["XREAD", "XREADGROUP"].map((name): [string, KeySpec] => [
    name,
    { index: null, keyword: "STREAMS", countOffset: null, firstOffset: 0 },
  ]),
]);

/** Index of the first key as Redis counts, the command's name being 0; 0: there is none. */
function findKey(spec: KeySpec, command: RestCommand): number {
  const start =
    spec.index ??
    command.args.findIndex((arg) => arg.length < 32 && String(arg).toUpperCase() === spec.keyword) + 2;
  if (start < 2 && spec.index === null) return 0;
  if (spec.countOffset === null) return start;
  const count = Number(String(command.args[start + spec.countOffset - 1] ?? "0"));
  return count > 0 ? start + spec.firstOffset : 0;
}

function wordAt({ args }: RestCommand, index: number): string {
  const arg = args[index];
  return arg === undefined || arg.length > 64 ? "" : String(arg).toUpperCase();
}

/** BLOCK among the options; names of groups, consumers and streams may be any word. */
function hasBlockOption(command: RestCommand): boolean {
  for (let i = 0; i < command.args.length; i++) {
    const word = wordAt(command, i);
    if (word === "STREAMS") return false;
    if (word === "BLOCK") return true;
    if (word === "GROUP") i += 2;
  }
  return false;
}

function printable(name: string): string {
  return name.slice(0, 64).replace(/[^\x20-\x7e]/g, "?");
}

function readEntries(reply: Reply): Map<string, Entry> {
  const entries = new Map<string, Entry>();
  for (const item of list(reply)) {
    const fields = list(item);
    const name = text(fields[0]).toUpperCase();
    if (name === "") continue;
    const subcommands = new Map(
      [...readEntries(fields[9] ?? null)].map(([full, entry]) => [full.slice(full.indexOf("|") + 1), entry]),
    );
    entries.set(name, {
      flags: new Set(list(fields[2]).map(text)),
      firstKey: Number(text(fields[3])) || 0,
      keySpec: readKeySpec(list(fields[8])[0]),
      subcommands,
    });
  }
  return entries;
}

function readKeySpec(reply: Reply | undefined): KeySpec | null {
  if (reply === undefined) return null;
  const spec = pairs(reply);
  const begin = pairs(spec.get("begin_search") ?? null);
  const find = pairs(spec.get("find_keys") ?? null);
  const where = pairs(begin.get("spec") ?? null);
  const keys = pairs(find.get("spec") ?? null);
  const byKeyword = text(begin.get("type")) === "keyword";
  const counted = text(find.get("type")) === "keynum";
  if (!byKeyword && text(begin.get("type")) !== "index") return null;
  return {
    index: byKeyword ? null : Number(text(where.get("index"))),
    keyword: byKeyword ? text(where.get("keyword")).toUpperCase() : null,
    countOffset: counted ? Number(text(keys.get("keynumidx"))) : null,
    firstOffset: counted ? Number(text(keys.get("firstkey"))) : 0,
  };
}

function list(reply: Reply | undefined): readonly Reply[] {
  return Array.isArray(reply) ? reply : [];
}

function text(reply: Reply | undefined): string {
  return reply === undefined || reply === null || Array.isArray(reply) ? "" : String(reply);
}

function pairs(reply: Reply): Map<string, Reply> {
  const items = list(reply);
  const map = new Map<string, Reply>();
  for (let i = 0; i + 1 < items.length; i += 2) map.set(text(items[i]), items[i + 1]!);
  return map;
}
