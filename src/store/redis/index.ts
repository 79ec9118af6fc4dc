/** The view in Redis: scripts over the Upstash REST protocol, one round trip per decision (design D1–D6). */

import { DEFAULT_LIVENESS } from "../../fleet/rules.ts";
import type {
  BusyThresholds,
  FleetRow,
  IncarnationKey,
  LoadReport,
  Registration,
  Tier,
} from "../../fleet/types.ts";
import { boundaryCount } from "../../prefix/boundaries.ts";
import type {
  ApplyOutcome,
  KvBatch,
  KvSnapshot,
  LeaderLease,
  ReportOutcome,
  ReserveWrite,
  ViewRead,
  ViewStore,
} from "../types.ts";
import { Deadline } from "./deadline.ts";
import { unpackLookup } from "./depths.ts";
import { RedisLease } from "./lease.ts";
import {
  ADVANCE_SCRIPT,
  APPLY_SCRIPT,
  CHECK_SCRIPT,
  READ_SCRIPT,
  REGISTER_SCRIPT,
  RELEASE_SCRIPT,
  REPORT_SCRIPT,
  RESERVE_SCRIPT,
  RESET_SCRIPT,
  RETIRE_SCRIPT,
  ROSTER_SCRIPT,
  ROWS_SCRIPT,
  SNAPSHOT_BEGIN_SCRIPT,
  SNAPSHOT_END_SCRIPT,
} from "./lua/fleet.ts";
import { LOOKUP_SCRIPT } from "./lua/lookup.ts";
import { APPLY_SHARD_SCRIPT, CHUNK_SCRIPT, PREDICT_SCRIPT } from "./lua/write.ts";
import { checkOps, chunked, joined, packOps } from "./ops.ts";
import type { RedisStoreOptions } from "./options.ts";
import { OwnReservations } from "./own-reservations.ts";
import {
  asciiJson,
  asciiName,
  packBoundaryKeys,
  packKeys,
  packRate,
  packStamp,
  shardOf,
  slotsOf,
} from "./packing.ts";
import { restPipeline } from "./rest.ts";
import {
  CARD_HASH_CHARS,
  type Head,
  type Member,
  parseHead,
  parseRows,
  type Reserved,
  Roster,
  type RowTexts,
  rowOf,
} from "./roster.ts";
import { type Call, type RedisStoreFigures, Scripts } from "./scripts.ts";

export { type RedisStoreOptions, redisStoreOptions } from "./options.ts";
export type { CommandOutcome, RedisStoreFigures, SendPipeline } from "./scripts.ts";

/** Time for a write, retry included. */
const WRITE_DEADLINE_MS = 2_000;
/** Rows of a model come with every reading up to this many, for larger fleets from a copy. */
const ROWS_PER_READ = 64;
/** Script calls of one write sent together. */
const CALLS_PER_REQUEST = 8;
/** Readers wait for one another's refresh of the roster while it is younger than this; then they ask themselves. */
const REFRESH_JOIN_MS = 250;
/** Without replica sync: how long a process counts its own reservation. */
const OWN_ONLY_MS = 1_000;

const NO_THRESHOLDS: BusyThresholds = {
  activeDecodeBlocksThreshold: null,
  activePrefillTokensThreshold: null,
  activePrefillTokensThresholdFrac: null,
};

const OUTCOMES: Readonly<Record<string, ApplyOutcome>> = {
  a: "applied",
  d: "duplicate",
  g: "gap",
  r: "retired",
  u: "unknown",
};

/** When a reading was asked for, by this process's clock and in the order of its own reservations. */
interface Moment {
  readonly atMs: number;
  readonly mark: number;
}

/** Rows as of one reading. */
interface Copy extends Moment {
  readonly head: Head;
  readonly rows: RowTexts;
}

/**
 * Needs Redis 6.2, any Valkey, or Upstash. With one shard each call is one script, and so one step for all who read. With several, fleet and
 * index lie under tags of their own (the index's by the first key of a chain): a reading takes two commands in one round trip, a write of
 * batches asks the fleet, then all shards, then the fleet again; whoever fails between finds a gap or a duplicate later, never a wrong holder.
 *
 * Errors of all methods: `view_unavailable` for whatever keeps Redis from answering in time.
 */
