/** Warnings that may come with every request, as at most one line per second and kind. */

import type { Clock, Log } from "./deps.ts";

const INTERVAL_MS = 1_000;
/** Kinds that are remembered; workers come and go. */
const MAX_KINDS = 4_096;

export class QuietLog {
  private readonly log: Log;
  private readonly clock: Pick<Clock, "now">;
  /** By kind: when it was last written, and how often it was not since. */
  private readonly lines = new Map<string, { atMs: number; unsaid: number }>();

  constructor(log: Log, clock: Pick<Clock, "now">) {
    this.log = log;
    this.clock = clock;
  }

  /** `message` is one of a few fixed texts; what varies goes into `fields`, and into `about` if each such thing has a line of its own. */
  warn(message: string, fields: Readonly<Record<string, unknown>>, about = ""): void {
    const nowMs = this.clock.now();
    const kind = `${message}${about}`;
    const line = this.lines.get(kind);
    if (line !== undefined && nowMs - line.atMs < INTERVAL_MS) {
      line.unsaid++;
      return;
    }
    const unsaid = line?.unsaid ?? 0;
    this.log.warn(message, unsaid === 0 ? fields : { ...fields, more: unsaid });
    if (this.lines.size >= MAX_KINDS) this.lines.clear();
    this.lines.set(kind, { atMs: nowMs, unsaid: 0 });
  }
}
