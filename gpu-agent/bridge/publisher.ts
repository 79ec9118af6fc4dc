/** One rank's voice on the bus: incarnations, numbered batches of clean operations, lease refresh, snapshots (design D3–D5). */

import { KedgeError } from "../../src/errors/index.ts";
import type { EventBus } from "../../src/events/bus.ts";
import type { IncarnationKey, Registration } from "../../src/fleet/types.ts";
import type { KvOp, KvSnapshot, StoreOp } from "../../src/store/types.ts";
import type { BlockRemoved, BlockStored, EngineBatch } from "../engines/events.ts";
import { isFullAttention } from "./closure.ts";
import { Mirror, type MirrorCounters, type MirrorOptions } from "./mirror.ts";

/** Most keys that one batch adds and removes together. */
export const MAX_KEYS_PER_BATCH = 500;

/** Why an incarnation ended; a metric's label. */
export type VoidReason =
  | "restart"
  | "gap"
  | "cleared"
  | "unreadable"
  | "overflow"
  | "engine_lost"
  | "mismatch";

export interface PublisherOptions {
  readonly bus: EventBus;
  /** Facts of the rank; `kvEvents` turns false if its events cannot be used. */
  readonly registration: Omit<Registration, "incarnation">;
  readonly mirror: Omit<MirrorOptions, "now">;
  /** Monotonic milliseconds. */
  readonly now: () => number;
  /** A new random name each time. */
  readonly newIncarnation: () => string;
  /** One walk over all held keys takes so long, the next follows: no lease is older than twice this. Default 15 minutes, a quarter of the default horizon. */
  readonly reassertMs?: number;
  /** The registration is repeated so often; default 10 s. */
  readonly registerMs?: number;
  /** A new incarnation was registered after the first; what else is said of the rank must be said again of it. */
  readonly onNewLife?: () => void;
  /** The rank's events cannot be indexed: it goes on without them. */
  readonly onMismatch: (error: KedgeError) => void;
}

/** Keys asserted again at a time: a batch's worth, with room for the block that crosses the limit. */
const REASSERT_PORTION = 450;

/** Earlier lives of one engine process that are remembered. */
const MAX_EARLIER = 8;

interface Walk {
  readonly portions: Generator<readonly StoreOp[], void, void>;
  readonly everyMs: number;
  nextMs: number;
}

/**
 * Owns the rank's mirror. A reset begins a new incarnation with an empty mirror; nothing that the old one said stands any more,
 * and no hole is ever silent.
 */
export class RankPublisher {
  readonly #options: PublisherOptions;
  #registration: Registration;
  #mirror: Mirror;
  #sequence = 0;
  /** The engine's blocks are not of the size that all keys are made for. */
  #unusable = false;
  #heard = false;
  #stopped = false;
  #nextRegistrationMs: number;
  #walk: Walk | null = null;
  #nextWalkMs: number;
  /** Block size confirmed by an event of this life. */
  #confirmed = false;
  /** Lives that ended while the engine's process went on: only what was known of its cache is void. */
  #earlier: string[] = [];
  readonly #voided = new Map<VoidReason, number>();
  readonly #skipped = new Map<string, number>();

  /** Registers at once. Errors: `engine_mismatch` if the engine's blocks do not fit the card's unit. */
  constructor(options: PublisherOptions) {
    this.#options = options;
    this.#registration = { ...options.registration, incarnation: options.newIncarnation() };
    this.#mirror = this.#newMirror();
    this.#nextRegistrationMs = 0;
    this.#nextWalkMs = this.#firstWalkMs();
    this.#register();
  }

  get key(): IncarnationKey {
    const { worker, rank, incarnation } = this.#registration;
    return { worker, rank, incarnation };
  }

  /** True if the engine process of that incarnation still runs. */
  stands(incarnation: string): boolean {
    return incarnation === this.#registration.incarnation || this.#earlier.includes(incarnation);
  }

  get registration(): Registration {
    return this.#registration;
  }

  /** Number of the last batch of this incarnation; 0: none yet. */
  get sequence(): number {
    return this.#sequence;
  }

  get mirror(): Mirror {
    return this.#mirror;
  }

  get mirrorCounters(): MirrorCounters {
    return this.#mirror.counters;
  }

  /** Incarnations ended, by reason. */
  get voided(): ReadonlyMap<VoidReason, number> {
    return this.#voided;
  }

  /** Events that the decoder left out, by reason. */
  get skipped(): ReadonlyMap<string, number> {
    return this.#skipped;
  }

