/** A Redis or Valkey Cluster behind the REST protocol: commands go by their first key's slot, some to every primary. */

import { Cluster, Command, type Redis } from "ioredis";
import {
  type Backend,
  connectionOptions,
  fetchTable,
  gatherWrites,
  LinkLog,
  LOST,
  type Log,
  retryDelayMs,
  runTransaction,
  send,
  toIoredis,
  toOutcome,
} from "./backend.ts";
import { CommandTable } from "./commands.ts";
import type { Outcome, Reply, RestCommand } from "./protocol.ts";

const SLOTS_REFRESH_MS = 5_000;
/** How often a transaction follows its slot to another server. */
const MAX_MOVES = 3;
/** A server of a cluster that can take commands, now or once its connection stands. */
const USABLE = new Set(["ready", "wait", "connecting", "connect"]);

/** How the answers of all primaries become one. */
type Merge = (replies: readonly Reply[]) => Reply;

const first: Merge = (replies) => replies[0]!;
const sum: Merge = (replies) => replies.reduce<number>((total, reply) => total + Number(reply), 0);
const concat: Merge = (replies) => (replies as readonly (readonly Reply[])[]).flat();
/** A script exists if every primary has it. */
const everywhere: Merge = (replies) =>
  (replies[0] as readonly Reply[]).map((_, i) =>
    Math.min(...replies.map((reply) => Number((reply as readonly Reply[])[i]))),
  );

const ON_EVERY_PRIMARY: ReadonlyMap<string, Merge> = new Map([
  ["SCRIPT LOAD", first],
  ["SCRIPT FLUSH", first],
  ["SCRIPT EXISTS", everywhere],
  ["FUNCTION LOAD", first],
  ["FUNCTION DELETE", first],
  ["FUNCTION FLUSH", first],
  ["FUNCTION RESTORE", first],
  ["FLUSHALL", first],
  ["FLUSHDB", first],
  ["DBSIZE", sum],
  ["KEYS", concat],
]);

export class ClusterBackend implements Backend {
  table = new CommandTable(null);
  private readonly cluster: Cluster;
  private readonly link: LinkLog;
  private tableKnown = false;

  constructor(nodes: readonly string[], timeoutMs: number, log: Log) {
    const link = new LinkLog(log);
    this.link = link;
    const { retryStrategy: _, ...redisOptions } = connectionOptions(timeoutMs);
    const credentials = credentialsOf(nodes[0]!);
    this.cluster = new Cluster([...nodes], {
      // A lost command is not sent again: it may have run.
      retryDelayOnFailover: 0,
      // CLUSTERDOWN is the caller's to know at once.
      retryDelayOnClusterDown: 0,
      clusterRetryStrategy: retryDelayMs,
      clusterNodeRetryStrategy: retryDelayMs,
      slotsRefreshInterval: SLOTS_REFRESH_MS,
      redisOptions: { ...redisOptions, ...credentials },
      // Certificates are for names: those stay as the cluster tells them.
      ...(credentials.tls === undefined ? {} : { dnsLookup: (name, callback) => callback(null, name) }),
    });
    this.cluster.on("error", ({ message }: Error) => link.down(message));
    this.cluster.on("node error", ({ message }: Error, address: string) =>
      link.down(`${address}: ${message}`),
    );
    this.cluster.on("close", () => link.closed());
    this.cluster.on("ready", () => {
      link.up();
      void this.learn();
    });
    // Commands would wait in a lazy connection's queue; it may as well stand before they come.
    this.cluster.on("+node", (node: Redis) => {
      if (node.status === "wait") void node.connect().catch(() => undefined);
    });
  }

  get ready(): boolean {
    return this.tableKnown && this.cluster.status === "ready";
  }

  async run(commands: readonly RestCommand[]): Promise<Outcome[]> {
    if (!this.ready) return commands.map(() => LOST);
    const outcomes = await Promise.all(commands.map((command) => this.runOne(command)));
    // A server that is gone is replaced sooner than by the regular look.
    if (outcomes.some(({ kind }) => kind === "lost")) this.cluster.refreshSlotsCache(() => undefined);
    return outcomes;
  }

  async transaction(commands: readonly RestCommand[]): Promise<Outcome[] | Outcome> {
    if (!this.ready) return LOST;
    const slots = new Set(commands.map((command) => this.slotOf(command)).filter((slot) => slot !== null));
    if (slots.size > 1) {
      const message =
        "CROSSSLOT Keys in request don't hash to the same slot; give the keys of a transaction one {tag}";
      return { kind: "error", message };
    }
    const [slot = null] = slots;
    return this.transactionAt(slot, commands, 0);
  }

  /** Follows the slot if it has moved: a discarded transaction has done nothing. */
  private async transactionAt(
    slot: number | null,
    commands: readonly RestCommand[],
    moves: number,
  ): Promise<Outcome[] | Outcome> {
    const node = slot === null ? this.anyPrimary() : this.primaryOf(slot);
    if (node === undefined) return LOST;
    const { outcome, queued } = await runTransaction(node, commands);
    if (Array.isArray(outcome)) return outcome;
    const moved = queued.some((item) => item.kind === "error" && item.message.startsWith("MOVED "));
    if (outcome.kind === "lost" || moved) await this.refreshSlots();
    return moved && moves < MAX_MOVES ? this.transactionAt(slot, commands, moves + 1) : outcome;
  }