export class RedisStore implements ViewStore {
  private readonly options: RedisStoreOptions;
  private readonly scripts: Scripts;
  private readonly roster = new Roster();
  /** Under way; joined by all who need it meanwhile. */
  private refreshing: { readonly done: Promise<void>; readonly sinceMs: number } | null = null;
  private wholeFleet: Copy | null = null;
  /** Rows of models with large fleets. */
  private readonly copies = new Map<string, Copy>();
  private readonly own: OwnReservations;
  private readonly sentCards = new Set<string>();
  private epochName = "";

  constructor(options: RedisStoreOptions) {
    this.options = options;
    this.scripts = new Scripts(options.send ?? restPipeline(options.url, options.token));
    this.own = new OwnReservations(Math.max(OWN_ONLY_MS, options.fleetMaxAgeMs + 2 * options.deadlineMs));
  }

  get epoch(): string {
    return this.epochName;
  }

  /** What was sent so far, for benchmarks and metrics. */
  get figures(): Readonly<RedisStoreFigures> {
    return { ...this.scripts.figures };
  }

  /** Errors: `view_unavailable` after `deadlineMs`. */
  read(model: string, keys: BigUint64Array): Promise<ViewRead> {
    return this.within(this.options.deadlineMs, async (deadline) => {
      const asked = this.moment();
      const calls = this.readCalls(model, keys);
      const known = this.copies.get(model);
      const copyIsDue = known !== undefined && asked.atMs - known.atMs > this.options.fleetMaxAgeMs;
      const more = copyIsDue ? [this.rowsCall(model, Number.MAX_SAFE_INTEGER)] : [];
      const replies = (await this.runWithRoster([...calls, ...more], deadline)) as string[][];
      const [headText, rowsText, thresholds, ...found] = replies.slice(0, calls.length).flat();
      const head = parseHead(headText);
      const isLarge = Number(headText.split(" ")[3]) > ROWS_PER_READ;
      if (!isLarge) this.copies.delete(model);
      else if (copyIsDue) this.keepCopy(model, replies[calls.length], asked);
      await this.cover(head, deadline);
      const copy = isLarge
        ? await this.copyOf(model, head, deadline)
        : { head, rows: parseRows(rowsText), ...asked };
      const isLive = (group: string) => copy.rows.has(group) && this.roster.of(group) !== undefined;
      const isPlaced = !isLarge && this.options.shards === 1;
      const [confirmed = "", predicted = "", figures = "0 0"] = found;
      return {
        epoch: head.epoch,
        lookup: unpackLookup(confirmed, predicted, figures, isPlaced ? [...copy.rows.keys()] : null, isLive),
        fleet: this.rowsOf(this.roster.membersOf(model), copy),
        thresholds: thresholdsOf(thresholds),
      };
    });
  }

  /** A copy of at most `maxAgeMs`; default: read anew. */
  fleet(maxAgeMs?: number): Promise<readonly FleetRow[]> {
    return this.within(this.options.deadlineMs, async (deadline) => {
      const kept = this.wholeFleet;
      const isFresh =
        maxAgeMs !== undefined && kept !== null && this.options.clock.now() - kept.atMs <= maxAgeMs;
      if (!isFresh) await this.lead(deadline);
      const copy = this.wholeFleet!;
      return this.roster.models().flatMap((model) => this.rowsOf(this.roster.membersOf(model), copy));
    });
  }

  async register(registration: Registration): Promise<Readonly<Record<Tier, number>> | null> {
    const { card, ...rest } = registration;
    const cardText = asciiJson(card);
    const hash = await contentHash(cardText);
    const args = [
      ...rankArgs(registration),
      ...this.newEpoch(),
      asciiName(registration.model),
      hash,
      asciiJson(rest),
    ];
    const register = (text: string) =>
      this.write([this.fleetCall(REGISTER_SCRIPT, this.horizon, ...args, text)]) as Promise<string[][]>;
    let [[outcome, group, replaced]] = await register(this.sentCards.has(hash) ? "" : cardText);
    if (outcome === "c") [[outcome, group, replaced]] = await register(cardText);
    if (outcome === "r") return null;
    if (this.sentCards.size >= 256) this.sentCards.clear();
    this.sentCards.add(hash);
    if (outcome === "n") await this.markShards(group, 0, replaced);
    else await this.markWhereLost(group);
    return slotsOf(group);
  }

  async retire(key: IncarnationKey): Promise<void> {
    const [group] = await this.write([this.fleetCall(RETIRE_SCRIPT, this.horizon, ...rankArgs(key))]);
    await this.unmarkShards([group as string]);
  }

