/** The naive index: a Redis set of workers per key, asked with one command per key, in pipelines. */

import type { Redis } from "ioredis";
import { type HeldChain, workerName } from "../population.ts";

export interface Baseline {
  readonly url: string;
  readonly token: string;
}

/** Keys per pipeline: the proxy's limit, and a fair chance to stop early. */
const PIPELINE = 1_000;

export async function fillBaseline(redis: Redis, chains: readonly HeldChain[]): Promise<void> {
  for (const { keys, holders } of chains) {
    for (let start = 0; start < keys.length; start += PIPELINE) {
      const pipeline = redis.pipeline();
      for (let i = start; i < Math.min(keys.length, start + PIPELINE); i++) {
        const workers = holders.filter(({ depth }) => depth > i).map(({ worker }) => workerName(worker));
        if (workers.length > 0) pipeline.sadd(nameOf(keys[i]!), ...workers);
      }
      await pipeline.exec();
    }
  }
}

/** Asks until a pipeline ends in a key that nobody holds. */
export async function lookUpNaively({ url, token }: Baseline, keys: BigUint64Array): Promise<void> {
  for (let start = 0; start < keys.length; start += PIPELINE) {
    const commands = Array.from(keys.subarray(start, start + PIPELINE), (key) => ["SMEMBERS", nameOf(key)]);
    const response = await fetch(`${url}/pipeline`, {
      method: "POST",
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      body: JSON.stringify(commands),
    });
    const answers = (await response.json()) as { result?: string[]; error?: string }[];
    const failed = answers.find(({ error }) => error !== undefined);
    if (failed !== undefined) throw new Error(failed.error);
    if (answers.at(-1)?.result?.length === 0) return;
  }
}

const bytes = new DataView(new ArrayBuffer(8));

/** As short as the view's own keys. */
export function nameOf(key: bigint): string {
  bytes.setBigUint64(0, key);
  return `b:${Buffer.from(bytes.buffer).toString("base64url")}`;
}
