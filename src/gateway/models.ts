/** The names that clients may ask for, and what each stands for; a copy of the fleet's. */

import { KedgeError } from "../errors/index.ts";
import { resolveModel } from "../fleet/rules.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { ModelCard } from "../prefix/types.ts";
import type { MaybePromise } from "../store/types.ts";
import type { Clock } from "./deps.ts";
import { type ViewBudget, type ViewGuard, viewUnavailable } from "./view-guard.ts";

/** What the fleet is asked for may be this old (D1). */
const MAX_AGE_MS = 250;
/** A name whose last worker went no longer ago than this is out of service, not unknown: clients retry a 503 and give up at a 404. */
const REMEMBERED_MS = 600_000;

export interface ServedModel {
  /** Name as clients ask for it. */
  readonly name: string;
  /** Canonical id. */
  readonly model: string;
  readonly adapter: string | null;
  readonly card: ModelCard;
  readonly maxModelLen: number | null;
}

export interface DirectoryOptions {
  readonly guard: ViewGuard;
  readonly clock: Clock;
  /** A name from a copy no older than this is used without asking; default 250. */
  readonly maxAgeMs?: number;
}

export class Directory {
  private readonly guard: ViewGuard;
  private readonly clock: Clock;
  private readonly maxAgeMs: number;
  private names: ReadonlyMap<string, ServedModel> = new Map();
  private readAtMs = Number.NEGATIVE_INFINITY;
  /** When each name was last served. */
  private readonly lastServedMs = new Map<string, number>();

  constructor({ guard, clock, maxAgeMs = MAX_AGE_MS }: DirectoryOptions) {
    this.guard = guard;
    this.clock = clock;
    this.maxAgeMs = maxAgeMs;
  }

  /**
   * Unknown names are asked for at once. While the view is out of reach the last known names stand.
   * Errors: `model_not_found`; `no_workers` for a name that was served lately, or while no worker at all is known;
   * `view_unavailable` for an unknown name while nobody can be asked.
   */
  find(name: string, budget: ViewBudget): MaybePromise<ServedModel> {
    // Whoever finds the copy old reads it anew; others need not wait for that one, since the read that follows tells whether a name still stands.
    const mayUse = this.ageMs <= this.maxAgeMs || (this.maxAgeMs > MAX_AGE_MS && this.guard.flying);
    const known = mayUse ? this.names.get(name) : undefined;
    return known ?? this.ask(name, budget);
  }

  /** As `find`, of a fresh copy. */
  ask(name: string, budget: ViewBudget): MaybePromise<ServedModel> {
    const rows = this.guard.fleet(MAX_AGE_MS, budget);
    return rows instanceof Promise ? rows.then((all) => this.pick(all, name)) : this.pick(rows, name);
  }

  /** True: names may have changed since they were read. */
  get isOld(): boolean {
    return this.ageMs > MAX_AGE_MS;
  }

  /** All served names in alphabetical order. Errors: `view_unavailable` if none was ever known. */
  async all(budget: ViewBudget): Promise<ServedModel[]> {
    const rows = await this.guard.fleet(MAX_AGE_MS, budget);
    const names = this.take(rows);
    if (rows === null && names.size === 0) throw viewUnavailable();
    return [...names.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  private get ageMs(): number {
    return this.clock.now() - this.readAtMs;
  }

  /** `rows` null: out of reach. */
  private take(rows: readonly FleetRow[] | null): ReadonlyMap<string, ServedModel> {
    if (rows === null) {
      if (this.names.size === 0) this.names = namesOf(this.guard.known.all());
      return this.names;
    }
    this.readAtMs = this.clock.now();
    this.names = namesOf(rows);
    this.remember(this.names);
    return this.names;
  }

  private remember(names: ReadonlyMap<string, ServedModel>): void {
    for (const name of names.keys()) this.lastServedMs.set(name, this.readAtMs);
    for (const [name, atMs] of this.lastServedMs) {
      if (this.readAtMs - atMs > REMEMBERED_MS) this.lastServedMs.delete(name);
    }
  }

  private pick(rows: readonly FleetRow[] | null, name: string): ServedModel {
    const names = this.take(rows);
    const found = names.get(name);
    if (found !== undefined) return found;
    if (rows === null) throw viewUnavailable();
    if (names.size > 0 && !this.lastServedMs.has(name)) throw notFound(name);
    throw new KedgeError("no_workers", `No live worker serves the model "${name}".`, {
      param: "model",
      retryAfterSeconds: 1,
    });
  }
}

function namesOf(rows: readonly FleetRow[]): Map<string, ServedModel> {
  const names = new Map<string, ServedModel>();
  for (const row of rows) {
    for (const name of [...row.servedNames, ...row.adapters]) {
      if (!names.has(name)) names.set(name, describe(rows, name));
    }
  }
  return names;
}

function describe(rows: readonly FleetRow[], name: string): ServedModel {
  const resolved = resolveModel(rows, name);
  const row = rows.find((one) => one.model === resolved?.model);
  if (resolved === null || row === undefined) throw notFound(name);
  return { name, ...resolved, card: row.card, maxModelLen: row.maxModelLen };
}

function notFound(name: string): KedgeError {
  return new KedgeError("model_not_found", `The model "${name}" does not exist.`, {
    param: "model",
  });
}