  async apply(batches: readonly KvBatch[]): Promise<readonly ApplyOutcome[]> {
    for (const batch of batches) checkOps(batch.ops);
    const groups = joined(batches);
    const letters =
      this.options.shards === 1
        ? await this.applyHere(groups)
        : (await inTurn(groups, (group) => this.applyToShards(group))).flat();
    return letters.map((letter) => OUTCOMES[letter]);
  }

  /** Written under slots of its own, which take the place of the rank's in one step when all is there. */
  async applySnapshot(snapshot: KvSnapshot): Promise<ApplyOutcome> {
    checkOps(snapshot.ops);
    const args = [this.horizon, ...rankArgs(snapshot), String(snapshot.sequence)];
    const [group] = (await this.write([this.fleetCall(SNAPSHOT_BEGIN_SCRIPT, ...args)])) as string[];
    if (group in OUTCOMES) return OUTCOMES[group];
    const chunks: Call[] = [];
    for (const [shard, ops] of this.byShard(snapshot.ops).entries()) {
      for (const chunk of chunked(ops)) {
        chunks.push(this.shardCall(shard, CHUNK_SCRIPT, this.horizon, group, ...packOps(chunk)));
      }
    }
    await this.writeAll(chunks);
    await this.markShards(group, snapshot.sequence, "");
    const [ended] = (await this.write([this.fleetCall(SNAPSHOT_END_SCRIPT, ...args, group)])) as string[];
    const wasTaken = ended[0] === "a";
    await this.unmarkShards([wasTaken ? ended.slice(1) : group]);
    return OUTCOMES[ended[0]];
  }

  async reserve(write: ReserveWrite): Promise<void> {
    const { requestId, blocks, prefillTokens, reservationTtlMs, prediction } = write;
    this.own.add(idOf(write), write, this.options.clock.now());
    const isShared = this.options.replicaSync !== false;
    if (!isShared && prediction === null) return;
    const predicted =
      prediction === null || prediction.keys.length === 0
        ? null
        : [
            String(Math.round(prediction.ttlMs)),
            packBoundaryKeys(prediction.keys),
            packRate(prediction.tokensPerKey) + packStamp(this.options.random()),
          ];
    const load = [
      isShared ? requestId : "",
      amount(blocks),
      amount(prefillTokens),
      String(Math.round(reservationTtlMs)),
    ];
    const nothing = ["0", "", ""];
    const here = this.options.shards === 1 ? (predicted ?? nothing) : nothing;
    const calls: Call[] = [];
    if (isShared || this.options.shards === 1) {
      calls.push(this.fleetCall(RESERVE_SCRIPT, this.horizon, ...rankArgs(write), ...load, ...here));
    }
    if (this.options.shards > 1 && predicted !== null) {
      const group = await this.groupOf(write);
      const [ttlMs, ...rest] = predicted;
      const capped = String(Math.min(Number(ttlMs), this.options.horizonMs));
      const shard = shardOf(prediction!.keys[0], this.options.shards);
      if (group !== null) calls.push(this.shardCall(shard, PREDICT_SCRIPT, group, capped, ...rest));
    }
    if (calls.length > 0) await this.write(calls);
  }

  async release(key: IncarnationKey, requestId: string): Promise<void> {
    this.own.release(idOf(key), requestId);
    if (this.options.replicaSync === false) return;
    await this.write([this.fleetCall(RELEASE_SCRIPT, this.horizon, ...rankArgs(key), requestId)]);
  }

  async report(reports: readonly LoadReport[], heartbeat = false): Promise<readonly ReportOutcome[]> {
    const args = [this.horizon, ...this.newEpoch(), heartbeat ? "1" : "0", String(reports.length)];
    for (const report of reports) {
      args.push(...rankArgs(report), String(report.sequence));
      for (const load of [report.activeBlocks, report.prefillTokens, report.running, report.waiting]) {
        args.push(load === null ? "-" : amount(load));
      }
      args.push(String(report.publishedSequence), String(report.admitted.length), ...report.admitted);
    }
    const [reply] = (await this.write([this.fleetCall(REPORT_SCRIPT, ...args)])) as string[];
    const [letters, ...inert] = reply.split(",");
    await this.unmarkShards(inert);
    return Array.from(letters, (letter) => OUTCOMES[letter] as ReportOutcome);
  }

  async getThresholds(model: string): Promise<BusyThresholds> {
    const command = ["HGET", `${this.fleetTag}t`, asciiName(model)];
    return this.within(this.options.deadlineMs, async (deadline) => {
      const [text] = await this.scripts.run([{ command }], deadline);
      return thresholdsOf(text as string | null);
    });
  }

