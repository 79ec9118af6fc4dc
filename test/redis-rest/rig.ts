/** A real redis-server with the REST front before it, and plain HTTP calls to it. */

import { afterAll, beforeAll } from "vitest";
import { type RedisRestOptions, type RestServer, startRedisRest } from "../../src/node/redis-rest/index.ts";
import { type RunningServer, startRedis } from "../support/servers.ts";

export const TOKEN = "full-token";
export const READ_ONLY_TOKEN = "read-only-token";

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly json: unknown;
}

export interface Rig {
  readonly redis: RunningServer;
  readonly rest: RestServer;
}

/** One pair for a suite. */
export function useRig(options: Partial<RedisRestOptions> = {}): () => Rig {
  let rig: Rig | null = null;
  beforeAll(async () => {
    const redis = await startRedis();
    const address = { host: "127.0.0.1", port: redis.port };
    const rest = await startRedisRest({
      redis: address,
      token: TOKEN,
      readOnlyToken: READ_ONLY_TOKEN,
      port: 0,
      ...options,
    });
    rig = { redis, rest };
  });
  afterAll(async () => {
    await rig?.rest.close();
    await rig?.redis.stop();
  });
  return () => rig!;
}

/** A request as it is: nothing is added but the token, which may be left out by null. */
export async function call(
  { url }: { readonly url: string },
  path: string,
  init: RequestInit & { token?: string | null } = {},
): Promise<Answer> {
  const { token = TOKEN, ...rest } = init;
  const headers = new Headers(rest.headers);
  if (token !== null) headers.set("authorization", `Bearer ${token}`);
  const response = await fetch(url + path, { ...rest, headers });
  const text = await response.text();
  return { status: response.status, headers: response.headers, text, json: parsed(text) };
}

/** POST of a JSON value. */
export function post(
  server: { readonly url: string },
  path: string,
  body: unknown,
  init: RequestInit & { token?: string | null } = {},
): Promise<Answer> {
  return call(server, path, { method: "POST", body: JSON.stringify(body), ...init });
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Looks every few milliseconds until it holds; fails after `timeoutMs`. */
export async function eventually(holds: () => Promise<boolean> | boolean, timeoutMs = 10_000): Promise<void> {
  const endMs = performance.now() + timeoutMs;
  while (!(await holds())) {
    if (performance.now() > endMs) throw new Error(`not so within ${timeoutMs} ms: ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
