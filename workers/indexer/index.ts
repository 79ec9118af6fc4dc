/** The Worker in front of the indexer's Durable Object: a cron trigger starts it, operators with an API key look at it. */

import type { KedgeConfig } from "../../src/config/index.ts";
import { KedgeError, toKedgeError } from "../../src/errors/index.ts";
import { errorHeaders, errorJson } from "../../src/gateway/answers.ts";
import { createAuthenticator, webSha256 } from "../../src/gateway/auth.ts";
import { type IndexerBindings, type ObjectStub, readConfig } from "./environment.ts";

export { IndexerObject } from "./object.ts";

const ROUTES: Readonly<Record<string, string>> = { "/start": "POST", "/status": "GET", "/metrics": "GET" };

export default {
  async fetch(request: Request, env: IndexerBindings): Promise<Response> {
    try {
      return await answer(request, env);
    } catch (thrown) {
      const error = toKedgeError(thrown);
      return new Response(errorJson(error), { status: error.kind.status, headers: errorHeaders(error) });
    }
  },

  async scheduled(_event: unknown, env: IndexerBindings): Promise<void> {
    try {
      await objectOf(env, readConfig(env)).fetch("https://indexer/start", { method: "POST" });
    } catch (thrown) {
      console.error(
        JSON.stringify({ level: "error", message: `The indexer cannot start: ${String(thrown)}` }),
      );
    }
  },
};

async function answer(request: Request, env: IndexerBindings): Promise<Response> {
  const config = readConfig(env);
  if (config.apiKeyDigests.length === 0) {
    const told =
      "This indexer answers nobody without KEDGE_API_KEYS: SHA-256 digests of the keys that may ask it.";
    throw new KedgeError("service_unconfigured", told);
  }
  await createAuthenticator(config, webSha256, true)(request.headers.get("authorization") ?? undefined);
  const { pathname } = new URL(request.url);
  const method = ROUTES[pathname];
  if (method === undefined)
    throw new KedgeError("not_found", "There are POST /start, GET /status and GET /metrics.");
  if (request.method !== method) throw new KedgeError("method_not_allowed", `${pathname} takes ${method}.`);
  return objectOf(env, config).fetch(`https://indexer${pathname}`, { method });
}

/** One object per region. */
function objectOf({ INDEXER, INDEXER_LOCATION }: IndexerBindings, { place }: KedgeConfig): ObjectStub {
  const id = INDEXER.idFromName(place.region);
  return INDEXER.get(id, INDEXER_LOCATION === undefined ? {} : { locationHint: INDEXER_LOCATION });
}