  async setThresholds(model: string, thresholds: BusyThresholds): Promise<void> {
    await this.write([
      { command: ["HSET", `${this.fleetTag}t`, asciiName(model), JSON.stringify(thresholds)] },
    ]);
  }

  async reset(): Promise<void> {
    const [epoch, first] = this.newEpoch();
    await this.write([this.fleetCall(RESET_SCRIPT, this.horizon, epoch, first)]);
    if (this.options.shards > 1) {
      await this.write(this.shardTags().map((tag) => ({ command: ["DEL", `${tag}w`] })));
    }
    this.roster.clear();
    this.wholeFleet = null;
    this.copies.clear();
    this.epochName = epoch;
  }

  /** A leader's lease in this view, by Redis' clock. */
  lease(name: string, holder: string, ttlMs: number): LeaderLease {
    return new RedisLease({
      run: async (call) => (await this.write([call]))[0],
      key: `${this.fleetTag}l${asciiName(name)}`,
      holder,
      ttlMs,
      backend: this.options.backend,
    });
  }

  private get fleetTag(): string {
    return `{${this.options.view}.1}`;
  }

  private get horizon(): string {
    return String(this.options.horizonMs);
  }

  private shardTags(): string[] {
    const { shards, view } = this.options;
    if (shards === 1) return [this.fleetTag];
    return Array.from({ length: shards }, (_, shard) => `{${view}.1.${shard}}`);
  }

  private fleetCall(script: string, ...args: string[]): Call {
    return { script, key: `${this.fleetTag}c`, args: [this.viewNow(), ...args] };
  }

  private shardCall(shard: number, script: string, ...args: string[]): Call {
    return { script, key: `${this.shardTags()[shard]}w`, args: [this.viewNow(), ...args] };
  }

  /** Scripts read Redis' clock unless a test's takes its place. */
  private viewNow(): string {
    const { viewNowMs } = this.options;
    return viewNowMs === undefined ? "" : String(Math.floor(viewNowMs()));
  }

  /** A name for a new epoch and the number of its first group, should the view be empty. */
  private newEpoch(): [epoch: string, first: string] {
    const word = () => Math.floor(this.options.random() * 2 ** 32);
    const epoch = [word(), word()].map((part) => part.toString(16).padStart(8, "0")).join("");
    return [epoch, String(word() % 2 ** 24)];
  }

  private readCalls(model: string, keys: BigUint64Array): Call[] {
    const { shards } = this.options;
    const found = [packKeys(keys), String(boundaryCount(keys.length))];
    if (shards === 1) {
      return [this.fleetCall(READ_SCRIPT, asciiName(model), String(ROWS_PER_READ), ...found)];
    }
    const rows = this.rowsCall(model, ROWS_PER_READ);
    if (keys.length === 0) return [rows];
    return [rows, this.shardCall(shardOf(keys[0], shards), LOOKUP_SCRIPT, ...found)];
  }

  private rowsCall(model: string, most: number): Call {
    return this.fleetCall(ROWS_SCRIPT, asciiName(model), String(most));
  }

  private rosterCall(): Call {
    const { epoch, version, knownCards } = this.roster;
    return this.fleetCall(ROSTER_SCRIPT, epoch, String(version), knownCards);
  }

  /** While there is no copy of the roster it comes in the same round trip. */
  private async runWithRoster(calls: readonly Call[], deadline: Deadline): Promise<unknown[]> {
    if (this.roster.epoch !== "" || this.pendingRefresh() !== null) return this.scripts.run(calls, deadline);
    const replies = this.refresh(calls);
    await deadline.race(this.refreshing!.done);
    return (await replies).slice(1);
  }

  /** Sees to it that the roster is at least as new as a reading. */
  private async cover(head: Head, deadline: Deadline): Promise<void> {
    this.epochName = head.epoch;
    if (head.epoch === "") return this.roster.clear();
    // A refresh under way may have begun too early; ours cannot have.
    for (let attempt = 0; attempt < 2 && !this.roster.covers(head); attempt++) {
      const pending = this.pendingRefresh();
      if (pending === null) await this.lead(deadline);
      else await deadline.race(pending.catch(() => undefined));
    }
  }

  /** A refresh under way that is worth waiting for; one that takes long may belong to a request that is gone. */
  private pendingRefresh(): Promise<void> | null {
    const { refreshing, options } = this;
    if (refreshing === null || options.clock.now() - refreshing.sinceMs > REFRESH_JOIN_MS) return null;
    return refreshing.done;
  }