  /** Applies one engine batch; a clearing inside it begins a new incarnation for what follows. */
  apply(batch: EngineBatch): void {
    if (this.#stopped || this.#unusable) return;
    for (const { reason } of batch.skipped) this.#skipped.set(reason, (this.#skipped.get(reason) ?? 0) + 1);
    const events: (BlockStored | BlockRemoved)[] = [];
    for (const event of batch.events) {
      if (event.type === "cleared") {
        events.length = 0;
        this.reset("cleared");
        continue;
      }
      if (event.type === "stored" && !this.#fits(event)) return;
      events.push(event);
    }
    if (events.length === 0) return;
    this.#heard = true;
    this.#publish(this.#mirror.apply(events));
    if (this.#mirror.overflowed) this.reset("overflow");
  }

  /** A new incarnation with an empty mirror; nothing happens if the present one has said and heard nothing. */
  reset(reason: VoidReason): void {
    if (this.#stopped || !this.#heard) return;
    this.#begin(reason);
  }

  /** New facts of the rank (adapters come and go, events are heard or not); announced at once if they differ. */
  update(facts: Partial<Pick<Registration, "servedNames" | "adapters" | "totalBlocks" | "kvEvents">>): void {
    const next = { ...this.#registration, ...facts };
    if (this.#unusable) next.kvEvents = false;
    if (this.#stopped || JSON.stringify(next) === JSON.stringify(this.#registration)) return;
    this.#registration = next;
    this.#register();
  }

  /** All that is published of this incarnation; null if the key is another's. */
  snapshot(key: IncarnationKey): KvSnapshot | null {
    const own = this.key;
    if (
      this.#stopped ||
      key.worker !== own.worker ||
      key.rank !== own.rank ||
      key.incarnation !== own.incarnation
    ) {
      return null;
    }
    return {
      ...own,
      model: this.#registration.model,
      sequence: this.#sequence,
      ops: this.#mirror.snapshot(),
    };
  }

  /** To be called about once a second: repeats the registration, and a portion of the held keys. */
  tick(): void {
    if (this.#stopped) return;
    const now = this.#options.now();
    if (now >= this.#nextRegistrationMs) this.#register();
    this.#reassert(now);
  }

  /** Announces the end of the rank. Further calls do nothing. */
  stop(): void {
    if (this.#stopped) return;
    this.#stopped = true;
    this.#options.bus.publishRetirement(this.key);
  }

  /** Nothing is older than this by then. */
  #firstWalkMs(): number {
    return this.#options.now() + (this.#options.reassertMs ?? 900_000);
  }

  #newMirror(): Mirror {
    return new Mirror({ ...this.#options.mirror, now: this.#options.now });
  }

  #begin(reason: VoidReason): void {
    this.#voided.set(reason, (this.#voided.get(reason) ?? 0) + 1);
    this.#earlier =
      reason === "restart" ? [] : [...this.#earlier, this.#registration.incarnation].slice(-MAX_EARLIER);
    this.#mirror = this.#newMirror();
    this.#sequence = 0;
    this.#heard = false;
    this.#confirmed = false;
    this.#walk = null;
    this.#nextWalkMs = this.#firstWalkMs();
    this.#registration = { ...this.#registration, incarnation: this.#options.newIncarnation() };
    this.#register();
    this.#options.onNewLife?.();
  }

  /** Registers once more: a view has asked who is there. */
  announce(): void {
    if (!this.#stopped) this.#register();
  }

  #register(): void {
    this.#nextRegistrationMs = this.#options.now() + (this.#options.registerMs ?? 10_000);
    this.#options.bus.publishRegistration(this.#registration);
  }

  /** The first block that an engine announces confirms the block size, or ends the use of its events. */
  #fits(event: BlockStored): boolean {
    if (this.#confirmed || event.hashes.length === 0 || event.tokenIds.length === 0) return true;
    if (!isFullAttention(event)) return true;
    const { blockSize } = this.#options.mirror;
    if (event.blockSize === blockSize) {
      this.#confirmed = true;
      return true;
    }
    // One smaller block may be a hybrid model's partial entry; the mirror leaves it out.
    if (event.blockSize < blockSize && event.hashes.length === 1) return true;
    this.#unusable = true;
    this.#registration = { ...this.#registration, kvEvents: false };
    this.#begin("mismatch");
    this.#options.onMismatch(
      new KedgeError(
        "engine_mismatch",
        `The engine announces KV blocks of ${event.blockSize} tokens, but its block size is given as ${blockSize}. ` +
          `Set block size ${event.blockSize} for this engine (or start it with --block-size ${blockSize}); until then its events are not used.`,
        { param: "blockSize" },
      ),
    );
    return false;
  }

  #publish(ops: readonly KvOp[]): void {
    const { model } = this.#registration;
    for (const part of inBatches(ops, MAX_KEYS_PER_BATCH)) {
      this.#sequence++;
      this.#options.bus.publishKv({ ...this.key, model, sequence: this.#sequence, ops: part });
    }
  }

  /** One walk over all held keys takes `reassertMs`, in even portions, then the next one begins. */
  #reassert(now: number): void {
    const spanMs = this.#options.reassertMs ?? 900_000;
    if (this.#walk === null) {
      if (now < this.#nextWalkMs) return;
      const portions = Math.max(1, Math.ceil(this.#mirror.publishedCount() / REASSERT_PORTION));
      this.#walk = {
        portions: this.#mirror.reassert(REASSERT_PORTION),
        everyMs: spanMs / portions,
        nextMs: now,
      };
      this.#nextWalkMs = now + spanMs;
    }
    const walk = this.#walk;
    while (walk.nextMs <= now) {
      const portion = walk.portions.next();
      if (portion.done) {
        this.#walk = null;
        return;
      }
      walk.nextMs += walk.everyMs;
      this.#publish(portion.value);
    }
  }
}

/** Cuts operations into lists of at most `most` keys, in order; a long one is cut where it must be and stays prefix-closed. */
function* inBatches(ops: readonly KvOp[], most: number): Generator<KvOp[], void, void> {
  let part: KvOp[] = [];
  let room = most;
  for (const op of ops) {
    for (let at = 0; at < op.keys.length; ) {
      const end = Math.min(op.keys.length, at + room);
      part.push(at === 0 && end === op.keys.length ? op : cut(op, at, end));
      room -= end - at;
      at = end;
      if (room > 0) continue;
      yield part;
      part = [];
      room = most;
    }
  }
  if (part.length > 0) yield part;
}

function cut(op: KvOp, from: number, to: number): KvOp {
  const keys = op.keys.slice(from, to);
  if (op.op === "remove") return { ...op, keys };
  return {
    ...op,
    keys,
    tokens: op.tokens.slice(from, to),
    parent: from === 0 ? op.parent : op.keys[from - 1]!,
  };
}
