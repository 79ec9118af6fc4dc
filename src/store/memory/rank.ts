/** What the memory store knows of one (worker, rank): its incarnation, load, open reservations and feed. */

import type { FleetRow, LoadReport, Registration, Tier } from "../../fleet/types.ts";

/** How long an admission is remembered whose reservation has not come yet. */
const EARLY_ADMISSION_MS = 60_000;
const EARLY_ADMISSIONS_MAX = 4_096;

interface Reservation {
  readonly blocks: number;
  readonly prefillTokens: number;
  readonly endsAtMs: number;
}

const UNKNOWN_LOAD: FleetRow["load"] = {
  activeBlocks: null,
  prefillTokens: null,
  running: null,
  waiting: null,
};

export class Rank {
  registration: Registration;
  slots: Readonly<Record<Tier, number>>;
  /** Sequence of the last batch applied. */
  watermark = 0;
  heardAtMs: number;
  /** No open reservation ends before this time. */
  reservationsSoonestMs = Number.POSITIVE_INFINITY;
  /** The row as last built; null after a change. */
  cachedRow: FleetRow | null = null;
  private readonly registeredAtMs: number;
  private load = UNKNOWN_LOAD;
  private reportSequence = 0;
  private published = 0;
  /** A batch known to be missing, and since when. */
  private missing = 0;
  private missingSinceMs = 0;
  private readonly reservations = new Map<string, Reservation>();
  private reservedBlocks = 0;
  private reservedPrefillTokens = 0;
  /** Admitted request ids without a reservation yet, oldest first: theirs, when it comes, is already covered. */
  private readonly admittedEarly = new Map<string, number>();

  constructor(registration: Registration, slots: Readonly<Record<Tier, number>>, nowMs: number) {
    this.registration = registration;
    this.slots = slots;
    this.registeredAtMs = nowMs;
    this.heardAtMs = nowMs;
  }

  /** Watermark of a batch or snapshot that was applied. */
  advance(sequence: number, nowMs: number): void {
    this.watermark = sequence;
    if (sequence > this.published) this.published = sequence;
    if (this.missing > 0 && sequence >= this.missing) this.noteMissing(nowMs);
  }

  reserve(requestId: string, reservation: Reservation): void {
    if (this.admittedEarly.delete(requestId)) return;
    this.drop(requestId);
    this.reservations.set(requestId, reservation);
    this.reservedBlocks += reservation.blocks;
    this.reservedPrefillTokens += reservation.prefillTokens;
    this.reservationsSoonestMs = Math.min(this.reservationsSoonestMs, reservation.endsAtMs);
  }

  release(requestId: string): void {
    this.drop(requestId);
  }

  /** Folds a report: exactly the admitted reservations go, whatever the order of arrival; an old report's load is ignored. */
  report(report: LoadReport, nowMs: number): void {
    this.forgetAdmissions(nowMs);
    for (const id of report.admitted) if (!this.drop(id)) this.admittedEarly.set(id, nowMs);
    if (report.sequence <= this.reportSequence) return;
    this.reportSequence = report.sequence;
    const { activeBlocks, prefillTokens, running, waiting } = report;
    this.load = { activeBlocks, prefillTokens, running, waiting };
    if (report.publishedSequence > this.published) this.published = report.publishedSequence;
    if (this.missing === 0) this.noteMissing(nowMs);
  }

  endReservations(nowMs: number): void {
    this.reservationsSoonestMs = Number.POSITIVE_INFINITY;
    for (const [id, { endsAtMs }] of this.reservations) {
      if (endsAtMs <= nowMs) this.drop(id);
      else if (endsAtMs < this.reservationsSoonestMs) this.reservationsSoonestMs = endsAtMs;
    }
  }

  row(nowMs: number): FleetRow {
    const r = this.registration;
    const behindMs = this.missing > 0 ? nowMs - this.missingSinceMs : 0;
    return {
      worker: r.worker,
      rank: r.rank,
      incarnation: r.incarnation,
      agent: r.agent,
      model: r.model,
      servedNames: r.servedNames,
      adapters: r.adapters,
      card: r.card,
      role: r.role,
      region: r.region,
      cluster: r.cluster,
      node: r.node,
      engine: r.engine,
      dpSize: r.dpSize,
      blockSize: r.blockSize,
      totalBlocks: r.totalBlocks,
      maxNumBatchedTokens: r.maxNumBatchedTokens,
      maxNumSeqs: r.maxNumSeqs,
      maxModelLen: r.maxModelLen,
      kvEvents: r.kvEvents,
      saltInEvents: r.saltInEvents,
      taints: r.taints,
      slots: this.slots,
      load: this.load,
      reserved: {
        requests: this.reservations.size,
        blocks: this.reservedBlocks,
        prefillTokens: this.reservedPrefillTokens,
      },
      feed: {
        lagEvents: Math.max(0, this.published - this.watermark),
        lagMs: Math.max(nowMs - this.heardAtMs, behindMs),
      },
      ageMs: nowMs - this.registeredAtMs,
    };
  }

  private noteMissing(nowMs: number): void {
    this.missing = this.published > this.watermark ? this.published : 0;
    this.missingSinceMs = nowMs;
  }

  private drop(requestId: string): boolean {
    const reservation = this.reservations.get(requestId);
    if (reservation === undefined) return false;
    this.reservations.delete(requestId);
    this.reservedBlocks -= reservation.blocks;
    this.reservedPrefillTokens -= reservation.prefillTokens;
    return true;
  }

  private forgetAdmissions(nowMs: number): void {
    for (const [id, atMs] of this.admittedEarly) {
      if (nowMs - atMs < EARLY_ADMISSION_MS && this.admittedEarly.size <= EARLY_ADMISSIONS_MAX) return;
      this.admittedEarly.delete(id);
    }
  }
}