  private lead(deadline: Deadline): Promise<void> {
    void this.refresh([]);
    return deadline.race(this.refreshing!.done);
  }

  /**
   * Reads the roster, with `calls` after it. It has a write's time and not a reading's: where a large fleet takes longer than readers can
   * wait, the copy is there for those that follow.
   */
  private refresh(calls: readonly Call[]): Promise<unknown[]> {
    const asked = this.moment();
    const replies = this.within(WRITE_DEADLINE_MS, (deadline) =>
      this.scripts.run([this.rosterCall(), ...calls], deadline),
    );
    const done = replies.then(([roster]) => {
      const { head, rows } = this.roster.take(roster as string[], this.options.clock.now());
      this.wholeFleet = { head, rows, ...asked };
      this.epochName = head.epoch;
    });
    const refreshing = { done, sinceMs: asked.atMs };
    this.refreshing = refreshing;
    const over = () => {
      if (this.refreshing === refreshing) this.refreshing = null;
    };
    done.then(over, over);
    return replies;
  }

  private keepCopy(model: string, [headText, rows]: readonly string[], asked: Moment): void {
    this.copies.set(model, { head: parseHead(headText), rows: parseRows(rows), ...asked });
  }

  /** The copy of a large fleet's rows; read now if there is none or it is of another version. */
  private async copyOf(model: string, head: Head, deadline: Deadline): Promise<Copy> {
    const kept = this.copies.get(model);
    if (kept !== undefined && kept.head.epoch === head.epoch && kept.head.version >= head.version)
      return kept;
    const asked = this.moment();
    const [reply] = (await this.scripts.run(
      [this.rowsCall(model, Number.MAX_SAFE_INTEGER)],
      deadline,
    )) as string[][];
    this.keepCopy(model, reply, asked);
    await this.cover(parseHead(reply[0]), deadline);
    return this.copies.get(model)!;
  }

  private rowsOf(members: readonly Member[], copy: Copy): FleetRow[] {
    const nowMs = this.options.clock.now();
    const liveness = this.options.liveness ?? DEFAULT_LIVENESS;
    const rows: FleetRow[] = [];
    for (const member of members) {
      const text = copy.rows.get(member.group);
      if (text === undefined) continue;
      const more = this.ownOf(member, copy, nowMs);
      const row = rowOf(member, text, copy.head.heartbeatAgeMs, liveness, nowMs, more);
      if (row !== null) rows.push(row);
    }
    return rows;
  }

  /** What the rows cannot contain: reservations made since they were asked for, or all of one's own if the view gets none. */
  private ownOf({ registration }: Member, { mark }: Copy, nowMs: number): Reserved {
    const id = idOf(registration);
    if (this.options.replicaSync !== false)
      return this.own.sum(id, registration, mark, Number.NEGATIVE_INFINITY);
    return this.own.sum(id, registration, 0, nowMs - OWN_ONLY_MS);
  }

  private moment(): Moment {
    return { atMs: this.options.clock.now(), mark: this.own.mark };
  }

  private async groupOf({ worker, rank, incarnation }: IncarnationKey): Promise<string | null> {
    const known = this.roster.member(worker, rank, incarnation);
    if (known !== undefined) return known.group;
    await this.within(WRITE_DEADLINE_MS, (deadline) => this.lead(deadline));
    return this.roster.member(worker, rank, incarnation)?.group ?? null;
  }

  private async applyHere(groups: readonly (readonly KvBatch[])[]): Promise<string[]> {
    const calls = groups.map((group) => {
      const args = group.flatMap((batch) => [
        ...rankArgs(batch),
        String(batch.sequence),
        ...packOps(batch.ops),
      ]);
      return this.fleetCall(APPLY_SCRIPT, this.horizon, String(group.length), ...args);
    });
    return [...((await this.writeAll(calls)) as string[]).join("")];
  }

