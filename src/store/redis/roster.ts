/** This process's copy of what seldom changes in the fleet: registrations, cards, slots; rows are made of it and of what a reading brings. */

import { isAlive, type LivenessSettings } from "../../fleet/rules.ts";
import type { FleetRow, Registration, Tier } from "../../fleet/types.ts";
import type { ModelCard } from "../../prefix/types.ts";
import { slotsOf } from "./packing.ts";

/** One rank as of the copy. */
export interface Member {
  readonly group: string;
  readonly registration: Registration;
  readonly slots: Readonly<Record<Tier, number>>;
  /** The reader's clock when it registered. */
  readonly registeredAtMs: number;
}

/** What every reading says of the whole view. */
export interface Head {
  /** Empty: the view is. */
  readonly epoch: string;
  readonly version: number;
  /** Since the indexer's heartbeat; infinite if there was none. */
  readonly heartbeatAgeMs: number;
}

/** Rows as they came, by group. */
export type RowTexts = ReadonlyMap<string, readonly string[]>;

/** Characters of a card's hash before the registration that it belongs to. */
export const CARD_HASH_CHARS = 22;

export class Roster {
  epoch = "";
  version = 0;
  /** Cards by content hash. */
  private readonly cards = new Map<string, ModelCard>();
  private readonly members = new Map<string, Member>();
  private byModel: Map<string, Member[]> | null = null;

  get knownCards(): string {
    return [...this.cards.keys()].join(" ");
  }

  /** True if rows of a reading with this head can be read with this copy. */
  covers(head: Head): boolean {
    return head.epoch === this.epoch && head.version <= this.version;
  }

  of(group: string): Member | undefined {
    return this.members.get(group);
  }

  /** Sorted by (worker, rank). */
  membersOf(model: string): readonly Member[] {
    this.byModel ??= groupByModel(this.members.values());
    return this.byModel.get(model) ?? [];
  }

  models(): string[] {
    this.byModel ??= groupByModel(this.members.values());
    return [...this.byModel.keys()].sort();
  }

  member(worker: string, rank: number, incarnation: string): Member | undefined {
    for (const member of this.members.values()) {
      const { registration: r } = member;
      if (r.worker === worker && r.rank === rank && r.incarnation === incarnation) return member;
    }
    return undefined;
  }

  clear(): void {
    this.epoch = "";
    this.version = 0;
    this.members.clear();
    this.byModel = null;
  }

  /** Takes in the reply of the roster script; returns its rows. An older reply than the copy changes nothing. */
  take(reply: readonly string[], nowMs: number): { head: Head; rows: RowTexts } {
    const head = parseHead(reply[0]);
    const models = Number(reply[1]);
    const registrations = Number(reply[2]);
    const rows = new Map<string, readonly string[]>();
    let at = 3;
    for (let i = 0; i < models; i++, at += 2)
      for (const [group, row] of parseRows(reply[at + 1])) rows.set(group, row);
    const cardsAt = at + 3 * registrations;
    for (let i = cardsAt; i + 1 < reply.length; i += 2) {
      if (reply[i + 1] !== "") this.cards.set(reply[i], JSON.parse(reply[i + 1]) as ModelCard);
    }
    if (head.epoch === this.epoch && head.version < this.version) return { head, rows };
    if (head.epoch !== this.epoch) this.clear();
    for (const group of this.members.keys()) if (!rows.has(group)) this.members.delete(group);
    for (; at < cardsAt; at += 3) this.add(reply[at], nowMs - Number(reply[at + 1]), reply[at + 2]);
    this.epoch = head.epoch;
    this.version = head.version;
    this.byModel = null;
    this.dropUnusedCards();
    return { head, rows };
  }

  private add(group: string, registeredAtMs: number, text: string): void {
    const card = this.cards.get(text.slice(0, CARD_HASH_CHARS));
    // Without its card, whose lease has ended, nobody can ask for it; its agent's next registration brings it back.
    if (card === undefined) return;
    const registration = { ...(JSON.parse(text.slice(CARD_HASH_CHARS)) as Omit<Registration, "card">), card };
    this.members.set(group, { group, registration, slots: slotsOf(group), registeredAtMs });
  }

  private dropUnusedCards(): void {
    const used = new Set(Array.from(this.members.values(), ({ registration }) => registration.card));
    for (const [hash, card] of this.cards) if (!used.has(card)) this.cards.delete(hash);
  }
}

/** `epoch version heartbeat-age …`. */
export function parseHead(text: string): Head {
  const [epoch, version, age] = text.split(" ");
  return {
    epoch,
    version: Number(version),
    heartbeatAgeMs: age === "-" ? Number.POSITIVE_INFINITY : Number(age),
  };
}

export function parseRows(text: string): Map<string, readonly string[]> {
  const rows = new Map<string, readonly string[]>();
  if (text === "") return rows;
  for (const row of text.split(";")) rows.set(row.slice(0, 4), row.slice(4).split(","));
  return rows;
}

export interface Reserved {
  readonly requests: number;
  readonly blocks: number;
  readonly prefillTokens: number;
}

/** The fleet row of a member; null if it is dead. `more`: reservations that the reading does not contain. */
export function rowOf(
  member: Member,
  row: readonly string[],
  heartbeatAgeMs: number,
  liveness: LivenessSettings,
  nowMs: number,
  more: Reserved,
): FleetRow | null {
  const silentMs = number(row[0]);
  if (!isAlive(silentMs, heartbeatAgeMs, liveness)) return null;
  return {
    ...member.registration,
    slots: member.slots,
    load: {
      activeBlocks: known(row[3]),
      prefillTokens: known(row[4]),
      running: known(row[5]),
      waiting: known(row[6]),
    },
    reserved: {
      requests: number(row[7]) + more.requests,
      blocks: number(row[8]) + more.blocks,
      prefillTokens: number(row[9]) + more.prefillTokens,
    },
    feed: { lagEvents: number(row[1]), lagMs: Math.max(silentMs, number(row[2])) },
    ageMs: Math.max(0, nowMs - member.registeredAtMs),
  };
}

function number(text: string): number {
  return text === "" ? 0 : Number(text);
}

function known(text: string): number | null {
  return text === "-" ? null : number(text);
}

function groupByModel(members: Iterable<Member>): Map<string, Member[]> {
  const groups = new Map<string, Member[]>();
  for (const member of members) {
    const group = groups.get(member.registration.model);
    if (group === undefined) groups.set(member.registration.model, [member]);
    else group.push(member);
  }
  for (const group of groups.values()) group.sort(byWorkerAndRank);
  return groups;
}

function byWorkerAndRank({ registration: a }: Member, { registration: b }: Member): number {
  if (a.worker !== b.worker) return a.worker < b.worker ? -1 : 1;
  return a.rank - b.rank;
}
