/** The fleet as it was last read: what is routed over while the view is out of reach, or was emptied and fills again (design D8). */

import type { BusyThresholds, FleetRow, Registration, Tier } from "../fleet/types.ts";
import type { LookupResult, ViewRead } from "../store/types.ts";

/** Loads are believed this long; then they are unknown, or a worker that was busy at the wrong moment would be shunned for a whole outage. */
const LOAD_KNOWN_MS = 2_000;
/** Once the first worker is back in an emptied view, the others get this long before they are taken for gone. */
const REFILL_MS = 10_000;
/** A seed may be of any age: the first worker that the view names ends it. */
const SEED_GRACE_MS = -1;
/** No slot has this number: nothing that an index says can be meant of such a row. */
const NO_SLOT = -1;
const NO_SLOTS: Readonly<Record<Tier, number>> = { device: NO_SLOT, host: NO_SLOT, disk: NO_SLOT };
/** Behind every threshold: such a row is judged by predictions. */
const UNHEARD = { lagEvents: Number.MAX_SAFE_INTEGER, lagMs: Number.MAX_SAFE_INTEGER };
const UNKNOWN_LOAD = { activeBlocks: null, prefillTokens: null, running: null, waiting: null };
const NOTHING_RESERVED = { requests: 0, blocks: 0, prefillTokens: 0 };

const NO_THRESHOLDS: BusyThresholds = {
  activeDecodeBlocksThreshold: null,
  activePrefillTokensThreshold: null,
  activePrefillTokensThresholdFrac: null,
};

const NOTHING = new Uint32Array(0);
const NO_HOLDERS: LookupResult = {
  count: 0,
  slots: NOTHING,
  confirmedDepth: NOTHING,
  confirmedTokens: NOTHING,
  predictedDepth: NOTHING,
  predictedTokens: NOTHING,
  probes: 0,
  truncated: false,
};

interface ModelRows {
  readonly rows: readonly FleetRow[];
  readonly readAtMs: number;
}

type RowsByModel = Map<string, ModelRows>;

export class KnownFleet {
  private readonly now: () => number;
  private epoch = "";
  private models: RowsByModel;
  private readonly thresholds = new Map<string, BusyThresholds>();
  /** What was known before the view was emptied, until it has filled again. */
  private before: RowsByModel | null = null;
  private graceMs = REFILL_MS;
  private refilledAtMs = Number.POSITIVE_INFINITY;
  /** Rows as they are when nothing is believed of their load any more; made once per outage. */
  private readonly aged = new WeakMap<readonly FleetRow[], readonly FleetRow[]>();

  /** `now`: monotonic milliseconds. `seed`: what is known before the first read. */
  constructor(now: () => number, seed: readonly Registration[] = []) {
    this.now = now;
    this.models = byModel(seed.map(seedRow), Number.NEGATIVE_INFINITY);
  }

  /** True: nobody was ever known. */
  get isEmpty(): boolean {
    return this.models.size === 0 && this.before === null;
  }

  /** Takes note of one model's rows as the view has them; returns those to be routed over. */
  take(model: string, { epoch, fleet, thresholds }: ViewRead): readonly FleetRow[] {
    this.noteEpoch(epoch);
    this.models.set(model, { rows: fleet, readAtMs: this.now() });
    this.thresholds.set(model, thresholds);
    if (this.before === null) return fleet;
    this.noteRefill(fleet);
    return this.filled(model, fleet);
  }

  /** The same for the rows of all models. */
  takeAll(epoch: string, rows: readonly FleetRow[]): readonly FleetRow[] {
    this.noteEpoch(epoch);
    this.models = byModel(rows, this.now());
    if (this.before === null) return rows;
    this.noteRefill(rows);
    return this.all();
  }

  /** Rows of all models, of whatever age. */
  all(): readonly FleetRow[] {
    const names = new Set([...this.models.keys(), ...(this.before?.keys() ?? [])]);
    return [...names].flatMap((model) => this.filled(model, this.models.get(model)?.rows ?? []));
  }

  /** A read as it would be of a view without an index. Its `fleet` is empty if nobody is known to serve the model. */
  lastRead(model: string): ViewRead {
    const known = this.models.get(model);
    const rows = this.filled(model, known?.rows ?? []);
    const recent = known !== undefined && this.now() - known.readAtMs <= LOAD_KNOWN_MS;
    return {
      epoch: this.epoch,
      lookup: NO_HOLDERS,
      fleet: recent ? rows : this.withoutLoad(rows),
      thresholds: this.thresholds.get(model) ?? NO_THRESHOLDS,
    };
  }

  private withoutLoad(rows: readonly FleetRow[]): readonly FleetRow[] {
    let aged = this.aged.get(rows);
    if (aged === undefined) {
      aged = rows.map((row) => ({ ...row, load: UNKNOWN_LOAD, reserved: NOTHING_RESERVED }));
      this.aged.set(rows, aged);
    }
    return aged;
  }

  /** Another epoch is another view: slots of the one before mean nothing in it, but its workers are likely to be there still. */
  private noteEpoch(epoch: string): void {
    if (epoch === this.epoch) return;
    // A view that is read for the first time may have been emptied a moment ago as well: then there is the seed.
    this.graceMs = this.epoch === "" ? SEED_GRACE_MS : REFILL_MS;
    this.before = this.isEmpty ? null : byModel(this.all(), this.now());
    this.refilledAtMs = Number.POSITIVE_INFINITY;
    this.epoch = epoch;
    this.models = new Map();
  }

  /** A view that stays empty has no indexer: it says nothing of who lives. */
  private noteRefill(rows: readonly FleetRow[]): void {
    const nowMs = this.now();
    if (rows.length > 0) this.refilledAtMs = Math.min(this.refilledAtMs, nowMs);
    if (nowMs - this.refilledAtMs > this.graceMs) this.before = null;
  }

  private filled(model: string, rows: readonly FleetRow[]): readonly FleetRow[] {
    const before = this.before?.get(model)?.rows;
    if (before === undefined) return rows;
    const missing = before.filter((old) => !rows.some((row) => isSameRank(row, old)));
    if (missing.length === 0) return rows;
    return [...rows, ...missing.map(missingRow)].sort(inOrder);
  }
}

function byModel(rows: readonly FleetRow[], readAtMs: number): RowsByModel {
  const grouped = new Map<string, FleetRow[]>();
  for (const row of rows) {
    const group = grouped.get(row.model);
    if (group === undefined) grouped.set(row.model, [row]);
    else group.push(row);
  }
  return new Map([...grouped].map(([model, group]) => [model, { rows: group, readAtMs }]));
}

function seedRow(registration: Registration): FleetRow {
  return {
    ...registration,
    slots: NO_SLOTS,
    load: UNKNOWN_LOAD,
    reserved: NOTHING_RESERVED,
    feed: UNHEARD,
    ageMs: Number.MAX_SAFE_INTEGER,
  };
}

/** Those that are back are new to the view; one that is not must not look like an old hand beside them. */
function missingRow(row: FleetRow): FleetRow {
  return { ...row, slots: NO_SLOTS, feed: UNHEARD, ageMs: 0 };
}

function isSameRank(a: FleetRow, b: FleetRow): boolean {
  return a.worker === b.worker && a.rank === b.rank;
}

function inOrder(a: FleetRow, b: FleetRow): number {
  if (a.worker !== b.worker) return a.worker < b.worker ? -1 : 1;
  return a.rank - b.rank;
}