  /** Every shard gets every batch, so that its watermark has no holes; the fleet's follows when all have it. */
  private async applyToShards(batches: readonly KvBatch[]): Promise<string[]> {
    const ranks = batches.flatMap((batch) => rankArgs(batch));
    const [checked] = (await this.write([
      this.fleetCall(CHECK_SCRIPT, this.horizon, String(batches.length), ...ranks),
    ])) as string[][];
    const outcomes = [...checked];
    const open = batches.flatMap((batch, at) => {
      if (checked[at] in OUTCOMES) return [];
      outcomes[at] = "d";
      const [group, watermark] = [checked[at].slice(0, 4), Number(checked[at].slice(4))];
      return batch.sequence <= watermark ? [] : [{ batch, at, group, ops: this.byShard(batch.ops) }];
    });
    if (open.length === 0) return outcomes;
    const calls = this.shardTags().map((_, shard) => {
      const args = open.flatMap(({ batch, group, ops }) => [
        group,
        String(batch.sequence),
        ...packOps(ops[shard]),
      ]);
      return this.shardCall(shard, APPLY_SHARD_SCRIPT, this.horizon, String(open.length), ...args);
    });
    const replies = (await this.write(calls)) as string[];
    const written: typeof open = [];
    for (const [i, each] of open.entries()) {
      const letters = replies.map((reply) => reply[i]);
      outcomes[each.at] = letters.includes("g") ? "g" : letters.includes("a") ? "a" : "d";
      if (outcomes[each.at] !== "g") written.push(each);
    }
    if (written.length === 0) return outcomes;
    const args = written.flatMap(({ batch, group }) => [...rankArgs(batch), group, String(batch.sequence)]);
    const [advanced] = await this.write([this.fleetCall(ADVANCE_SCRIPT, String(written.length), ...args)]);
    for (const [i, { at }] of written.entries()) if ((advanced as string)[i] === "g") outcomes[at] = "g";
    return outcomes;
  }

  private byShard<T extends { readonly root: bigint }>(ops: readonly T[]): T[][] {
    const parts: T[][] = this.shardTags().map(() => []);
    for (const op of ops) parts[shardOf(op.root, this.options.shards)].push(op);
    return parts;
  }

  /** With one shard the fleet's scripts do this themselves. */
  private async markShards(group: string, sequence: number, replaced: string): Promise<void> {
    if (this.options.shards === 1) return;
    await this.write(
      this.shardTags().map((tag) => ({ command: ["HSET", `${tag}w`, group, String(sequence)] })),
    );
    await this.unmarkShards([replaced]);
  }

  /** In shards that do not know the group of a rank, because the call failed that told them, or because they have lost their data. */
  private async markWhereLost(group: string): Promise<void> {
    if (this.options.shards === 1) return;
    await this.write(this.shardTags().map((tag) => ({ command: ["HSETNX", `${tag}w`, group, "0"] })));
  }

  private async unmarkShards(groups: readonly string[]): Promise<void> {
    const inert = groups.filter((group) => group !== "");
    if (this.options.shards === 1 || inert.length === 0) return;
    await this.write(this.shardTags().map((tag) => ({ command: ["HDEL", `${tag}w`, ...inert] })));
  }

  private async writeAll(calls: readonly Call[]): Promise<unknown[]> {
    const parts: Call[][] = [];
    for (let at = 0; at < calls.length; at += CALLS_PER_REQUEST) {
      parts.push(calls.slice(at, at + CALLS_PER_REQUEST));
    }
    return (await inTurn(parts, (part) => this.write(part))).flat();
  }

  private write(calls: readonly Call[]): Promise<unknown[]> {
    return this.within(WRITE_DEADLINE_MS, (deadline) => this.scripts.run(calls, deadline));
  }

  private async within<T>(limitMs: number, act: (deadline: Deadline) => Promise<T>): Promise<T> {
    const deadline = new Deadline(this.options.clock, limitMs);
    try {
      return await act(deadline);
    } finally {
      deadline.end();
    }
  }
}

function idOf({ worker, rank }: Pick<IncarnationKey, "worker" | "rank">): string {
  return `${rank} ${asciiName(worker)}`;
}

function rankArgs(key: IncarnationKey): [id: string, incarnation: string] {
  return [idOf(key), asciiName(key.incarnation)];
}

/** A load as text; what is no number is nothing. */
function amount(load: number): string {
  return Number.isFinite(load) ? String(load) : "0";
}

function thresholdsOf(text: string | null): BusyThresholds {
  return text ? { ...NO_THRESHOLDS, ...(JSON.parse(text) as Partial<BusyThresholds>) } : NO_THRESHOLDS;
}

async function contentHash(text: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return packKeys(new BigUint64Array(digest.slice(0, 16))).slice(0, CARD_HASH_CHARS);
}

async function inTurn<T, R>(items: readonly T[], act: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (const item of items) results.push(await act(item));
  return results;
}