  /** From any server: a cluster hands published messages to all. */
  subscriber(): Redis {
    const node = this.anyPrimary() ?? this.cluster.nodes("all")[0];
    if (node === undefined) throw new Error("the cluster has no server that could be reached");
    return node.duplicate({ retryStrategy: () => null, lazyConnect: true });
  }

  close(): void {
    this.link.end();
    this.cluster.disconnect();
  }

  private runOne(command: RestCommand): Promise<Outcome> {
    const merge = ON_EVERY_PRIMARY.get(command.name) ?? ON_EVERY_PRIMARY.get(withSubcommand(command));
    if (merge !== undefined) return this.onEveryPrimary(command, merge);
    if (command.name === "SCAN") return this.scan(command);
    const slot = this.slotOf(command);
    const node = slot === null ? this.anyPrimary() : this.primaryOf(slot);
    if (node === undefined) return Promise.resolve(LOST);
    gatherWrites(node);
    if (slot === null) return send(node, command);
    const routed = toIoredis(command);
    // Found by the server's own table: ioredis' is older, and loops over whatever number of keys a caller names.
    (routed as unknown as { slot: number }).slot = slot;
    return toOutcome(this.cluster.sendCommand(routed) as Promise<unknown>);
  }

  private async onEveryPrimary(command: RestCommand, merge: Merge): Promise<Outcome> {
    const nodes = this.primaries();
    const outcomes = await Promise.all(nodes.map((node) => send(node, command)));
    const failed = outcomes.find(({ kind }) => kind !== "reply");
    if (failed !== undefined) return failed;
    if (outcomes.length === 0) return LOST;
    return { kind: "reply", reply: merge(outcomes.map((outcome) => (outcome as { reply: Reply }).reply)) };
  }

  /** One primary after the other; the cursor names which is on: theirs times their number, plus its place. */
  private async scan(command: RestCommand): Promise<Outcome> {
    const nodes = this.primaries();
    const given = String(command.args[0] ?? "");
    if (!/^\d{1,20}$/.test(given)) return { kind: "error", message: "ERR invalid cursor" };
    const count = BigInt(nodes.length);
    if (count === 0n) return LOST;
    const place = Number(BigInt(given) % count);
    const args = [String(BigInt(given) / count), ...command.args.slice(1)];
    const outcome = await send(nodes[place]!, { name: "SCAN", args });
    if (outcome.kind !== "reply" || !Array.isArray(outcome.reply)) return outcome;
    const [cursor, keys] = outcome.reply as readonly Reply[];
    const own = BigInt(String(cursor));
    const next = own !== 0n ? own * count + BigInt(place) : place + 1 < nodes.length ? BigInt(place + 1) : 0n;
    return { kind: "reply", reply: [Buffer.from(String(next)), keys!] };
  }

  private slotOf(command: RestCommand): number | null {
    const key = this.table.firstKey(command);
    return key === null
      ? null
      : (new Command("GET", [key]) as unknown as { getSlot(): number | null }).getSlot();
  }

  private primaryOf(slot: number): Redis | undefined {
    const key = this.cluster.slots[slot]?.[0];
    const node = key === undefined ? undefined : nodesOf(this.cluster).getInstanceByKey(key);
    return node !== undefined && USABLE.has(node.status) ? node : undefined;
  }

  private anyPrimary(): Redis | undefined {
    const nodes = this.cluster.nodes("master").filter(({ status }) => status === "ready");
    return nodes[Math.floor(Math.random() * nodes.length)];
  }

  /** In a stable order, so that a scan's cursor keeps its meaning. */
  private primaries(): Redis[] {
    const named = this.cluster
      .nodes("master")
      .map((node) => ({ node, name: `${node.options.host}:${node.options.port}` }));
    return named.sort((a, b) => (a.name < b.name ? -1 : 1)).map(({ node }) => node);
  }

  private refreshSlots(): Promise<void> {
    return new Promise((resolve) => this.cluster.refreshSlotsCache(() => resolve()));
  }

  private async learn(): Promise<void> {
    const node = this.cluster.nodes("master")[0];
    const table = node === undefined ? null : await fetchTable(node);
    if (table === null) return;
    this.table = table;
    this.tableKnown = true;
  }
}

/** ioredis' own map from address to connection, which has no public door. */
function nodesOf(cluster: Cluster): { getInstanceByKey(key: string): Redis | undefined } {
  return (cluster as unknown as { connectionPool: { getInstanceByKey(key: string): Redis | undefined } })
    .connectionPool;
}

function withSubcommand({ name, args }: RestCommand): string {
  return `${name} ${String(args[0] ?? "")
    .slice(0, 32)
    .toUpperCase()}`;
}

/** Servers learnt from the cluster come without a URL: they take the first one's credentials and encryption. */
function credentialsOf(url: string): { username?: string; password?: string; tls?: object } {
  const { protocol, username, password } = new URL(url);
  return {
    ...(username === "" ? {} : { username: decodeURIComponent(username) }),
    ...(password === "" ? {} : { password: decodeURIComponent(password) }),
    ...(protocol === "rediss:" ? { tls: {} } : {}),
  };
}
