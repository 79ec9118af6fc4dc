/** The names that clients may ask for, and what each stands for; a short-lived copy of the fleet. */

import { KedgeError } from "../errors/index.ts";
import { resolveModel } from "../fleet/rules.ts";
import type { FleetRow } from "../fleet/types.ts";
import type { ModelCard } from "../prefix/types.ts";
import type { MaybePromise, ViewStore } from "../store/types.ts";
import type { Clock } from "./deps.ts";

/** A copy of the fleet may be this old (D1); an unknown name is looked up afresh. */
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

export class Directory {
  private readonly store: ViewStore;
  private readonly clock: Clock;
  private names = new Map<string, ServedModel>();
  private readAtMs = Number.NEGATIVE_INFINITY;
  /** When each name was last served. */
  private readonly lastServedMs = new Map<string, number>();

  constructor(store: ViewStore, clock: Clock) {
    this.store = store;
    this.clock = clock;
  }

  /** Errors: `model_not_found`; `no_workers` for a name that was served lately, or while no worker at all is known. */
  find(name: string): MaybePromise<ServedModel> {
    const fresh = this.clock.now() - this.readAtMs <= MAX_AGE_MS;
    const known = fresh ? this.names.get(name) : undefined;
    if (known !== undefined) return known;
    const names = this.refresh();
    return names instanceof Promise ? names.then((found) => this.pick(found, name)) : this.pick(names, name);
  }

  /** All served names in alphabetical order. */
  async all(): Promise<ServedModel[]> {
    const names = await this.refresh();
    return [...names.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  private refresh(): MaybePromise<ReadonlyMap<string, ServedModel>> {
    const rows = this.store.fleet();
    return rows instanceof Promise ? rows.then((all) => this.take(all)) : this.take(rows);
  }

  private take(rows: readonly FleetRow[]): ReadonlyMap<string, ServedModel> {
    this.readAtMs = this.clock.now();
    const names = new Map<string, ServedModel>();
    for (const row of rows) {
      for (const name of [...row.servedNames, ...row.adapters]) {
        if (!names.has(name)) names.set(name, describe(rows, name));
      }
    }
    this.names = names;
    this.remember(names);
    return names;
  }

  private remember(names: ReadonlyMap<string, ServedModel>): void {
    for (const name of names.keys()) this.lastServedMs.set(name, this.readAtMs);
    for (const [name, atMs] of this.lastServedMs) {
      if (this.readAtMs - atMs > REMEMBERED_MS) this.lastServedMs.delete(name);
    }
  }

  private pick(names: ReadonlyMap<string, ServedModel>, name: string): ServedModel {
    const found = names.get(name);
    if (found !== undefined) return found;
    if (names.size > 0 && !this.lastServedMs.has(name)) throw notFound(name);
    throw new KedgeError("no_workers", `No live worker serves the model "${name}".`, {
      param: "model",
      retryAfterSeconds: 1,
    });
  }
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
