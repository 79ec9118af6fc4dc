/** A leader's lease by Redis' clock. */

import type { LeaderLease } from "../types.ts";
import { RELEASE_LEASE_SCRIPT, RENEW_SCRIPT, UPSTASH_KEY_LOCKING } from "./lua/lease.ts";
import type { Call } from "./scripts.ts";

export interface LeaseOptions {
  /** Runs one call. */
  readonly run: (call: Call) => Promise<unknown>;
  readonly key: string;
  readonly holder: string;
  readonly ttlMs: number;
  readonly backend: "redis" | "upstash";
}

export class RedisLease implements LeaderLease {
  private readonly options: LeaseOptions;

  constructor(options: LeaseOptions) {
    this.options = options;
  }

  /** Errors: `view_unavailable`; the lease may then have been taken or not. */
  async renew(): Promise<boolean> {
    return (await this.call(RENEW_SCRIPT, String(this.options.ttlMs))) === 1;
  }

  async release(): Promise<void> {
    await this.call(RELEASE_LEASE_SCRIPT);
  }

  private call(script: string, ...args: string[]): Promise<unknown> {
    const { run, key, holder, backend } = this.options;
    const text = backend === "upstash" ? UPSTASH_KEY_LOCKING + script : script;
    return run({ script: text, key, args: [holder, ...args] });
  }
}
